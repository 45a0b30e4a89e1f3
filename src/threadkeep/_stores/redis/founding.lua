-- Beginning of the scripts that fill a thread with another thread's rows, after writing.lua.

-- Return the reply if nothing is to be done, else nil. `mark` identifies the copy or fork.
local function refusal(mark)
    if redis.call('EXISTS', ROWS) == 1 then
        -- The same mark means a retry: the thread was filled, and the answer was lost.
        return {redis.call('HGET', THREAD, 'copy') == mark and 'again' or 'exists'}
    end
    return lacks_index() and {'unknown'} or nil
end

-- Create the thread without rows; return its previous state.
local function found()
    begin()
    redis.call('DEL', ROWS, CHILDREN, WRITES, PLACES, DATA)
    return state_now()
end

-- Fill the keys from `first` to the last with the results of DUMP; '' is a missing key.
local function restore(first)
    for number = first, 6 do
        local dump = take()
        if dump ~= '' then
            redis.call('RESTORE', KEYS[number], 0, dump)
        end
    end
end

-- Set the mark. A retry then counts as done, so all rows must be stored before. The mark is also
-- the only tip.
local function finish(mark)
    put_only_tip(mark)
    redis.call('HINCRBY', THREAD, 'generation', 1)
    redis.call('HSET', THREAD, 'copy', mark)
    redis.call('HDEL', THREAD, 'deleted_at')
end
