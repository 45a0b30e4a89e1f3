-- A page of items, from one state: members of the order, and the value of each in a hash. The
-- value's key is the part of the member from ARGV[1] to ARGV[2]: its field (17, -1) or its place
-- (1, 16).
--
-- ARGV[3] and ARGV[4] are limit and offset, ARGV[5] the member to begin after, or ''. Then follow
-- 'in' and numbers of namespaces ('' for all), or 'under', the bounds of paths and the most
-- namespaces to read: if there are more, nothing is read, and the answer is nil.

local first, last, left, offset, after = unpack(ARGV, 1, 5)
left, offset = tonumber(left), tonumber(offset)

local function value_of(number)
    return number == '' and math.huge or struct.unpack('>I8', number)
end

local function numbers_under(low, high, most)
    local spaces = redis.call('ZRANGEBYLEX', KEYS[3], low, high, 'LIMIT', 0, most + 1)
    if #spaces > tonumber(most) then
        return nil
    end
    local found = {}
    for _, space in ipairs(spaces) do
        found[#found + 1] = string.sub(space, -8)
    end
    table.sort(found, function(one, other) return value_of(one) < value_of(other) end)
    return found
end

-- Return the members of a namespace after the offset.
local function members_in(number)
    local low, high = '[' .. number, number == '' and '+' or '(' .. number .. '\255'
    if after ~= '' then
        if value_of(number) < value_of(string.sub(after, 1, 8)) then
            return {}
        elseif string.sub(after, 1, #number) == number then
            low = '(' .. after
        end
    end
    if offset > 0 then
        local count = redis.call('ZLEXCOUNT', KEYS[1], low, high)
        if count <= offset then
            offset = offset - count
            return {}
        end
    end
    local found = redis.call('ZRANGEBYLEX', KEYS[1], low, high, 'LIMIT', offset, left)
    offset = 0
    return found
end

local numbers = {unpack(ARGV, 7)}
if ARGV[6] == 'under' then
    numbers = numbers_under(unpack(ARGV, 7))
end
if not numbers then
    return false
end
local members, fields = {}, {}
for _, number in ipairs(numbers) do
    for _, member in ipairs(members_in(number)) do
        members[#members + 1] = member
        fields[#fields + 1] = string.sub(member, first, last)
        left = left - 1
    end
    if left == 0 then
        break
    end
end
local data = #fields > 0 and redis.call('HMGET', KEYS[2], unpack(fields)) or {}
return {members, data, numbers, offset}
