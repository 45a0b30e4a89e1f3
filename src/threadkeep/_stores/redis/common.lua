-- Beginning of all scripts: the thread's keys, and how its members are read.
--
-- Members are made in Python (rows.py), so that nothing here depends on more of them than
-- their beginning. All comparisons are the server's own or byte by byte: Lua's `<` follows
-- the locale, and its numbers are doubles.

local THREAD, ROWS, CHILDREN, WRITES, PLACES, DATA = unpack(KEYS, 1, 6)
local NESTED, HIDDEN = 2, 4
local LAST = string.rep('\255', 9)  -- behind any number that follows

-- Members that begin with a place and a NUL, in order.
local function under(key, place, ...)
    return redis.call('ZRANGEBYLEX', key, '[' .. place .. '\0', '(' .. place .. '\1', ...)
end

-- The place of a checkpoint or write: namespace, NUL, id; and where its numbers begin.
local function place_of(member)
    local first = string.find(member, '\0', 1, true)
    local second = string.find(member, '\0', first + 1, true)
    return string.sub(member, 1, second - 1), second + 1
end

-- Flags are few: their last byte has them all.
local function has_flag(member, at, flag)
    return bit.band(string.byte(member, at + 7), flag) ~= 0
end

local function checkpoint_at(place)
    return under(ROWS, place, 'LIMIT', 0, 1)[1]
end

-- The parent's id as packed, or nil.
local function parent_of(member, at)
    local mark = at + 41
    if string.byte(member, mark) == 0 then
        return nil
    end
    return string.sub(member, mark + 1, string.find(member, '\0', mark + 1, true) - 1)
end

-- Return true if the first of two numbers of 8 bytes is the smaller one.
local function less(one, other)
    for at = 1, 8 do
        local a, b = string.byte(one, at), string.byte(other, at)
        if a ~= b then
            return a < b
        end
    end
    return false
end

-- The one segment that may hold this position: the last that starts at or before it.
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

-- Give all keys of the thread the same time to expire, if it has one: its own `ttl`.
local function refresh()
    local ttl = redis.call('HGET', THREAD, 'ttl')
    if not ttl then
        return
    end
    local now = redis.call('TIME')
    local at = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + ttl)
    for number = 1, 6 do
        redis.call('PEXPIREAT', KEYS[number], at)
    end
end
