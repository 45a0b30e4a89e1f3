-- A page of namespaces, each with the number of its items.

local found = {}
local low, high, limit = unpack(ARGV)
for _, space in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], low, high, 'LIMIT', 0, limit)) do
    local number = string.sub(space, -8)
    local count = redis.call('ZLEXCOUNT', KEYS[2], '[' .. number, '(' .. number .. '\255')
    found[#found + 1], found[#found + 2] = space, count
end
return found
