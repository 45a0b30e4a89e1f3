
-- Counts of items: all, expired at ARGV[2], waiting for vectors; and the bytes of values, of
-- earlier versions and of vectors. KEYS: items, versions, vectors, expiring, waiting.
local function of_hash(key)
    local fields = redis.call('HRANDFIELD', key, most)
    return bytes_of(redis.call('HLEN', key), fields, function(field)
        return redis.call('HSTRLEN', key, field)
    end)
end

local versions = redis.call('ZRANDMEMBER', KEYS[2], most)
return {
    redis.call('HLEN', KEYS[1]),
    redis.call('ZCOUNT', KEYS[4], '-inf', ARGV[2]),
    redis.call('ZCARD', KEYS[5]),
    of_hash(KEYS[1]),
    bytes_of(redis.call('ZCARD', KEYS[2]), versions, string.len),
    of_hash(KEYS[3]),
}
