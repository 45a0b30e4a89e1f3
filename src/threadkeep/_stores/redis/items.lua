-- A change of items, all or nothing. A script cannot be undone, so everything is checked before
-- anything is written. See item_rows.py for the keys, the rows and the arguments.
--
-- The first write of a put is a command that a full server refuses. Removals are never refused.

local COUNTER, ITEMS, ORDER, EXPIRING, WAITING = unpack(KEYS, 1, 5)
local DIMS, VECTORS, WORDS, VERSIONS = unpack(KEYS, 6)
local NONE = string.rep('\0', 8)
local VERSION_STEP = 2 ^ 18 -- (as in records.py)
local sub, call = string.sub, redis.call

local function version_of(row) return sub(row, 9, 16) end

local function member_of(field, row)
    local path = string.find(field, '\0\0', 1, true) + 1
    return sub(field, 1, path) .. sub(row, 1, 8) .. sub(field, path + 1)
end

-- Set a field of a hash, or remove it if the value is empty.
local function set(key, field, value)
    if value ~= '' then
        call('HSET', key, field, value)
    else
        call('HDEL', key, field)
    end
end

-- Set the score of a member, or remove it if the score is empty.
local function rank(key, score, member)
    if score ~= '' then
        call('ZADD', key, score, member)
    else
        call('ZREM', key, member)
    end
end

local function remove(field, row)
    local member = member_of(field, row)
    call('HDEL', ITEMS, field)
    call('ZREM', ORDER, member)
    call('ZREM', WAITING, member)
    call('ZREM', EXPIRING, field)
    call('HDEL', VECTORS, field)
    call('HDEL', WORDS, field)
end

-- Remove the earlier versions of an item, except the newest `skip`.
local function drop_versions(field, skip)
    local high, low = '(' .. field .. '\1', '[' .. field .. '\0'
    repeat
        local found = call('ZREVRANGEBYLEX', VERSIONS, high, low, 'LIMIT', skip, 1000)
        if #found > 0 then
            call('ZREM', VERSIONS, unpack(found))
        end
    until #found < 1000
end

local PUT = '>' .. string.rep('I4c0', 12)
local EMBED = '>' .. string.rep('I4c0', 4)

-- Return the arguments from the third on, each split into its parts; a size precedes each part.
local function parts_of(format)
    local found = {}
    for at = 3, #ARGV do
        found[#found + 1] = {struct.unpack(format, ARGV[at])}
    end
    return found
end

-- Return the dimensions of the stored vectors if they differ from `dims`.
local function other_dims(dims)
    local stored = dims ~= '' and call('EXISTS', VECTORS) == 1 and call('GET', DIMS)
    return stored and stored ~= dims and tonumber(stored)
end

local function set_vectors(field, dims, vectors)
    if dims ~= '' then
        call('SET', DIMS, dims)
    end
    set(VECTORS, field, vectors)
end

local function put_item(put, old, bits)
    local field, tail, made, times, score, mark, dims, vectors, words = unpack(put)
    local version = struct.pack('>I8', call('INCR', COUNTER) * VERSION_STEP + bits)
    local created = made ~= '' and made or old and sub(old, 17, 24) or sub(times, 1, 8)
    local row = (old and sub(old, 1, 8) or version) .. version .. created .. times .. mark .. tail
    local member = member_of(field, row)
    call('HSET', ITEMS, field, row)
    call('ZADD', ORDER, 0, member)
    rank(EXPIRING, score, field)
    rank(WAITING, mark == '\2' and '0' or '', member)
    set_vectors(field, dims, vectors)
    set(WORDS, field, words)
end

-- A refused change returns -1 if an item has another version, or -1 minus the dimensions of the
-- stored vectors if its vectors have other dimensions.
local CHANGES = {}

function CHANGES.put(bits)
    local rows, puts = {}, parts_of(PUT)
    for at, put in ipairs(puts) do
        local row, expected = call('HGET', ITEMS, put[1]), put[10]
        rows[at] = row
        if expected ~= '' and (row and version_of(row) or NONE) ~= expected then
            return -1
        end
        local stored = other_dims(put[7])
        if stored then
            return -1 - stored
        end
    end
    for at, put in ipairs(puts) do
        local field, row, earlier = put[1], rows[at], put[11]
        if put[2] ~= '' then
            put_item(put, row, bits)
        elseif row then
            remove(field, row)
        end
        if earlier ~= '' then
            call('ZADD', VERSIONS, 0, field .. '\0' .. earlier)
            drop_versions(field, put[12])
        end
    end
    return #puts
end

function CHANGES.refresh(now)
    for at = 3, #ARGV do
        local field = ARGV[at]
        local row = call('HGET', ITEMS, field)
        if row and sub(row, 33, 40) ~= NONE then
            local expires = now + struct.unpack('>I8', sub(row, 33, 40))
            call('HSET', ITEMS, field, sub(row, 1, 40) .. struct.pack('>I8', expires) .. sub(row, 49))
            call('ZADD', EXPIRING, expires, field)
        end
    end
    return #ARGV - 2
end

function CHANGES.embed()
    local items = parts_of(EMBED)
    for _, item in ipairs(items) do
        local stored = other_dims(item[3])
        if stored then
            return -1 - stored
        end
    end
    for _, item in ipairs(items) do
        local field, version, dims, vectors = unpack(item)
        local row = call('HGET', ITEMS, field)
        if row and version_of(row) == version then
            local mark = vectors ~= '' and '\1' or '\0'
            call('HSET', ITEMS, field, sub(row, 1, 48) .. mark .. sub(row, 50))
            call('ZREM', WAITING, member_of(field, row))
            set_vectors(field, dims, vectors)
        end
    end
    return #items
end

function CHANGES.repatch()
    local pairs_of = parts_of('>I4c0I4c0')
    for _, one in ipairs(pairs_of) do
        local old, new = one[1], one[2]
        if old ~= new and call('ZSCORE', VERSIONS, old) then
            call('ZADD', VERSIONS, 0, new)
            call('ZREM', VERSIONS, old)
        end
    end
    return #pairs_of
end

-- Remove items and their earlier versions; with a time, only items that have expired by then.
function CHANGES.remove(now)
    local removed = 0
    for at = 3, #ARGV do
        local field = ARGV[at]
        local row, expires = call('HGET', ITEMS, field), call('ZSCORE', EXPIRING, field)
        if row and (now == '' or expires and tonumber(expires) <= tonumber(now)) then
            remove(field, row)
            drop_versions(field, 0)
            removed = removed + 1
        end
    end
    return removed
end

return CHANGES[ARGV[1]](ARGV[2])
