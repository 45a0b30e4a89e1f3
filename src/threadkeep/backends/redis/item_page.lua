-- A page of items, from one state: the members of the order in some ranges, and what a hash has of
-- each, under its field (ARGV[1] is 17) or its place (1 to 16).

local first, last, left, offset = unpack(ARGV, 1, 4)
local members, fields = {}, {}
left = tonumber(left)
for at = 5, #ARGV, 2 do
    local found = redis.call(
        'ZRANGEBYLEX', KEYS[1], ARGV[at], ARGV[at + 1], 'LIMIT', offset, left)
    for _, member in ipairs(found) do
        members[#members + 1] = member
        fields[#fields + 1] = string.sub(member, first, last)
    end
    left, offset = left - #found, 0
    if left == 0 then
        break
    end
end
return {members, #fields > 0 and redis.call('HMGET', KEYS[2], unpack(fields)) or {}}
