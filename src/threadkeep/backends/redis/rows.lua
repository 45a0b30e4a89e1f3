-- Rows as they are put, behind registry.lua: for a batch, and for what takes a thread's place.

local function put_segment(segment, data)
    redis.call('ZADD', PLACES, 0, segment)
    redis.call('HSET', DATA, string.sub(segment, 1, 16), data)
end

local function drop_checkpoint(place)
    local member = checkpoint_at(place)
    if not member then
        return
    end
    redis.call('ZREM', ROWS, member)
    local _, at = place_of(member)
    local parent = parent_of(member, at)
    if parent then
        local between = string.find(place, '\0', 1, true)
        redis.call('ZREM', CHILDREN, table.concat({
            string.sub(place, 1, between), parent, string.sub(place, between), '\0',
            string.sub(member, at + 8, at + 23)}))
    end
end

local function put_checkpoints()
    for _ = 1, tonumber(take()) do
        local place, member, child = take(), take(), take()
        drop_checkpoint(place)
        redis.call('ZADD', ROWS, 0, member)
        if child ~= '' then
            redis.call('ZADD', CHILDREN, 0, child)
        end
    end
end

local function add_writes()
    for _ = 1, tonumber(take()) do
        local place, rest = take(), take()
        local last = redis.call(
            'ZREVRANGEBYLEX', WRITES, '(' .. place .. '\1', '[' .. place .. '\0',
            'LIMIT', 0, 1)[1]
        local seq = 1
        if last then
            local _, at = place_of(last)
            seq = struct.unpack('>I8', last, at) + 1
        end
        redis.call('ZADD', WRITES, 0, place .. '\0' .. struct.pack('>I8', seq) .. rest)
    end
end
