-- A page of namespaces, each with the number of its items. ARGV: the bounds, and the most of them.

local found, low, high, limit = {}, unpack(ARGV)
while #found < 2 * limit do
    local member = redis.call('ZRANGEBYLEX', KEYS[1], low, high, 'LIMIT', 0, 1)[1]
    if not member then
        break
    end
    local path = string.sub(member, 1, (string.find(member, '\0\0', 1, true)))
    low = '[' .. path .. '\1'
    found[#found + 1] = path
    found[#found + 1] = redis.call('ZLEXCOUNT', KEYS[1], '[' .. path .. '\0', '(' .. path .. '\1')
end
return found
