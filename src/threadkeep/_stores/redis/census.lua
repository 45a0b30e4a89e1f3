-- Counts of many threads, of one on a cluster. ARGV[1] is the number of keys of each: 1 for its
-- state alone ('' for none), 6 for also its size, time of update ('' for none), checkpoints, writes,
-- and bytes in memory (estimated if a key has over 20 elements).
local step, found = tonumber(ARGV[1]), {}
for first = 1, #KEYS, step do
    if step == 1 then
        found[first] = redis.call('HGET', KEYS[first], 'state') or ''
    else
        local row = redis.call('HMGET', KEYS[first], 'state', 'size', 'updated_at')
        local memory = 0
        for key = first, first + 5 do
            memory = memory + (redis.call('MEMORY', 'USAGE', KEYS[key], 'SAMPLES', 20) or 0)
        end
        for number = 1, 3 do
            found[#found + 1] = row[number] or ''
        end
        found[#found + 1] = redis.call('ZCARD', KEYS[first + 1])
        found[#found + 1] = redis.call('ZCARD', KEYS[first + 3])
        found[#found + 1] = memory
    end
end
return found
