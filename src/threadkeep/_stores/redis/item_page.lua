-- A page of items, from one state: members of an order, and the value of each in a hash.
-- ARGV: the bounds, and the offset and the most members.

local low, high, offset, limit = unpack(ARGV)
local members = redis.call('ZRANGEBYLEX', KEYS[1], low, high, 'LIMIT', offset, limit)
local fields = {}
for at, member in ipairs(members) do
    local path = string.find(member, '\0\0', 1, true) + 1
    fields[at] = string.sub(member, 1, path) .. string.sub(member, path + 9)
end
return {members, #fields > 0 and redis.call('HMGET', KEYS[2], unpack(fields)) or {}}
