-- A change of cached results, or a read of their uses. KEYS[1] is the prefix of the entries' keys, ARGV[1] the change.
-- See cache.py for the keys; times and lifetimes are in milliseconds.

local base, used = KEYS[1], KEYS[1] .. 'used'
local CHANGES = {}

-- Arguments: the time, then of each entry its id, its lifetime or '', and its text.
function CHANGES.set()
    local uses = {}
    for at = 3, #ARGV, 3 do
        if ARGV[at + 1] == '' then
            redis.call('SET', base .. ARGV[at], ARGV[at + 2])
        else
            redis.call('SET', base .. ARGV[at], ARGV[at + 2], 'PX', ARGV[at + 1])
        end
        uses[#uses + 1] = ARGV[2]
        uses[#uses + 1] = ARGV[at]
    end
    redis.call('ZADD', used, unpack(uses))
end

-- Arguments: the time, the lifetime and the text of a lease, then ids.
function CHANGES.lease()
    for at = 5, #ARGV do
        if redis.call('SET', base .. ARGV[at], ARGV[4], 'NX', 'PX', ARGV[3]) then
            redis.call('ZADD', used, ARGV[2], ARGV[at])
        end
    end
end

-- Arguments: the text that entries must have, '' for any, then ids.
function CHANGES.remove()
    for at = 3, #ARGV do
        local key = base .. ARGV[at]
        if ARGV[2] == '' or redis.call('GET', key) == ARGV[2] then
            redis.call('UNLINK', key)
            redis.call('ZREM', used, ARGV[at])
        end
    end
end

local function length(id)
    return redis.call('STRLEN', base .. id)
end

-- Argument: the size of a page. Returns the number of entries, their bytes, expired ids, and the
-- least recently used ids, each with its size. Like Redis, this looks for expired entries and the
-- mean size in a random sample.
function CHANGES.uses()
    local entries, bytes, expired, oldest = redis.call('ZCARD', used), 0, {}, {}
    local sample = redis.call('ZRANDMEMBER', used, ARGV[2])
    for _, id in ipairs(sample) do
        local size = length(id)
        bytes = bytes + size * entries / #sample
        if size == 0 then
            expired[#expired + 1] = id
        end
    end
    for _, id in ipairs(redis.call('ZRANGE', used, 0, ARGV[2] - 1)) do
        oldest[#oldest + 1], oldest[#oldest + 2] = id, length(id)
    end
    return {entries, bytes, expired, oldest}
end

return CHANGES[ARGV[1]]()
