// Residual add and RMS or layer norm, one pass: a row stays in registers between the sums and the result.
#include "ops/cuda/vector.cuh"

namespace protrain::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Rows {
  const T* x;
  const T* residual;
  const T* weight;
  const T* bias;
  T* sum;
  T* normed;
  float* mean;
  float* rstd;
  std::int64_t rows;
  int columns;
  float epsilon;
};

// Sum over the kRowThreads threads of a row (a warp, or the whole block), the same bits in each.
template <int kRowThreads>
__device__ float row_sum(float x) {
  x = warp_sum(x);
  if constexpr (kRowThreads > 32) {
    __shared__ float parts[kRowThreads / 32];
    __syncthreads();  // the sum before this one has been read
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < kRowThreads / 32; ++i) x += parts[i];
  }
  return x;
}

// columns is a multiple of the pack and at most kItems packs a thread.
template <typename T, bool kLayer, int kRowThreads, int kItems>
__global__ void __launch_bounds__(kThreads) add_norm_rows(Rows<T> a) {
  constexpr int kPack = kVector<T>;
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
  if (row >= a.rows) return;  // whole warps; with one row a block, whole blocks
  const int lane = threadIdx.x % kRowThreads;
  const std::int64_t offset = row * a.columns;
  float value[kItems][kPack];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int column = (lane + i * kRowThreads) * kPack;
    if (column < a.columns) {
      load(a.x + offset + column, value[i]);
    } else {
#pragma unroll
      for (int j = 0; j < kPack; ++j) value[i][j] = 0;
    }
  }
  if (a.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int column = (lane + i * kRowThreads) * kPack;
      if (column < a.columns) {
        float other[kPack];
        load(a.residual + offset + column, other);
#pragma unroll
        for (int j = 0; j < kPack; ++j) value[i][j] = widen(narrow<T>(value[i][j] + other[j]));
        store(a.sum + offset + column, value[i]);
      }
    }
  }
  float mean = 0;
  if constexpr (kLayer) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int j = 0; j < kPack; ++j) total += value[i][j];
    }
    mean = row_sum<kRowThreads>(total) / static_cast<float>(a.columns);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if ((lane + i * kRowThreads) * kPack < a.columns) {
#pragma unroll
        for (int j = 0; j < kPack; ++j) value[i][j] -= mean;
      }
    }
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) squares += value[i][j] * value[i][j];
  }
  const float rstd = rsqrtf(row_sum<kRowThreads>(squares) / static_cast<float>(a.columns) + a.epsilon);
  if (lane == 0 && a.rstd != nullptr) {
    a.rstd[row] = rstd;
    if constexpr (kLayer) a.mean[row] = mean;
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int column = (lane + i * kRowThreads) * kPack;
    if (column < a.columns) {
      float weight[kPack];
      load(a.weight + column, weight);
#pragma unroll
      for (int j = 0; j < kPack; ++j) value[i][j] *= rstd * weight[j];
      if constexpr (kLayer) {
        float bias[kPack];
        load(a.bias + column, bias);
#pragma unroll
        for (int j = 0; j < kPack; ++j) value[i][j] += bias[j];
      }
      store(a.normed + offset + column, value[i]);
    }
  }
}

// Any shape and address: a block a row, which is read again for each sum.
template <typename T, bool kLayer>
__global__ void __launch_bounds__(kThreads) add_norm_any(Rows<T> a) {
  const std::int64_t offset = std::int64_t{blockIdx.x} * a.columns;
  const T* row = a.x + offset;
  if (a.residual != nullptr) {
    for (int c = threadIdx.x; c < a.columns; c += kThreads) {
      a.sum[offset + c] = narrow<T>(widen(a.x[offset + c]) + widen(a.residual[offset + c]));
    }
    row = a.sum + offset;  // each thread reads only what it wrote
  }
  float mean = 0;
  if constexpr (kLayer) {
    float total = 0;
    for (int c = threadIdx.x; c < a.columns; c += kThreads) total += widen(row[c]);
    mean = row_sum<kThreads>(total) / static_cast<float>(a.columns);
  }
  float squares = 0;
  for (int c = threadIdx.x; c < a.columns; c += kThreads) {
    const float x = widen(row[c]) - mean;
    squares += x * x;
  }
  const float rstd = rsqrtf(row_sum<kThreads>(squares) / static_cast<float>(a.columns) + a.epsilon);
  if (threadIdx.x == 0 && a.rstd != nullptr) {
    a.rstd[blockIdx.x] = rstd;
    if constexpr (kLayer) a.mean[blockIdx.x] = mean;
  }
  for (int c = threadIdx.x; c < a.columns; c += kThreads) {
    float x = (widen(row[c]) - mean) * rstd * widen(a.weight[c]);
    if constexpr (kLayer) x += widen(a.bias[c]);
    a.normed[offset + c] = narrow<T>(x);
  }
}

template <typename T, bool kLayer>
void launch(const Rows<T>& a, bool aligned, cudaStream_t stream) {
  const std::int64_t vectors = a.columns / kVector<T>;
  const auto rows = static_cast<unsigned>(a.rows);
  if (!aligned || vectors > kThreads * 8) {
    add_norm_any<T, kLayer><<<rows, kThreads, 0, stream>>>(a);
  } else if (vectors <= 128) {
    add_norm_rows<T, kLayer, 32, 4><<<blocks_for(a.rows, kThreads / 32), kThreads, 0, stream>>>(a);
  } else if (vectors <= 512) {
    add_norm_rows<T, kLayer, kThreads, 2><<<rows, kThreads, 0, stream>>>(a);
  } else if (vectors <= 1024) {
    add_norm_rows<T, kLayer, kThreads, 4><<<rows, kThreads, 0, stream>>>(a);
  } else {
    add_norm_rows<T, kLayer, kThreads, 8><<<rows, kThreads, 0, stream>>>(a);
  }
}

}  // namespace

void add_norm(const NormForward& n, StreamHandle stream) {
  if (n.rows == 0) return;
  with_element(n.element, [&](auto tag) {
    using T = decltype(tag);
    const Rows<T> a{as<T>(n.x),      as<T>(n.residual),
                    as<T>(n.weight), as<T>(n.bias),
                    as<T>(n.sum),    as<T>(n.normed),
                    n.mean,          n.rstd,
                    n.rows,          static_cast<int>(n.columns),
                    n.epsilon};
    const bool aligned = packs<T>(n.columns, {n.x, n.residual, n.weight, n.bias, n.sum, n.normed});
    if (n.layer) {
      launch<T, true>(a, aligned, stream);
    } else {
      launch<T, false>(a, aligned, stream);
    }
  });
  check_launch("add_norm");
}

}  // namespace protrain::ops::cuda
