#include "memory_mix.h"

#include <immintrin.h>

namespace protrain::bench {
namespace {

constexpr std::int64_t kBlock = 32;  // elements: one cache line of each 2-byte array, two of each 4-byte one

using Line = __m256i;  // half a cache line: two of them already saturate the memory of a core
Line load(const void* from) { return _mm256_loadu_si256(static_cast<const Line*>(from)); }

template <bool kStreaming>
void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += sizeof(Line)) {
    auto* const target = static_cast<char*>(to) + i;
    const Line line = load(static_cast<const char*>(from) + i);
    if constexpr (kStreaming) {
      _mm256_stream_si256(reinterpret_cast<Line*>(target), line);
    } else {
      _mm256_storeu_si256(reinterpret_cast<Line*>(target), line);
    }
  }
}

template <bool kStreaming>
std::uint64_t copy(const StateBytes& from, const StateBytes& to) {
  Line sum{};
  const auto* const weight = static_cast<const std::uint16_t*>(from.weight);
  const auto* const gradient = static_cast<const std::uint16_t*>(from.gradient);
  auto* const weight_to = static_cast<std::uint16_t*>(to.weight);
  for (std::int64_t i = 0; i + kBlock <= from.n; i += kBlock) {
    copy_bytes<kStreaming>(weight_to + i, weight + i, 2 * kBlock);
    copy_bytes<kStreaming>(to.residual + i, from.residual + i, 2 * kBlock);
    copy_bytes<kStreaming>(to.m + i, from.m + i, 4 * kBlock);
    copy_bytes<kStreaming>(to.v + i, from.v + i, 4 * kBlock);
    for (std::int64_t j = 0; j < kBlock; j += static_cast<std::int64_t>(sizeof(Line) / 2)) {
      sum = _mm256_add_epi64(sum, load(gradient + i + j));
    }
  }
  if (kStreaming) _mm_sfence();
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 0));
}

}  // namespace

void triad_mix(const StateBytes& state) {
  auto* const weight = static_cast<std::uint16_t*>(state.weight);
  const auto* const gradient = static_cast<const std::uint16_t*>(state.gradient);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < state.n; ++i) {
    const std::uint16_t g = gradient[i];
    weight[i] = static_cast<std::uint16_t>(weight[i] + 3 * g);
    state.residual[i] = static_cast<std::int16_t>(state.residual[i] + 3 * g);
    state.m[i] = state.m[i] + 3.0f * static_cast<float>(g);
    state.v[i] = state.v[i] + 3.0f * static_cast<float>(g);
  }
}

std::uint64_t copy_mix(const StateBytes& from, const StateBytes& to) { return copy<false>(from, to); }
std::uint64_t streaming_copy_mix(const StateBytes& from, const StateBytes& to) { return copy<true>(from, to); }

}  // namespace protrain::bench
