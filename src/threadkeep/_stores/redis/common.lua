-- Beginning of all scripts: the thread's keys, and how its members are read.
--
-- Python packs the members (rows.py); the scripts read only their beginning. All comparisons are
-- the server's own, or byte by byte: Lua's `<` depends on the locale, and its numbers are doubles.

local THREAD, ROWS, CHILDREN, WRITES, PLACES, DATA = unpack(KEYS, 1, 6)
local NESTED, HIDDEN = 2, 8
local LAST = string.rep('\255', 9)  -- sorts after any number

-- The tips of the last commits, newest first, 8 bytes each. (Two fields: Redis keeps a hash compact
-- while no value has more than 64 bytes.)
local function named_tips()
    local found = redis.call('HMGET', THREAD, 'tips', 'older')
    return (found[1] or '') .. (found[2] or '')
end

-- Return true if the thread's row names all of these tips.
local function names(tips)
    local named = named_tips()
    for _, tip in ipairs(tips) do
        if not string.find(named, tip, 1, true) then
            return false
        end
    end
    return true
end

-- Return the members that begin with a place and a NUL, in order.
local function under(key, place, ...)
    return redis.call('ZRANGEBYLEX', key, '[' .. place .. '\0', '(' .. place .. '\1', ...)
end

-- Return the place of a checkpoint or write (namespace, NUL, id), and the index of its numbers.
local function place_of(member)
    local first = string.find(member, '\0', 1, true)
    local second = string.find(member, '\0', first + 1, true)
    return string.sub(member, 1, second - 1), second + 1
end

-- All flags are in the last byte of their number.
local function has_flag(member, at, flag)
    return bit.band(string.byte(member, at + 7), flag) ~= 0
end

local function checkpoint_at(place)
    return under(ROWS, place, 'LIMIT', 0, 1)[1]
end

-- Return the packed id of the parent, or nil.
local function parent_of(member, at)
    local mark = at + 41
    if string.byte(member, mark) == 0 then
        return nil
    end
    return string.sub(member, mark + 1, string.find(member, '\0', mark + 1, true) - 1)
end

-- Return true if the first of two numbers of 8 bytes is smaller.
local function less(one, other)
    for at = 1, 8 do
        local a, b = string.byte(one, at), string.byte(other, at)
        if a ~= b then
            return a < b
        end
    end
    return false
end

-- Return the segment that holds a position, or nil. Only the last one that starts at or before it
-- can.
local function segment_over(log, position)
    local found = redis.call(
        'ZREVRANGEBYLEX', PLACES, '[' .. log .. position .. LAST, '[' .. log, 'LIMIT', 0, 1)[1]
    if found and less(position, string.sub(found, 17)) then
        return found
    end
    return nil
end

local function data_at(segment)
    return redis.call('HGET', DATA, string.sub(segment, 1, 16))
end

-- If the thread has an `expiry`, let all of its keys expire at the same time, that long from now.
local function refresh()
    local ttl = redis.call('HGET', THREAD, 'expiry')
    if not ttl then
        return
    end
    local now = redis.call('TIME')
    local at = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + ttl)
    for number = 1, 6 do
        redis.call('PEXPIREAT', KEYS[number], at)
    end
end
