// Element access shared by the kernels: 16-byte packs of fp32 or bf16, widened to fp32; sums over a warp.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "ops/kernels.h"

namespace protrain::ops::cuda {

void check_launch(const char* kernel);  // InternalError naming kernel and reason

using Bf16 = __nv_bfloat16;

template <typename T>
inline constexpr int kVector = 16 / sizeof(T);

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Bf16 x) { return __bfloat162float(x); }
template <typename T>
__device__ T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline Bf16 narrow<Bf16>(float x) {
  return __float2bfloat16(x);
}

template <typename T, int N>
__device__ inline void widen_pack(const Pack<T, N>& pack, float (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = widen(pack.value[i]);
}

template <typename T, int N>
__device__ inline void load(const T* from, float (&to)[N]) {
  widen_pack(*reinterpret_cast<const Pack<T, N>*>(from), to);
}

template <typename T, int N>
__device__ inline void store(T* to, const float (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.value[i] = narrow<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// The sum over the warp, the same bits in every lane: x_i + x_j is symmetric.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}

// 16-byte access is possible: rows are whole packs and every address (null allowed) is a multiple of 16.
template <typename T>
bool packs(std::int64_t columns, std::initializer_list<const void*> addresses) {
  if (columns % kVector<T> != 0) return false;
  for (const void* address : addresses) {
    if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return false;
  }
  return true;
}

// fn(T{}) with the element's type.
template <typename F>
void with_element(Element element, const F& fn) {
  if (element == Element::kF32) {
    fn(float{});
  } else {
    fn(Bf16{});
  }
}

template <typename T>
const T* as(const void* p) {
  return static_cast<const T*>(p);
}
template <typename T>
T* as(void* p) {
  return static_cast<T*>(p);
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace protrain::ops::cuda
