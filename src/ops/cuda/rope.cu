// Rotary positions on the q and k heads of a projection, and the way back for gradients. Pairs are (i, i + rotary_dim /
// 2).
#include "ops/cuda/vector.cuh"

namespace protrain::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 4;  // of a block, so that it has whole warps of work for any number of heads

__device__ inline void turn(float& low, float& high, float cos, float sin) {
  const float a = low * cos - high * sin;
  high = high * cos + low * sin;
  low = a;
}

// kPack entries of a table's row, a multiple of 4 of them; they come from cache, the heads of a token share them.
template <int kPack>
__device__ inline void load_table(const float* from, float (&to)[kPack]) {
#pragma unroll
  for (int j = 0; j < kPack; j += 4) {
    const float4 part = __ldg(reinterpret_cast<const float4*>(from + j));
    to[j] = part.x;
    to[j + 1] = part.y;
    to[j + 2] = part.z;
    to[j + 3] = part.w;
  }
}

// A unit is kPack pairs of one head. Whole heads rotate: rotary_dim == head_dim.
template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads) rotate_packs(HeadsOf shape, RopeTables rope, T* qkv) {
  const int half = shape.head_dim / 2, per_head = half / kPack, turned = shape.heads + shape.kv_heads;
  const int all = turned + shape.kv_heads, per_token = turned * per_head;
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokens;
  for (int unit = threadIdx.x; unit < kTokens * per_token; unit += kThreads) {
    const std::int64_t token = first + unit / per_token;
    if (token >= shape.tokens) return;
    const int in_token = unit % per_token, column = in_token % per_head * kPack;
    T* at = qkv + (token * all + in_token / per_head) * shape.head_dim + column;
    const std::int64_t table = std::int64_t{rope.positions[token]} * half + column;
    float low[kPack], high[kPack], cos[kPack], sin[kPack];
    load(at, low);
    load(at + half, high);
    load_table(rope.cos + table, cos);
    load_table(rope.sin + table, sin);
#pragma unroll
    for (int j = 0; j < kPack; ++j) turn(low[j], high[j], cos[j], sin[j]);
    store(at, low);
    store(at + half, high);
  }
}

// The source of head `head`: q, k or v heads in three arrays.
template <typename T>
__device__ inline const T* source(const HeadsOf& shape, const T* dq, const T* dk, const T* dv, std::int64_t token,
                                  int head) {
  if (head < shape.heads) return dq + (token * shape.heads + head) * shape.head_dim;
  head -= shape.heads;
  if (head < shape.kv_heads) return dk + (token * shape.kv_heads + head) * shape.head_dim;
  return dv + (token * shape.kv_heads + head - shape.kv_heads) * shape.head_dim;
}

template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads)
    rotate_back_packs(HeadsOf shape, RopeTables rope, const T* dq, const T* dk, const T* dv, T* dqkv) {
  const int half = shape.head_dim / 2, per_head = half / kPack, turned = shape.heads + shape.kv_heads;
  const int all = turned + shape.kv_heads, per_token = all * per_head;
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokens;
  for (int unit = threadIdx.x; unit < kTokens * per_token; unit += kThreads) {
    const std::int64_t token = first + unit / per_token;
    if (token >= shape.tokens) return;
    const int in_token = unit % per_token, head = in_token / per_head, column = in_token % per_head * kPack;
    const T* from = source(shape, dq, dk, dv, token, head) + column;
    T* to = dqkv + (token * all + head) * shape.head_dim + column;
    float low[kPack], high[kPack];
    load(from, low);
    load(from + half, high);
    if (head < turned && rope.cos != nullptr) {
      const std::int64_t table = std::int64_t{rope.positions[token]} * half + column;
      float cos[kPack], sin[kPack];
      load_table(rope.cos + table, cos);
      load_table(rope.sin + table, sin);
#pragma unroll
      for (int j = 0; j < kPack; ++j) turn(low[j], high[j], cos[j], -sin[j]);
    }
    store(to, low);
    store(to + half, high);
  }
}

// Any shape: a thread an element pair, or an element past rotary_dim.
template <typename T>
__global__ void __launch_bounds__(kThreads) rotate_any(HeadsOf shape, RopeTables rope, T* qkv) {
  const int half = rope.rotary_dim / 2, turned = shape.heads + shape.kv_heads, all = turned + shape.kv_heads;
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= shape.tokens * turned * half) return;
  const int i = static_cast<int>(index % half), head = static_cast<int>(index / half % turned);
  const std::int64_t token = index / half / turned;
  T* at = qkv + (token * all + head) * shape.head_dim + i;
  const std::int64_t table = std::int64_t{rope.positions[token]} * half + i;
  float low = widen(at[0]), high = widen(at[half]);
  turn(low, high, rope.cos[table], rope.sin[table]);
  at[0] = narrow<T>(low);
  at[half] = narrow<T>(high);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    rotate_back_any(HeadsOf shape, RopeTables rope, const T* dq, const T* dk, const T* dv, T* dqkv) {
  const int half = rope.rotary_dim / 2, turned = shape.heads + shape.kv_heads, all = turned + shape.kv_heads;
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= shape.tokens * all * shape.head_dim) return;
  const int i = static_cast<int>(index % shape.head_dim), head = static_cast<int>(index / shape.head_dim % all);
  const std::int64_t token = index / shape.head_dim / all;
  const T* from = source(shape, dq, dk, dv, token, head);
  float value = widen(from[i]);
  if (head < turned && i < rope.rotary_dim) {
    const std::int64_t table = std::int64_t{rope.positions[token]} * half + i % half;
    float low = i < half ? value : widen(from[i - half]), high = i < half ? widen(from[i + half]) : value;
    turn(low, high, rope.cos[table], -rope.sin[table]);
    value = i < half ? low : high;
  }
  dqkv[index] = narrow<T>(value);
}

template <typename T>
bool whole_packs(const HeadsOf& shape, const RopeTables& rope, std::initializer_list<const void*> addresses) {
  return shape.head_dim % 2 == 0 && packs<T>(shape.head_dim / 2, addresses) &&
         (rope.cos == nullptr || rope.rotary_dim == shape.head_dim);
}

}  // namespace

void rotate(Element element, const HeadsOf& shape, const RopeTables& rope, void* qkv, StreamHandle stream) {
  if (shape.tokens == 0 || rope.cos == nullptr) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    if (whole_packs<T>(shape, rope, {qkv, rope.cos, rope.sin})) {
      rotate_packs<T, kVector<T>><<<blocks_for(shape.tokens, kTokens), kThreads, 0, stream>>>(shape, rope, as<T>(qkv));
    } else {
      const std::int64_t pairs = shape.tokens * (shape.heads + shape.kv_heads) * (rope.rotary_dim / 2);
      rotate_any<<<blocks_for(pairs, kThreads), kThreads, 0, stream>>>(shape, rope, as<T>(qkv));
    }
  });
  check_launch("rotate");
}

void rotate_back(Element element, const HeadsOf& shape, const RopeTables& rope, const void* dq, const void* dk,
                 const void* dv, void* dqkv, StreamHandle stream) {
  if (shape.tokens == 0) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    if (whole_packs<T>(shape, rope, {dq, dk, dv, dqkv, rope.cos, rope.sin})) {
      rotate_back_packs<T, kVector<T>><<<blocks_for(shape.tokens, kTokens), kThreads, 0, stream>>>(
          shape, rope, as<T>(dq), as<T>(dk), as<T>(dv), as<T>(dqkv));
    } else {
      const std::int64_t elements = shape.tokens * (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
      rotate_back_any<<<blocks_for(elements, kThreads), kThreads, 0, stream>>>(shape, rope, as<T>(dq), as<T>(dk),
                                                                               as<T>(dv), as<T>(dqkv));
    }
  });
  check_launch("rotate_back");
}

}  // namespace protrain::ops::cuda
