-- A change of items, all or nothing. A script cannot be undone, so everything is checked before
-- anything is written. See item_rows.py for the keys, the rows and the arguments.
--
-- The first write of a put is a command that a full server refuses. Removals are never refused.

local COUNTER, SPACES, ITEMS, ORDER, EXPIRING, WAITING = unpack(KEYS, 1, 6)
local DIMS, VECTORS, WORDS, VERSIONS = unpack(KEYS, 7)
local HAS_VECTORS, HAS_WORDS, IS_PENDING = 1, 2, 4
local NONE = string.rep('\0', 8)
local sub, byte, call = string.sub, string.byte, redis.call

local function place_of(row) return sub(row, 1, 16) end
local function version_of(row) return sub(row, 17, 24) end
local function created_of(row) return sub(row, 25, 32) end
local function ttl_of(row) return sub(row, 41, 48) end
local function expires_of(row) return sub(row, 49, 56) end
local function flags_of(row) return byte(row, 57) end

local function has(flags, flag)
    return bit.band(flags, flag) ~= 0
end

-- Remove an item from all keys except its row and the order.
local function unindex(field, row)
    local place, flags = place_of(row), flags_of(row)
    if has(flags, HAS_VECTORS) then
        call('HDEL', VECTORS, place)
    end
    if has(flags, HAS_WORDS) then
        call('HDEL', WORDS, place)
    end
    if has(flags, IS_PENDING) then
        call('ZREM', WAITING, place .. field)
    end
    if expires_of(row) ~= NONE then
        call('ZREM', EXPIRING, field)
    end
end

local function remove(field, row)
    unindex(field, row)
    call('HDEL', ITEMS, field)
    call('ZREM', ORDER, place_of(row) .. field)
end

-- Remove earlier versions, except the newest `skip`; return the number removed.
local function drop_versions(low, high, skip, limit)
    local found = call('ZREVRANGEBYLEX', VERSIONS, high, low, 'LIMIT', skip, limit)
    if #found > 0 then
        call('ZREM', VERSIONS, unpack(found))
    end
    return #found
end

local function drop_versions_of(field, skip)
    while drop_versions('[' .. field .. '\0', '(' .. field .. '\1', skip, 1000) == 1000 do end
end

-- `path` ends with a NUL; in fields, another NUL follows.
local function holds_nothing(path, number)
    local items = call(
        'ZRANGEBYLEX', ORDER, '[' .. number, '(' .. number .. '\255', 'LIMIT', 0, 1)
    local versions = call(
        'ZRANGEBYLEX', VERSIONS, '[' .. path .. '\0', '(' .. path .. '\1', 'LIMIT', 0, 1)
    return #items == 0 and #versions == 0
end

local function number_of(path)
    local found = call('ZRANGEBYLEX', SPACES, '[' .. path .. '\0', '(' .. path .. '\1')[1]
    if found then
        return sub(found, -8)
    end
    local number = struct.pack('>I8', call('INCR', COUNTER))
    call('ZADD', SPACES, 0, path .. '\0' .. number)
    return number
end

local PUT = '>' .. string.rep('I4c0', 13)
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
    local stored = call('EXISTS', VECTORS) == 1 and call('GET', DIMS)
    return stored and stored ~= dims and tonumber(stored)
end

local function put_item(put, old, number)
    local field, _, tail, made, times, score, marks, dims, vectors, words = unpack(put, 1, 10)
    local version, flags = struct.pack('>I8', call('INCR', COUNTER)), byte(marks)
    local place
    if old then
        unindex(field, old)
        place = place_of(old)
    else
        place = number .. version
        call('ZADD', ORDER, 0, place .. field)
    end
    local created = made ~= '' and made or old and created_of(old) or sub(times, 1, 8)
    call('HSET', ITEMS, field, place .. version .. created .. times .. marks .. tail)
    if score ~= '' then
        call('ZADD', EXPIRING, score, field)
    end
    if has(flags, HAS_VECTORS) then
        call('SET', DIMS, dims)
        call('HSET', VECTORS, place, vectors)
    end
    if has(flags, HAS_WORDS) then
        call('HSET', WORDS, place, words)
    end
    if has(flags, IS_PENDING) then
        call('ZADD', WAITING, 0, place .. field)
    end
end

-- A refused change returns -1 if an item has another version, or -1 minus the dimensions of the
-- stored vectors if its vectors have other dimensions.
local CHANGES = {}

function CHANGES.put()
    local rows, numbers, puts, dims = {}, {}, parts_of(PUT), ''
    for at, put in ipairs(puts) do
        local row, expected = call('HGET', ITEMS, put[1]), put[11]
        rows[at] = row
        if expected ~= '' and (row and version_of(row) or NONE) ~= expected then
            return -1
        end
        dims = put[8] ~= '' and put[8] or dims
    end
    local stored = dims ~= '' and other_dims(dims)
    if stored then
        return -1 - stored
    end
    for at, put in ipairs(puts) do
        local field, path, row, earlier = put[1], put[2], rows[at], put[12]
        if put[3] ~= '' then
            if not row and not numbers[path] then
                numbers[path] = number_of(path)
            end
            put_item(put, row, numbers[path])
        elseif row then
            remove(field, row)
        end
        if earlier ~= '' then
            call('ZADD', VERSIONS, 0, field .. '\0' .. earlier)
            drop_versions_of(field, put[13])
        end
    end
    return #puts
end

function CHANGES.refresh(now)
    for at = 3, #ARGV do
        local field = ARGV[at]
        local row = call('HGET', ITEMS, field)
        if row and ttl_of(row) ~= NONE then
            local expires = now + struct.unpack('>I8', ttl_of(row))
            row = sub(row, 1, 48) .. struct.pack('>I8', expires) .. sub(row, 57)
            call('HSET', ITEMS, field, row)
            call('ZADD', EXPIRING, expires, field)
        end
    end
    return #ARGV - 2
end

function CHANGES.embed()
    local items = parts_of(EMBED)
    for _, item in ipairs(items) do
        local stored = item[3] ~= '' and other_dims(item[3])
        if stored then
            return -1 - stored
        end
    end
    for _, item in ipairs(items) do
        local field, version, dims, vectors = unpack(item)
        local row = call('HGET', ITEMS, field)
        if row and version_of(row) == version then
            local flags = bit.band(flags_of(row), HAS_WORDS)
            if vectors ~= '' then
                flags = flags + HAS_VECTORS
                call('SET', DIMS, dims)
                call('HSET', VECTORS, place_of(row), vectors)
            end
            call('HSET', ITEMS, field, sub(row, 1, 56) .. string.char(flags) .. sub(row, 58))
            call('ZREM', WAITING, place_of(row) .. field)
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

local function remove_wholly(field, row)
    local path, number = sub(field, 1, (string.find(field, '\0\0', 1, true))), sub(row, 1, 8)
    remove(field, row)
    drop_versions_of(field, 0)
    if holds_nothing(path, number) then
        call('ZREM', SPACES, path .. '\0' .. number)
    end
end

function CHANGES.sweep(now, limit)
    local fields = call('ZRANGEBYSCORE', EXPIRING, '-inf', now, 'LIMIT', 0, limit)
    for _, field in ipairs(fields) do
        remove_wholly(field, call('HGET', ITEMS, field))
    end
    return #fields
end

-- Remove those of these items that have expired.
function CHANGES.expire(now)
    local removed = 0
    for at = 3, #ARGV do
        local score = call('ZSCORE', EXPIRING, ARGV[at])
        if score and tonumber(score) <= tonumber(now) then
            remove_wholly(ARGV[at], call('HGET', ITEMS, ARGV[at]))
            removed = removed + 1
        end
    end
    return removed
end

-- Remove some items of a namespace; after the last one, also the namespace and the versions of
-- items that were deleted before. Returns the number of removed items, and 1 if some are left.
function CHANGES.erase(space, limit)
    local path, number, count = sub(space, 1, -9), sub(space, -8), tonumber(limit)
    local members = call(
        'ZRANGEBYLEX', ORDER, '[' .. number, '(' .. number .. '\255', 'LIMIT', 0, count)
    for _, member in ipairs(members) do
        local field = sub(member, 17)
        remove(field, call('HGET', ITEMS, field))
        drop_versions_of(field, 0)
    end
    local low, high = '[' .. path, '(' .. sub(path, 1, -2) .. '\1'
    if #members == count or drop_versions(low, high, 0, count) == count then
        return {#members, 1}
    end
    call('ZREM', SPACES, space)
    return {#members, 0}
end

return CHANGES[ARGV[1]](ARGV[2], ARGV[3])
