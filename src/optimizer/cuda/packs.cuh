// N neighbouring elements as one 16-byte access, or fewer at the end of an array.
#pragma once
#include <cstdint>

namespace protrain::cuda {

constexpr int kThreads = 256;

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

// from is aligned for the pack (N = 1: always). Elements from `count` on are not touched; they read as zero.
template <int N, class T>
__device__ Pack<T, N> load(const T* from, std::int64_t count) {
  if (count >= N) return *reinterpret_cast<const Pack<T, N>*>(from);
  Pack<T, N> pack{};
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (k < count) pack.at[k] = from[k];
  }
  return pack;
}

template <int N, class T>
__device__ void store(T* to, const Pack<T, N>& pack, std::int64_t count) {
  if (count >= N) {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
    return;
  }
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (k < count) to[k] = pack.at[k];
  }
}

inline bool aligned(std::initializer_list<const void*> pointers) {
  std::uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<std::uintptr_t>(pointer);
  return bits % 16 == 0;
}

// Blocks of kThreads threads for `threads` threads; a grid's first dimension holds 2^31 - 1.
inline unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace protrain::cuda
