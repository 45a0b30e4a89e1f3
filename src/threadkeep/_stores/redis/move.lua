-- Make a move of one thread, all or nothing, after common.lua. A script cannot be undone, so
-- everything is checked before anything is written. See `moves.py` for the arguments. The answer is
-- nil if the move is refused, else the labels that it removes.

local cursor = 0

local function take()
    cursor = cursor + 1
    return ARGV[cursor]
end

-- Call a function a number of times: each call takes its words.
local function each(take_words)
    for _ = 1, tonumber(take()) do
        take_words()
    end
end

-- Argument: the newest tip, '' if the thread must not exist, '*' for any tip.
local function is_as_expected(tip)
    if redis.call('EXISTS', THREAD) == 0 then
        return tip == ''
    end
    local tips = redis.call('HGET', THREAD, 'tips') or ''
    return tip == '*' or (tip ~= '' and tip == string.sub(tips, 1, 8))
end

local function put_segment()
    local segment, data = take(), take()
    redis.call('ZADD', PLACES, 0, segment)
    redis.call('HSET', DATA, string.sub(segment, 1, 16), data)
end

local function drop_checkpoint(place)
    local member = checkpoint_at(place)
    if not member then
        return
    end
    redis.call('ZREM', ROWS, member)
    local _, at = place_of(member)
    local parent = parent_of(member, at)
    if parent then
        local between = string.find(place, '\0', 1, true)
        redis.call('ZREM', CHILDREN, table.concat({
            string.sub(place, 1, between), parent, string.sub(place, between), '\0',
            string.sub(member, at + 8, at + 23)}))
    end
end

local function put_checkpoint()
    local place, member, child = take(), take(), take()
    drop_checkpoint(place)
    redis.call('ZADD', ROWS, 0, member)
    if child ~= '' then
        redis.call('ZADD', CHILDREN, 0, child)
    end
end

-- Remove a write by the beginning of its member: place, NUL, seq. Return whether it was there.
local function drop_write(number)
    local found = redis.call('ZRANGEBYLEX', WRITES, '[' .. number, '+', 'LIMIT', 0, 1)[1]
    if found and string.sub(found, 1, #number) == number then
        redis.call('ZREM', WRITES, found)
        return true
    end
end

local function replace_write()
    local number, member = take(), take()
    if drop_write(number) then
        redis.call('ZADD', WRITES, 0, member)
    end
end

local function hide_checkpoint()
    local place = take()
    local member = checkpoint_at(place)
    if member then
        local flags = #place + 9  -- their last byte
        local hidden = string.char(bit.bor(string.byte(member, flags), HIDDEN))
        redis.call('ZREM', ROWS, member)
        redis.call('ZADD', ROWS, 0,
            string.sub(member, 1, flags - 1) .. hidden .. string.sub(member, flags + 1))
    end
end

-- Arguments: the name of the member's table, and the member itself.
local function drop_unreadable()
    local keys = {checkpoints = ROWS, writes = WRITES, children = CHILDREN, segments = PLACES}
    local table_, member = take(), take()
    if table_ == 'data' then
        redis.call('HDEL', DATA, member)
    else
        redis.call('ZREM', keys[table_], member)
    end
end

-- Arguments: '1' to remove all rows first, the members of another thread's keys, and rows to drop,
-- replace and hide.
local function change_rows()
    if take() == '1' then
        redis.call('DEL', ROWS, CHILDREN, WRITES, PLACES, DATA)
    end
    for _, key in ipairs({ROWS, CHILDREN, WRITES, PLACES}) do
        each(function() redis.call('ZADD', key, 0, take()) end)
    end
    each(function() redis.call('HSET', DATA, take(), take()) end)
    each(function() drop_checkpoint(take()) end)
    each(function() drop_write(take()) end)
    each(replace_write)
    each(hide_checkpoint)
    each(drop_unreadable)
end

-- Labels are fields of the thread: 'l:' and the label's prefix.
local gone = {}

local function clear_labels()
    local flat = redis.call('HGETALL', THREAD)
    for at = 1, #flat, 2 do
        if string.sub(flat[at], 1, 2) == 'l:' then
            redis.call('HDEL', THREAD, flat[at])
            gone[#gone + 1] = flat[at + 1]
        end
    end
end

local function put_label()
    local field, label = take(), take()
    local known = redis.call('HGET', THREAD, field)
    if known and known ~= label then
        gone[#gone + 1] = known
    end
    redis.call('HSET', THREAD, field, label)
end

local ttl = take()
if not is_as_expected(take()) then
    return nil
end
local drops = {}
each(function() drops[#drops + 1] = take() end)
if take() == '1' then  -- segments are added
    for _, segment in ipairs(drops) do
        if not redis.call('ZSCORE', PLACES, segment) then
            return nil
        end
    end
end

-- Free memory first: a full server lets a script continue that has begun to write.
if take() == '1' then
    change_rows()
end
for _, segment in ipairs(drops) do
    if redis.call('ZREM', PLACES, segment) == 1 then
        redis.call('HDEL', DATA, string.sub(segment, 1, 16))
    end
end
each(put_segment)
each(put_checkpoint)
each(function() redis.call('ZADD', WRITES, 0, take()) end)
local fields = tonumber(take())  -- (a head has few)
redis.call('HSET', THREAD, unpack(ARGV, cursor + 1, cursor + 2 * fields))
cursor = cursor + 2 * fields
each(function() redis.call('HDEL', THREAD, take()) end)
if take() == '1' then
    clear_labels()
end
each(put_label)
if ttl ~= '' then
    redis.call('HSET', THREAD, 'expiry', ttl)
end
refresh()
return gone
