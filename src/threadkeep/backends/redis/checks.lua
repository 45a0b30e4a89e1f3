-- What a change expects of its thread, checked before anything is written. Arguments: `born` and
-- the generation ('' for none), then the fences.

-- Whether decimal text `one` is at most `other`, which is positive.
local function at_most(one, other)
    if string.sub(one, 1, 1) == '-' then
        return true
    end
    if #one ~= #other then
        return #one < #other
    end
    return one <= other  -- digits, equally many: the same in every locale
end

local function check_thread()
    local born, generation = take(), take()
    local deleted_at = redis.call('HGET', THREAD, 'deleted_at')
    if born ~= '' and deleted_at and at_most(born, deleted_at) then
        return {'deleted'}
    end
    if generation ~= '' and generation ~= (redis.call('HGET', THREAD, 'generation') or '0') then
        return {'stale'}
    end
    return nil
end

-- Arguments: namespace, the first member that counts, the batch's own places.
local function check_head()
    local ns, first, own = take(), take(), {}
    for _ = 1, tonumber(take()) do
        own[take()] = true
    end
    local size = 2
    while true do
        local newer = redis.call(
            'ZRANGEBYLEX', ROWS, first, '(' .. ns .. '\1', 'LIMIT', 0, size)
        for _, member in ipairs(newer) do
            local place, at = place_of(member)
            if not own[place] and not has_flag(member, at, NESTED) then
                return {'conflict', place}
            end
        end
        if #newer < size then
            return nil
        end
        first, size = '(' .. newer[#newer], 64
    end
end

-- Arguments: the checkpoint's place, the first seq that counts, the run whose rows do not.
local function check_writes()
    local place, first, run = take(), take(), take()
    local newer = redis.call(
        'ZRANGEBYLEX', WRITES, '[' .. place .. '\0' .. first, '(' .. place .. '\1')
    for _, member in ipairs(newer) do
        local _, at = place_of(member)
        if string.sub(member, at + 8, at + 15) ~= run then
            return {'conflict', place}
        end
    end
    return nil
end

local function check_rows()
    local checkpoints, writes = tonumber(take()), tonumber(take())
    if redis.call('ZCARD', ROWS) ~= checkpoints or redis.call('ZCARD', WRITES) ~= writes then
        return {'conflict'}
    end
    return nil
end

-- Argument: the revision of the entry, '0' for none.
local function check_entry()
    local found = redis.call('HMGET', THREAD, 'state', 'revision')
    if (found[1] and found[2] or '0') ~= take() then
        return {'conflict'}
    end
    return nil
end

local CHECKS = {
    head = check_head, writes = check_writes, rows = check_rows, entry = check_entry}

local function check_fences()
    for _ = 1, tonumber(take()) do
        local refusal = CHECKS[take()]()
        if refusal then
            return refusal
        end
    end
    return nil
end
