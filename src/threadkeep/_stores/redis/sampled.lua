
-- Estimated bytes of all elements, from a random sample of ARGV[1] of them.
local most = tonumber(ARGV[1])
local function bytes_of(count, sample, length)
    local bytes = 0
    for _, one in ipairs(sample) do
        bytes = bytes + length(one)
    end
    return math.floor(bytes * count / math.max(#sample, 1))
end
