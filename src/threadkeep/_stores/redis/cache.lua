-- A change of cached results. KEYS[1] is the prefix of the entries' keys, ARGV[1] the change.
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

-- Arguments: the time, the lifetime and the text of a lease, then ids. Returns the leased ones.
function CHANGES.claim()
    local claimed = {}
    for at = 5, #ARGV do
        local key = base .. ARGV[at]
        local is_new = redis.call('SET', key, ARGV[4], 'NX', 'PX', ARGV[3])
        if is_new or redis.call('GET', key) == ARGV[4] then  -- (it was made, and its answer lost)
            redis.call('ZADD', used, ARGV[2], ARGV[at])
            claimed[#claimed + 1] = ARGV[at]
        end
    end
    return claimed
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

-- Arguments: the most entries, the most bytes, and the size of the sample. Like Redis, this looks
-- for expired entries and the mean size in a random sample. Returns the number of removed entries.
function CHANGES.trim()
    local page = tonumber(ARGV[4])
    local entries, bytes = redis.call('ZCARD', used), 0
    local sample = redis.call('ZRANDMEMBER', used, page)
    for _, id in ipairs(sample) do
        local size = length(id)
        bytes = bytes + size * entries / #sample
        if size == 0 then
            redis.call('ZREM', used, id)
        end
    end
    local entries_over = redis.call('ZCARD', used) - ARGV[2]
    local bytes_over, removed = bytes - ARGV[3], 0
    for _, id in ipairs(redis.call('ZRANGE', used, 0, page - 1)) do
        if entries_over <= 0 and bytes_over <= 0 then
            break
        end
        entries_over, bytes_over = entries_over - 1, bytes_over - length(id)
        removed = removed + redis.call('UNLINK', base .. id)  -- (0 if it has expired)
        redis.call('ZREM', used, id)
    end
    return removed
end

return CHANGES[ARGV[1]]()
