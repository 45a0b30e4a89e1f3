-- What all scripts that write begin with, behind common.lua.
--
-- ARGV[1] is the thread's id; ARGV[2] '1' if the index of threads has it (it cannot lie in
-- one slot with every thread of a cluster); ARGV[3] the ttl in milliseconds or ''.
-- KEYS[7] is the index, where this server holds everything.

local cursor = 3

local function take()
    cursor = cursor + 1
    return ARGV[cursor]
end

local CREATED = redis.call('EXISTS', THREAD) == 0

-- Whether the thread would be there and its id not in the index, if something crashed now.
local function lacks_index()
    return CREATED and not KEYS[7] and ARGV[2] ~= '1'
end

local BIRTH

-- Bring the thread into being, if it is not there: the first thing that is written. Its
-- generation begins at a moment that no earlier life of it has had (see generations.py).
local function begin()
    if CREATED then
        local now = redis.call('TIME')
        BIRTH = string.format('%.0f', now[1] * 1000000 + now[2])
        redis.call('HSET', THREAD, 'generation', BIRTH)
    end
end

-- The last thing that a script does; `news` is for the index.
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
