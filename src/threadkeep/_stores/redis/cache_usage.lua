
-- Counts of cached results: their number, with those that have expired until a trim, and bytes.
-- KEYS[1] is what the keys of entries begin with.
local used = KEYS[1] .. 'used'
local count = redis.call('ZCARD', used)
return {count, bytes_of(count, redis.call('ZRANDMEMBER', used, most), function(id)
    return redis.call('STRLEN', KEYS[1] .. id)
end)}
