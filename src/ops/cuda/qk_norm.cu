// RMS norm of every q and k head. A group of lanes holds one head in registers; v heads are copied.
#include "ops/cuda/vector.cuh"

namespace protrain::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kGrid = 528;  // blocks of backward; see Note [Fixed partial sums]

template <typename T>
struct HeadNorm {
  HeadsOf shape;
  const T* qkv;
  const T* q_weight;
  const T* k_weight;
  float epsilon;
  T* out;
  float* rstd;        // [tokens, heads + kv_heads]
  const T* gradient;  // backward
  float* q_partials;
  float* k_partials;

  __device__ int normed() const { return shape.heads + shape.kv_heads; }
  __device__ int all() const { return normed() + shape.kv_heads; }
};

// The same bits in all lanes of the group.
template <int kLanes>
__device__ inline float group_sum(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}

// head_dim is a multiple of the pack and at most kLanes packs.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads) qk_norm_groups(HeadNorm<T> a) {
  constexpr int kPack = kVector<T>;
  const int lane = threadIdx.x % kLanes, column = lane * kPack, all = a.all();
  const std::int64_t unit = std::int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  const std::int64_t token = unit / all;
  const int head = static_cast<int>(unit - token * all);
  const bool active = token < a.shape.tokens && column < a.shape.head_dim;
  float value[kPack] = {};
  if (active) load(a.qkv + unit * a.shape.head_dim + column, value);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPack; ++j) squares += value[j] * value[j];
  const float rstd = rsqrtf(group_sum<kLanes>(squares) / static_cast<float>(a.shape.head_dim) + a.epsilon);
  if (!active) return;
  if (head < a.normed()) {
    float weight[kPack];
    load((head < a.shape.heads ? a.q_weight : a.k_weight) + column, weight);
#pragma unroll
    for (int j = 0; j < kPack; ++j) value[j] *= rstd * weight[j];
    if (lane == 0) a.rstd[token * a.normed() + head] = rstd;
  }
  store(a.out + unit * a.shape.head_dim + column, value);
}

template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads) qk_norm_backward_groups(HeadNorm<T> a) {
  constexpr int kPack = kVector<T>, kGroups = kThreads / kLanes;
  __shared__ float parts[kGroups][kLanes * kPack];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, column = lane * kPack, all = a.all();
  const bool holds = column < a.shape.head_dim;
  const std::int64_t units = a.shape.tokens * all;
  float q_weight[kPack] = {}, k_weight[kPack] = {}, q_sum[kPack] = {}, k_sum[kPack] = {};
  if (holds) {
    load(a.q_weight + column, q_weight);
    load(a.k_weight + column, k_weight);
  }
  // The bound is the block's, so that all lanes meet in the shuffles.
  for (std::int64_t base = std::int64_t{blockIdx.x} * kGroups; base < units;
       base += std::int64_t{gridDim.x} * kGroups) {
    const std::int64_t unit = base + group, token = unit / all;
    const int head = static_cast<int>(unit - token * all);
    const bool active = unit < units && holds, normed = head < a.normed(), is_q = head < a.shape.heads;
    float g[kPack] = {}, hat[kPack] = {};
    float rstd = 0, along = 0;
    if (active) {
      load(a.gradient + unit * a.shape.head_dim + column, g);
      if (normed) {
        load(a.qkv + unit * a.shape.head_dim + column, hat);
        rstd = a.rstd[token * a.normed() + head];
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          hat[j] *= rstd;
          const float dw = g[j] * hat[j];
          q_sum[j] += is_q ? dw : 0;
          k_sum[j] += is_q ? 0 : dw;
          g[j] *= is_q ? q_weight[j] : k_weight[j];
          along += g[j] * hat[j];
        }
      }
    }
    along = group_sum<kLanes>(along) / static_cast<float>(a.shape.head_dim);
    if (active) {
      if (normed) {
#pragma unroll
        for (int j = 0; j < kPack; ++j) g[j] = rstd * (g[j] - hat[j] * along);
      }
      store(a.out + unit * a.shape.head_dim + column, g);
    }
  }
  for (int which = 0; which < 2; ++which) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) parts[group][column + j] = which == 0 ? q_sum[j] : k_sum[j];
    __syncthreads();
    float* partials = (which == 0 ? a.q_partials : a.k_partials) + std::int64_t{blockIdx.x} * a.shape.head_dim;
    for (int c = threadIdx.x; c < a.shape.head_dim; c += kThreads) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) total += parts[i][c];
      partials[c] = total;
    }
    __syncthreads();
  }
}

// Any shape and address: a warp a head.
template <typename T>
__global__ void __launch_bounds__(32) qk_norm_any(HeadNorm<T> a) {
  const int all = a.all(), width = a.shape.head_dim;
  const std::int64_t unit = blockIdx.x, token = unit / all;
  const int head = static_cast<int>(unit - token * all);
  const T* from = a.qkv + unit * width;
  float squares = 0;
  for (int c = threadIdx.x; c < width; c += 32) squares += widen(from[c]) * widen(from[c]);
  const float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(width) + a.epsilon);
  const T* weight = head < a.shape.heads ? a.q_weight : a.k_weight;
  for (int c = threadIdx.x; c < width; c += 32) {
    const float x = widen(from[c]);
    a.out[unit * width + c] = narrow<T>(head < a.normed() ? x * rstd * widen(weight[c]) : x);
  }
  if (threadIdx.x == 0 && head < a.normed()) a.rstd[token * a.normed() + head] = rstd;
}

template <typename T>
__global__ void __launch_bounds__(32) qk_norm_backward_any(HeadNorm<T> a) {
  const int all = a.all(), width = a.shape.head_dim;
  float* q_sum = a.q_partials + std::int64_t{blockIdx.x} * width;
  float* k_sum = a.k_partials + std::int64_t{blockIdx.x} * width;
  for (int c = threadIdx.x; c < width; c += 32) q_sum[c] = k_sum[c] = 0;
  for (std::int64_t unit = blockIdx.x; unit < a.shape.tokens * all; unit += gridDim.x) {
    const std::int64_t token = unit / all;
    const int head = static_cast<int>(unit - token * all);
    const bool normed = head < a.normed(), is_q = head < a.shape.heads;
    const T* weight = is_q ? a.q_weight : a.k_weight;
    float* sum = is_q ? q_sum : k_sum;
    const float rstd = normed ? a.rstd[token * a.normed() + head] : 0;
    float along = 0;
    for (int c = threadIdx.x; normed && c < width; c += 32) {
      const float dn = widen(a.gradient[unit * width + c]), hat = widen(a.qkv[unit * width + c]) * rstd;
      sum[c] += dn * hat;
      along += dn * widen(weight[c]) * hat;
    }
    along = warp_sum(along) / static_cast<float>(width);
    for (int c = threadIdx.x; c < width; c += 32) {
      const float dn = widen(a.gradient[unit * width + c]);
      const float hat = widen(a.qkv[unit * width + c]) * rstd;
      a.out[unit * width + c] = narrow<T>(normed ? rstd * (dn * widen(weight[c]) - hat * along) : dn);
    }
  }
}

std::int64_t heads_in(const HeadsOf& shape) { return shape.tokens * (shape.heads + 2 * shape.kv_heads); }

}  // namespace

void qk_norm(Element element, const HeadsOf& shape, const void* qkv, const void* q_weight, const void* k_weight,
             float epsilon, void* out, float* rstd, StreamHandle stream) {
  const std::int64_t units = heads_in(shape);
  if (units == 0) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    const HeadNorm<T> a{shape,      as<T>(qkv), as<T>(q_weight), as<T>(k_weight), epsilon,
                        as<T>(out), rstd,       nullptr,         nullptr,         nullptr};
    const bool aligned = packs<T>(shape.head_dim, {qkv, q_weight, k_weight, out});
    if (aligned && shape.head_dim <= 16 * kVector<T>) {
      qk_norm_groups<T, 16><<<blocks_for(units, kThreads / 16), kThreads, 0, stream>>>(a);
    } else if (aligned && shape.head_dim <= 32 * kVector<T>) {
      qk_norm_groups<T, 32><<<blocks_for(units, kThreads / 32), kThreads, 0, stream>>>(a);
    } else {
      qk_norm_any<T><<<blocks_for(units, 1), 32, 0, stream>>>(a);
    }
  });
  check_launch("qk_norm");
}

std::int64_t qk_norm_partial_rows(const HeadsOf& shape) {
  const std::int64_t blocks = (heads_in(shape) + 15) / 16;
  return blocks < 1 ? 1 : blocks < kGrid ? blocks : kGrid;
}

void qk_norm_backward(Element element, const HeadsOf& shape, const void* gradient, const void* qkv,
                      const void* q_weight, const void* k_weight, const float* rstd, void* dqkv, float* q_partials,
                      float* k_partials, StreamHandle stream) {
  const auto grid = static_cast<unsigned>(qk_norm_partial_rows(shape));
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    const HeadNorm<T> a{shape,      as<T>(qkv),  as<T>(q_weight),          as<T>(k_weight),
                        0,          as<T>(dqkv), const_cast<float*>(rstd), as<T>(gradient),
                        q_partials, k_partials};
    const bool aligned = packs<T>(shape.head_dim, {gradient, qkv, q_weight, k_weight, dqkv});
    if (aligned && shape.head_dim <= 16 * kVector<T>) {
      qk_norm_backward_groups<T, 16><<<grid, kThreads, 0, stream>>>(a);
    } else if (aligned && shape.head_dim <= 32 * kVector<T>) {
      qk_norm_backward_groups<T, 32><<<grid, kThreads, 0, stream>>>(a);
    } else {
      qk_norm_backward_any<T><<<grid, 32, 0, stream>>>(a);
    }
  });
  check_launch("qk_norm_backward");
}

}  // namespace protrain::ops::cuda
