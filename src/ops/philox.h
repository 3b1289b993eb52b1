// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011): four random words
// from a counter and a key, no state. Host and device code; pure.
//
// Note [Dropout masks]
// The words of columns 4c .. 4c + 3 of row r come from the counter {r low, r high, c, site}: whatever the vector width,
// the number of columns or the cut of the step, an element's word is the same.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define PROTRAIN_HOST_DEVICE __host__ __device__
#else
#define PROTRAIN_HOST_DEVICE
#endif

namespace protrain::ops {

struct PhiloxWords {
  std::uint32_t word[4];
};

PROTRAIN_HOST_DEVICE inline PhiloxWords philox4x32(PhiloxWords counter, std::uint64_t key) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter.word[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter.word[2];
    counter = {
        {static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(product0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

PROTRAIN_HOST_DEVICE inline PhiloxWords dropout_words(std::uint64_t key, std::uint32_t site, std::int64_t row,
                                                      std::int64_t column_group) {
  const auto r = static_cast<std::uint64_t>(row);
  return philox4x32({{static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(r >> 32),
                      static_cast<std::uint32_t>(column_group), site}},
                    key);
}

}  // namespace protrain::ops
