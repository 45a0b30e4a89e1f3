-- Answers about one thread, all from one state. ARGV[1] is '1' to restart the thread's ttl. Then
-- follow, for each read, its name, the number of its arguments, and the arguments. See
-- `scripts.py`.

local cursor = 1

local function take()
    cursor = cursor + 1
    return ARGV[cursor]
end

-- Arguments: a number of words, and the words.
local function take_from(words)
    local count = tonumber(words[1])
    return {unpack(words, 2, count + 1)}, {unpack(words, count + 2)}
end

-- The thread's own row; empty if the thread does not exist.
local function state()
    return redis.call('HGETALL', THREAD)
end

-- Keyframes of one reply: places and data alternately, each once.
local function new_keyframes()
    return {flat = {}, known = {}}
end

local function keyframe_of(member, at, keyframes)
    local log, position = string.sub(member, at + 24, at + 31), string.sub(member, at + 32, at + 39)
    local segment = segment_over(log, position)
    if not segment then
        return ''
    end
    if not keyframes.known[segment] then
        keyframes.known[segment] = true
        local flat = keyframes.flat
        flat[#flat + 1], flat[#flat + 2] = segment, data_at(segment) or ''
    end
    return segment
end

-- Return a checkpoint, its keyframe's place, its first child with a greater id, and its writes.
local function stored(member, keyframes)
    local place, at = place_of(member)
    local id = string.sub(place, string.find(place, '\0', 1, true) + 1)
    local child = redis.call(
        'ZRANGEBYLEX', CHILDREN, '[' .. place .. '\0' .. id .. '\1', '(' .. place .. '\1',
        'LIMIT', 0, 1)[1]
    return {member, keyframe_of(member, at, keyframes), child or '', under(WRITES, place)}
end

-- Return true if a checkpoint may match a filter: it has exact metadata, or each of the texts.
local function may_match(member, at, texts)
    if string.sub(member, at + 40, at + 40) == '1' then
        return true
    end
    for _, text in ipairs(texts) do
        if not string.find(member, text, at + 40, true) then
            return false
        end
    end
    return true
end

-- Call `visit` with visible checkpoints between two bounds, greatest first, `limit` times.
local function each_visible(highest, lowest, texts, limit, visit)
    local size, left = math.min(limit, 64), limit
    while left > 0 do
        local page = redis.call('ZREVRANGEBYLEX', ROWS, highest, lowest, 'LIMIT', 0, size)
        for _, member in ipairs(page) do
            local place, at = place_of(member)
            if left > 0 and not has_flag(member, at, HIDDEN) and may_match(member, at, texts) then
                visit(member, place)
                left = left - 1
            end
        end
        if #page < size then
            return
        end
        highest, size = '(' .. page[#page], 64
    end
end

local function bounds(ns, upper, lower)
    local highest = upper == '' and '\1' or '\0' .. upper
    return '(' .. ns .. highest, '[' .. ns .. '\0' .. lower
end

local READS = {}

-- Arguments: the namespace.
function READS.head(ns)
    local now = state()
    local keyframes, found = new_keyframes(), {}
    local highest, lowest = bounds(ns, '', '')
    each_visible(highest, lowest, {}, 1, function(member)
        found[1] = stored(member, keyframes)
    end)
    return {now, found, keyframes.flat}
end

-- The server's time: seconds, and microseconds of the second.
function READS.clock()
    return redis.call('TIME')
end

-- Arguments: the place.
function READS.one(place)
    local now = state()
    local keyframes, found = new_keyframes(), {}
    local member = checkpoint_at(place)
    if member then
        found[1] = stored(member, keyframes)
    end
    return {now, found, keyframes.flat}
end

-- Arguments: places. Missing checkpoints are left out.
function READS.rows(...)
    local keyframes, found = new_keyframes(), {}
    for _, place in ipairs({...}) do
        local member = checkpoint_at(place)
        if member then
            found[#found + 1] = stored(member, keyframes)
        end
    end
    return {found, keyframes.flat}
end

-- Arguments: the namespace, the id to begin with, the limit.
function READS.path(ns, id, limit)
    local keyframes, found = new_keyframes(), {}
    while id and #found < tonumber(limit) do
        local member = checkpoint_at(ns .. '\0' .. id)
        if not member then
            break
        end
        found[#found + 1] = stored(member, keyframes)
        local _, at = place_of(member)
        id = parent_of(member, at)
    end
    return {found, keyframes.flat}
end

-- Arguments: the generation or '', the tips that the thread must name with their number, and log,
-- start and stop of each span. Returns places and data alternately.
function READS.segments(generation, ...)
    local base, spans = take_from({...})
    local found, known = {}, {}
    local now = redis.call('HGET', THREAD, 'generation') or '0'
    if (generation ~= '' and generation ~= now) or not names(base) then
        return found
    end
    local function add(segment)
        if not known[segment] then
            known[segment] = true
            found[#found + 1], found[#found + 2] = segment, data_at(segment) or ''
        end
    end
    for at = 1, #spans, 3 do
        local log, start, stop = spans[at], spans[at + 1], spans[at + 2]
        local first = segment_over(log, start)
        if first then
            add(first)
        end
        local others = redis.call(
            'ZRANGEBYLEX', PLACES, '(' .. log .. start .. LAST, '(' .. log .. stop)
        for _, segment in ipairs(others) do
            add(segment)
        end
    end
    return found
end

-- Arguments: the namespace, bounds of ids, the limit, the texts of a filter.
function READS.page(ns, upper, lower, limit, ...)
    local keyframes, found = new_keyframes(), {}
    local highest, lowest = bounds(ns, upper, lower)
    each_visible(highest, lowest, {...}, tonumber(limit), function(member)
        found[#found + 1] = stored(member, keyframes)
    end)
    return {found, keyframes.flat}
end

-- The same of one namespace ('=' and its name) or all (''), at most `limit` of each; places
-- alone.
function READS.places(which, upper, lower, limit, ...)
    local texts, found = {...}, {}
    local function look_into(ns)
        local highest, lowest = bounds(ns, upper, lower)
        each_visible(highest, lowest, texts, tonumber(limit), function(_, place)
            found[#found + 1] = place
        end)
    end
    if which ~= '' then
        look_into(string.sub(which, 2))
        return found
    end
    local first = redis.call('ZRANGEBYLEX', ROWS, '-', '+', 'LIMIT', 0, 1)[1]
    while first do
        local ns = string.sub(first, 1, string.find(first, '\0', 1, true) - 1)
        look_into(ns)
        first = redis.call('ZRANGEBYLEX', ROWS, '[' .. ns .. '\1', '+', 'LIMIT', 0, 1)[1]
    end
    return found
end

-- All rows, without the segments' data.
function READS.thread()
    local now = state()
    local keyframes, keys, sizes = new_keyframes(), {}, {}
    local rows = redis.call('ZRANGEBYLEX', ROWS, '-', '+')
    for number, member in ipairs(rows) do
        local _, at = place_of(member)
        keys[number] = keyframe_of(member, at, keyframes)
    end
    local places = redis.call('ZRANGEBYLEX', PLACES, '-', '+')
    for number, segment in ipairs(places) do
        sizes[number] = redis.call('HSTRLEN', DATA, string.sub(segment, 1, 16))
    end
    local writes = redis.call('ZRANGEBYLEX', WRITES, '-', '+')
    return {now, rows, keys, keyframes.flat, writes, places, sizes}
end

-- The same without unpacking any row: without keyframes, but with the set of children, and with the
-- data of no segment (its field and itself alternately).
function READS.bare()
    local now = state()
    local sizes, known, stray = {}, {}, {}
    local places = redis.call('ZRANGEBYLEX', PLACES, '-', '+')
    for number, segment in ipairs(places) do
        local field = string.sub(segment, 1, 16)
        known[field] = true
        sizes[number] = redis.call('HSTRLEN', DATA, field)
    end
    for _, field in ipairs(redis.call('HKEYS', DATA)) do
        if not known[field] then
            stray[#stray + 1], stray[#stray + 2] = field, redis.call('HGET', DATA, field)
        end
    end
    return {
        now, redis.call('ZRANGEBYLEX', ROWS, '-', '+'),
        redis.call('ZRANGEBYLEX', WRITES, '-', '+'),
        redis.call('ZRANGEBYLEX', CHILDREN, '-', '+'), places, sizes, stray}
end

-- 1 if the thread exists, then its numbers of checkpoints, writes, segments and data.
function READS.counts()
    return {
        redis.call('EXISTS', THREAD), redis.call('ZCARD', ROWS), redis.call('ZCARD', WRITES),
        redis.call('ZCARD', PLACES), redis.call('HLEN', DATA)}
end

-- Checkpoints whose metadata may name a run.
function READS.runs()
    local found = {}
    for _, member in ipairs(redis.call('ZRANGEBYLEX', ROWS, '-', '+')) do
        if string.find(member, '"run_id"', 1, true) then
            found[#found + 1] = member
        end
    end
    return {redis.call('EXISTS', THREAD), found}
end

-- Return the hour since a time in which a checkpoint was made, or nil if its time is a text.
local function hour_of(member, since, length)
    local _, at = place_of(member)
    local parent = parent_of(member, at)
    -- (the time is the first element of an array, whose own first byte is left out)
    local _, ts = cmsgpack.unpack_one(member, at + 42 + (parent and #parent + 1 or 0))
    return type(ts) == 'number' and math.floor((ts - since) / length) or nil
end

-- The hours in which checkpoints were made since a time, and their number in each, alternately.
-- Damaged ones do not count.
function READS.hours(since, length)
    local counts, flat = {}, {}
    for _, member in ipairs(redis.call('ZRANGEBYLEX', ROWS, '-', '+')) do
        local sound, hour = pcall(hour_of, member, since, length)
        if sound and hour and hour >= 0 then
            counts[hour] = (counts[hour] or 0) + 1
        end
    end
    for hour, count in pairs(counts) do
        flat[#flat + 1], flat[#flat + 2] = hour, count
    end
    return flat
end

-- Bytes of rows and of segments.
function READS.bytes()
    local rows, segments = 0, 0
    for _, key in ipairs({ROWS, WRITES}) do
        for _, member in ipairs(redis.call('ZRANGEBYLEX', key, '-', '+')) do
            rows = rows + #member
        end
    end
    for _, field in ipairs(redis.call('HKEYS', DATA)) do
        segments = segments + redis.call('HSTRLEN', DATA, field)
    end
    return {rows, segments}
end

READS.entry = state

-- The thread's newest tip, and all of its rows.
function READS.whole()
    local found = {string.sub(named_tips(), 1, 8)}
    for number, key in ipairs({ROWS, CHILDREN, WRITES, PLACES}) do
        found[number + 1] = redis.call('ZRANGEBYLEX', key, '-', '+')
    end
    found[6] = redis.call('HGETALL', DATA)
    return found
end

-- Places of checkpoints that are not nested, smallest first. Arguments: the namespace, the bound to
-- begin at, the limit.
function READS.newer(ns, first, limit)
    local found, size, most = {}, 2, tonumber(limit)
    while #found < most do
        local page = redis.call('ZRANGEBYLEX', ROWS, first, '(' .. ns .. '\1', 'LIMIT', 0, size)
        for _, member in ipairs(page) do
            local place, at = place_of(member)
            if #found < most and not has_flag(member, at, NESTED) then
                found[#found + 1] = place
            end
        end
        if #page < size then
            break
        end
        first, size = '(' .. page[#page], 64
    end
    return found
end

-- 1 if a checkpoint has a write of another run. Arguments: its place, the first seq that counts, the
-- run.
function READS.others(place, first, run)
    local newer = redis.call(
        'ZRANGEBYLEX', WRITES, '[' .. place .. '\0' .. first, '(' .. place .. '\1')
    for _, member in ipairs(newer) do
        local _, at = place_of(member)
        if string.sub(member, at + 8, at + 15) ~= run then
            return 1
        end
    end
    return 0
end

-- The last segment of each of these logs, without empty ones.
function READS.ends(...)
    local found = {}
    for _, log in ipairs({...}) do
        local last = redis.call(
            'ZREVRANGEBYLEX', PLACES, '[' .. log .. LAST, '[' .. log, 'LIMIT', 0, 1)
        found[#found + 1] = last[1]
    end
    return found
end

if ARGV[1] == '1' then
    refresh()
end
local replies = {}
while cursor < #ARGV do
    local read, count = READS[take()], tonumber(take())
    local first = cursor + 1
    cursor = cursor + count
    replies[#replies + 1] = read(unpack(ARGV, first, cursor))
end
return replies
