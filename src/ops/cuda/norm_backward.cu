// Norm backward with the residual's gradient added and the weight's gradient summed on the way.
//
// Note [Fixed partial sums]
// A block walks rows block, block + grid, ...; its threads own columns and sum the weight gradient of those rows in
// order. The grid is a function of shape only, and reduce_partials adds the blocks' sums by a fixed tree, so the bits
// do not depend on the machine or on what runs beside. No atomics.
#include <cuda_pipeline_primitives.h>

#include "ops/cuda/vector.cuh"

namespace protrain::ops::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks: two for each multiprocessor of the GPU this was tuned on (132), more for narrow rows with few threads each.
constexpr std::int64_t kGrid = 264;

template <typename T>
struct Rows {
  const T* normed_gradient;
  const T* sum;
  const T* weight;
  const T* sum_gradient;
  const float* mean;
  const float* rstd;
  T* input_gradient;
  float* weight_partials;
  float* bias_partials;
  std::int64_t rows;
  int columns;
};

// Sums of a and b over the block, the same bits in each thread. `parts` alternates between rows, so that one barrier is
// enough: a slower thread may still read the last row's.
template <bool kTwo>
__device__ void block_sums(float& a, float& b, float* parts) {
  const int warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  a = warp_sum(a);
  if constexpr (kTwo) b = warp_sum(b);
  if (threadIdx.x % 32 == 0) {
    parts[warp] = a;
    if constexpr (kTwo) parts[kThreads / 32 + warp] = b;
  }
  __syncthreads();
  a = 0;
  b = 0;
  for (int i = 0; i < warps; ++i) {
    a += parts[i];
    if constexpr (kTwo) b += parts[kThreads / 32 + i];
  }
}

// Layer norm: x^ = (s - mean) rstd, g = w dn, ds = rstd (g - mean(g) - x^ mean(g x^)). RMS norm: without mean and
// mean(g). Rows arrive through kStages - 1 asynchronous copies in flight; each thread reads only what it fetched
// itself.
template <typename T, bool kLayer, int kItems, int kStages>
__global__ void __launch_bounds__(kThreads, kItems <= 2 ? 2 : 1) norm_backward_rows(Rows<T> a) {
  constexpr int kPack = kVector<T>;
  extern __shared__ uint4 fetched[];  // [stage][tensor][item][thread]
  __shared__ float parts[2][2 * kThreads / 32];
  const int vectors = a.columns / kPack;
  const auto slot = [&](int stage, int tensor, int item) {
    return fetched + ((stage * 3 + tensor) * kItems + item) * blockDim.x + threadIdx.x;
  };
  const auto fetch = [&](std::int64_t row, int stage) {
    if (row < a.rows) {
      const std::int64_t offset = row * a.columns;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int vector = static_cast<int>(threadIdx.x + i * blockDim.x);
        if (vector < vectors) {
          const std::int64_t at = offset + std::int64_t{vector} * kPack;
          __pipeline_memcpy_async(slot(stage, 0, i), a.normed_gradient + at, 16);
          __pipeline_memcpy_async(slot(stage, 1, i), a.sum + at, 16);
          if (a.sum_gradient != nullptr) __pipeline_memcpy_async(slot(stage, 2, i), a.sum_gradient + at, 16);
        }
      }
    }
    __pipeline_commit();
  };

  Pack<T, kPack> weight[kItems];
  float weight_sum[kItems][kPack] = {}, bias_sum[kLayer ? kItems : 1][kPack] = {};
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int vector = static_cast<int>(threadIdx.x + i * blockDim.x);
    if (vector < vectors) weight[i] = *reinterpret_cast<const Pack<T, kPack>*>(a.weight + vector * kPack);
  }
  for (int s = 0; s < kStages - 1; ++s) fetch(blockIdx.x + std::int64_t{s} * gridDim.x, s);

  int stage = 0, parity = 0;
  float next_rstd = blockIdx.x < a.rows ? a.rstd[blockIdx.x] : 0;
  float next_mean = kLayer && blockIdx.x < a.rows ? a.mean[blockIdx.x] : 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float rstd = next_rstd, mean = next_mean;
    if (row + gridDim.x < a.rows) {
      next_rstd = a.rstd[row + gridDim.x];
      if constexpr (kLayer) next_mean = a.mean[row + gridDim.x];
    }
    fetch(row + std::int64_t{kStages - 1} * gridDim.x, (stage + kStages - 1) % kStages);
    __pipeline_wait_prior(kStages - 1);
    asm volatile("" ::: "memory");  // the wait alone does not keep the compiler from reading the slots before it

    float g[kItems][kPack], hat[kItems][kPack];
    float along = 0, total = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (static_cast<int>(threadIdx.x + i * blockDim.x) < vectors) {
        float w[kPack];
        load(reinterpret_cast<const T*>(slot(stage, 0, i)), g[i]);
        load(reinterpret_cast<const T*>(slot(stage, 1, i)), hat[i]);
        widen_pack(weight[i], w);
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          hat[i][j] = (hat[i][j] - mean) * rstd;
          weight_sum[i][j] += g[i][j] * hat[i][j];
          if constexpr (kLayer) bias_sum[i][j] += g[i][j];
          g[i][j] *= w[j];
          along += g[i][j] * hat[i][j];
          if constexpr (kLayer) total += g[i][j];
        }
      }
    }
    block_sums<kLayer>(along, total, parts[parity]);
    along /= static_cast<float>(a.columns);
    total /= static_cast<float>(a.columns);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int vector = static_cast<int>(threadIdx.x + i * blockDim.x);
      if (vector < vectors) {
        float dx[kPack];
        if (a.sum_gradient != nullptr) {
          load(reinterpret_cast<const T*>(slot(stage, 2, i)), dx);
        } else {
#pragma unroll
          for (int j = 0; j < kPack; ++j) dx[j] = 0;
        }
#pragma unroll
        for (int j = 0; j < kPack; ++j) dx[j] += rstd * (g[i][j] - total - hat[i][j] * along);
        store(a.input_gradient + row * a.columns + std::int64_t{vector} * kPack, dx);
      }
    }
    stage = (stage + 1) % kStages;
    parity ^= 1;
  }
  __pipeline_wait_prior(0);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int vector = static_cast<int>(threadIdx.x + i * blockDim.x);
    if (vector < vectors) {
      const std::int64_t at = std::int64_t{blockIdx.x} * a.columns + std::int64_t{vector} * kPack;
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        a.weight_partials[at + j] = weight_sum[i][j];
        if constexpr (kLayer) a.bias_partials[at + j] = bias_sum[i][j];
      }
    }
  }
}

// Any shape and address. A thread's partial sums lie in memory: only it reads and writes its columns.
template <typename T, bool kLayer>
__global__ void __launch_bounds__(kThreads) norm_backward_any(Rows<T> a) {
  __shared__ float parts[2][2 * kThreads / 32];
  float* weight_sum = a.weight_partials + std::int64_t{blockIdx.x} * a.columns;
  float* bias_sum = kLayer ? a.bias_partials + std::int64_t{blockIdx.x} * a.columns : nullptr;
  for (int c = threadIdx.x; c < a.columns; c += kThreads) {
    weight_sum[c] = 0;
    if constexpr (kLayer) bias_sum[c] = 0;
  }
  int parity = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, parity ^= 1) {
    const std::int64_t offset = row * a.columns;
    const float rstd = a.rstd[row], mean = kLayer ? a.mean[row] : 0;
    float along = 0, total = 0;
    for (int c = threadIdx.x; c < a.columns; c += kThreads) {
      const float dn = widen(a.normed_gradient[offset + c]), hat = (widen(a.sum[offset + c]) - mean) * rstd;
      const float g = dn * widen(a.weight[c]);
      weight_sum[c] += dn * hat;
      if constexpr (kLayer) bias_sum[c] += dn;
      along += g * hat;
      if constexpr (kLayer) total += g;
    }
    block_sums<kLayer>(along, total, parts[parity]);
    along /= static_cast<float>(a.columns);
    total /= static_cast<float>(a.columns);
    for (int c = threadIdx.x; c < a.columns; c += kThreads) {
      const float g = widen(a.normed_gradient[offset + c]) * widen(a.weight[c]);
      const float hat = (widen(a.sum[offset + c]) - mean) * rstd;
      const float through = a.sum_gradient != nullptr ? widen(a.sum_gradient[offset + c]) : 0;
      a.input_gradient[offset + c] = narrow<T>(through + rstd * (g - total - hat * along));
    }
  }
}

int threads_for(std::int64_t vectors) {
  return vectors >= kThreads ? kThreads : static_cast<int>((vectors + 31) / 32 * 32);
}

template <typename T, bool kLayer, int kItems, int kStages>
void launch_rows(const Rows<T>& a, unsigned grid, cudaStream_t stream) {
  const int threads = threads_for(a.columns / kVector<T>);
  const int bytes = kStages * 3 * kItems * threads * 16;
  cudaFuncSetAttribute(norm_backward_rows<T, kLayer, kItems, kStages>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       kStages * 3 * kItems * kThreads * 16);
  norm_backward_rows<T, kLayer, kItems, kStages><<<grid, threads, bytes, stream>>>(a);
}

template <typename T, bool kLayer>
void launch(const Rows<T>& a, bool aligned, unsigned grid, cudaStream_t stream) {
  const std::int64_t vectors = a.columns / kVector<T>;
  if (!aligned || vectors > kThreads * 8) {
    norm_backward_any<T, kLayer><<<grid, kThreads, 0, stream>>>(a);
  } else if (vectors <= kThreads) {
    launch_rows<T, kLayer, 1, 3>(a, grid, stream);
  } else if (vectors <= kThreads * 2) {
    launch_rows<T, kLayer, 2, 3>(a, grid, stream);
  } else if (vectors <= kThreads * 4) {
    launch_rows<T, kLayer, 4, 3>(a, grid, stream);
  } else {
    launch_rows<T, kLayer, 8, 2>(a, grid, stream);
  }
}

}  // namespace

std::int64_t norm_partial_rows(Element element, std::int64_t rows, std::int64_t columns) {
  const std::int64_t vectors = columns / (element == Element::kF32 ? kVector<float> : kVector<Bf16>);
  const std::int64_t grid = vectors <= kThreads / 2 ? 4 * kGrid : vectors <= kThreads ? 2 * kGrid : kGrid;
  return rows < grid ? (rows > 0 ? rows : 1) : grid;
}

void norm_backward(const NormBackward& n, StreamHandle stream) {
  const auto grid = static_cast<unsigned>(norm_partial_rows(n.element, n.rows, n.columns));
  with_element(n.element, [&](auto tag) {
    using T = decltype(tag);
    const Rows<T> a{as<T>(n.normed_gradient),
                    as<T>(n.sum),
                    as<T>(n.weight),
                    as<T>(n.sum_gradient),
                    n.mean,
                    n.rstd,
                    as<T>(n.input_gradient),
                    n.weight_partials,
                    n.bias_partials,
                    n.rows,
                    static_cast<int>(n.columns)};
    const bool aligned = packs<T>(n.columns, {n.normed_gradient, n.sum, n.weight, n.sum_gradient, n.input_gradient});
    if (n.layer) {
      launch<T, true>(a, aligned, grid, stream);
    } else {
      launch<T, false>(a, aligned, grid, stream);
    }
  });
  check_launch("norm_backward");
}

}  // namespace protrain::ops::cuda
