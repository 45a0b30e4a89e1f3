-- Beginning of all scripts that write, after common.lua: the thread, and its registry entry.
--
-- ARGV[1] is the thread's id; ARGV[2] is '1' if the index of threads has the id, or is not kept;
-- ARGV[3] is the ttl in milliseconds, or ''. KEYS[7] is the index, unless it is not kept or, on a
-- cluster, is in another slot.

local cursor = 3

local function take()
    cursor = cursor + 1
    return ARGV[cursor]
end

local CREATED = redis.call('EXISTS', THREAD) == 0

-- Return true if the script would create a thread that is not in the index.
local function lacks_index()
    return CREATED and not KEYS[7] and ARGV[2] ~= '1'
end

-- Arguments: a number of tips, and the tips.
local function take_tips()
    local tips = {}
    for number = 1, tonumber(take()) do
        tips[number] = take()
    end
    return tips
end

-- Name a tip first.
local function put_tip(tip)
    local named = named_tips()
    if not string.find(named, tip, 1, true) then
        named = tip .. named
        redis.call('HSET', THREAD, 'tips', string.sub(named, 1, 64))
        if #named > 64 then
            redis.call('HSET', THREAD, 'older', string.sub(named, 65, 128))
        end
    end
end

-- Name a tip alone.
local function put_only_tip(tip)
    redis.call('HSET', THREAD, 'tips', tip)
    redis.call('HDEL', THREAD, 'older')
end

local BIRTH

-- Create the thread if it does not exist: the first write of a script. Its first generation is the
-- server's time, which no earlier thread of this id has had (see server.py).
local function begin()
    if CREATED then
        local now = redis.call('TIME')
        BIRTH = string.format('%.0f', now[1] * 1000000 + now[2])
        redis.call('HSET', THREAD, 'generation', BIRTH)
    end
end

-- Return the answer of a script, its last step; `news` is for the index.
local function done(news)
    if ARGV[3] ~= '' then
        redis.call('HSET', THREAD, 'ttl', ARGV[3])
    end
    refresh()
    if CREATED and KEYS[7] then
        redis.call('ZADD', KEYS[7], 0, ARGV[1])
    end
    local generation = BIRTH or redis.call('HGET', THREAD, 'generation')
    return {CREATED and 'created' or 'changed', generation, unpack(news)}
end

-- The registry in the thread's own hash. A thread with a state has an entry. The field of a label
-- is 'l:' and its prefix. See rows.py for the arguments.

local GONE = {}  -- terms of the index that no longer apply to the thread

local function state_now()
    return redis.call('HGET', THREAD, 'state') or ''
end

local function has_entry(state)
    return state ~= '' and state ~= 'deleted'
end

-- Set a field, or remove it: '' for none, else '=' and the value.
local function set_or_remove(field, value)
    if value == '' then
        redis.call('HDEL', THREAD, field)
    else
        redis.call('HSET', THREAD, field, string.sub(value, 2))
    end
end

-- Return true if the first text is smaller, byte by byte.
local function precedes(one, other)
    for at = 1, math.min(#one, #other) do
        local a, b = string.byte(one, at), string.byte(other, at)
        if a ~= b then
            return a < b
        end
    end
    return #one < #other
end

-- Return true if one number of microseconds, as text, is greater than another.
local function later(one, other)
    if #one ~= #other then
        return #one > #other
    end
    return precedes(other, one)
end

local function put_label(beginning, label)
    local known = redis.call('HGET', THREAD, 'l:' .. beginning)
    if known and known ~= label then
        GONE['label:' .. known] = true
    end
    redis.call('HSET', THREAD, 'l:' .. beginning, label)
    GONE['label:' .. label] = nil
end

local function drop_labels()
    local flat = redis.call('HGETALL', THREAD)
    for at = 1, #flat, 2 do
        if string.sub(flat[at], 1, 2) == 'l:' then
            redis.call('HDEL', THREAD, flat[at])
            GONE['label:' .. flat[at + 1]] = true
        end
    end
    local origin = redis.call('HGET', THREAD, 'origin')
    if origin then
        GONE['origin:' .. origin] = true
    end
end

local function put_entry()
    local state, created_at, updated_at, waits_at = take(), take(), take(), take()
    if not has_entry(state_now()) then
        redis.call('HSET', THREAD, 'created_at', created_at, 'updated_at', updated_at)
        set_or_remove('waits_at', waits_at)
    end
    drop_labels()
    redis.call('HSET', THREAD, 'state', state)
    redis.call('HINCRBY', THREAD, 'revision', 1)
    set_or_remove('pinned', take())
    set_or_remove('rest', take())
    local origin = take()
    set_or_remove('origin', origin)
    set_or_remove('origin_checkpoint', take())
    if origin ~= '' then
        GONE['origin:' .. string.sub(origin, 2)] = nil
    end
    for _ = 1, tonumber(take()) do
        local beginning, label = take(), take()
        put_label(beginning, label)
    end
end

-- Arguments: the states from which the move starts, each between '|', the new state, the
-- checkpoint, '1' if an interrupt waits there, '1' if the move also counts at the checkpoint that
-- waits already.
local function carry_out_move(at)
    local sources, target, checkpoint, waits, same = take(), take(), take(), take(), take()
    local state = state_now()
    local waits_at = redis.call('HGET', THREAD, 'waits_at')
    if not string.find(sources, '|' .. state .. '|', 1, true)
        or (waits_at and not precedes(waits_at, checkpoint)
            and not (same == '1' and waits_at == checkpoint))
    then
        return
    end
    if not has_entry(state) then
        redis.call('HSET', THREAD, 'created_at', at, 'updated_at', at)
    end
    redis.call('HSET', THREAD, 'state', target)
    redis.call('HINCRBY', THREAD, 'revision', 1)
    set_or_remove('waits_at', waits == '1' and '=' .. checkpoint or '')
end

local function touch()
    local now, at, whole, size = take(), take(), take(), take()
    if whole == '1' then
        redis.call('HSET', THREAD, 'size', 0)
    end
    redis.call('HINCRBY', THREAD, 'size', size)
    for _ = 1, tonumber(take()) do
        carry_out_move(at == '' and now or at)
    end
    local there = has_entry(state_now())
    if there and at ~= '' and later(at, redis.call('HGET', THREAD, 'updated_at')) then
        redis.call('HSET', THREAD, 'updated_at', at)
    end
    local labels = tonumber(take())
    for _ = 1, labels do
        local beginning, label = take(), take()
        if there then
            put_label(beginning, label)
        end
    end
    if there and labels > 0 then
        redis.call('HINCRBY', THREAD, 'revision', 1)
    end
end

-- Update the registry by a change.
local function tell_registry()
    if take() == '1' then
        put_entry()
    end
    if take() == '1' then
        touch()
    end
end

-- Return the news for the index: the states before and now, the times, the terms to remove.
local function news(before)
    local times = redis.call('HMGET', THREAD, 'created_at', 'updated_at')
    local told = {before, state_now(), times[1] or '', times[2] or ''}
    for term in pairs(GONE) do
        told[#told + 1] = term
    end
    return told
end
