
-- Counts of cached results: their number, and bytes. Expired ones count until a trim.
-- KEYS[1] is the prefix of the entries' keys.
local used = KEYS[1] .. 'used'
local count = redis.call('ZCARD', used)
return {count, bytes_of(count, redis.call('ZRANDMEMBER', used, most), function(id)
    return redis.call('STRLEN', KEYS[1] .. id)
end)}
