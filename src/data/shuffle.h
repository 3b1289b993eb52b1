// Seeded permutations. Pure functions; the same on every machine and in every version: resume depends on it.
#pragma once
#include <cstdint>
#include <vector>

namespace protrain {

// A uniformly random order of 0 .. n-1, a function of (n, seed, stream) only. n >= 0.
std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed, std::uint64_t stream);

}  // namespace protrain
