-- Beginning of scripts that fill a thread with another's rows, behind writing.lua.

-- The reply where that is not to be done, else nil. `mark` is which copy or fork this is.
local function refusal(mark)
    if redis.call('EXISTS', ROWS) == 1 then
        -- The answer may have been lost: the same one again is done already.
        return {redis.call('HGET', THREAD, 'copy') == mark and 'again' or 'exists'}
    end
    return lacks_index() and {'unknown'} or nil
end

-- Bring the thread into being, with nothing in it; gives the state that it had.
local function found()
    begin()
    redis.call('DEL', ROWS, CHILDREN, WRITES, PLACES, DATA)
    return state_now()
end

-- Fill keys, from this one to the last, with dumps as DUMP gave them, '' where there is none.
local function restore(first)
    for number = first, 6 do
        local dump = take()
        if dump ~= '' then
            redis.call('RESTORE', KEYS[number], 0, dump)
        end
    end
end

-- Say that all rows are there: not before they are, as the mark answers for them from now on.
local function finish(mark)
    redis.call('HINCRBY', THREAD, 'generation', 1)
    redis.call('HSET', THREAD, 'copy', mark)
    redis.call('HDEL', THREAD, 'deleted_at')
end
