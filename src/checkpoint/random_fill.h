// Counter-based random numbers: a draw is a function of its key and counter alone. Pure; thread-safe.
#pragma once
#include <array>
#include <cstdint>

namespace protrain {

// Philox-4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// to[i] = std x standard normal number `first + i` of the stream (seed, name_hash), for i in [0, n). Box-Muller in
// double.
void fill_normal(std::uint64_t seed, std::uint64_t name_hash, double std, std::int64_t first, std::int64_t n,
                 float* to);

}  // namespace protrain
