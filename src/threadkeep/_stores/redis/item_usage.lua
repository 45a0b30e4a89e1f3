-- Counts of items: all, expired at ARGV[2], waiting for vectors; and the bytes of values, of
-- earlier versions and of vectors, estimated from a random sample of ARGV[1] of each.
-- KEYS: items, versions, vectors, expiring, waiting.
local most = tonumber(ARGV[1])
local function bytes_of(count, sample, length)
    local bytes = 0
    for _, one in ipairs(sample) do
        bytes = bytes + length(one)
    end
    return math.floor(bytes * count / math.max(#sample, 1))
end

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
