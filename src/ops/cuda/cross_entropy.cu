// Loss and its gradient over one tile of logits: a block a row, read once from memory for the running maximum and sum,
// once more (from the second-level cache) to be overwritten by the gradient.
#include "ops/cuda/vector.cuh"

namespace protrain::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kUnroll = 4;  // packs in flight

template <typename T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 2) return __expf(x);
  return expf(x);
}

// Softmax so far: the largest logit and the sum of exp(logit - largest).
struct Running {
  float largest, sum;
};

template <typename T>
__device__ inline Running join(Running a, Running b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, 0};
  // Not contracted, so that join(a, b) and join(b, a) give the same bits.
  return {largest, __fadd_rn(__fmul_rn(a.sum, exponential<T>(a.largest - largest)),
                             __fmul_rn(b.sum, exponential<T>(b.largest - largest)))};
}

template <typename T, int kPack>
__device__ inline Running with_pack(Running running, const float (&value)[kPack]) {
  float largest = value[0];
#pragma unroll
  for (int j = 1; j < kPack; ++j) largest = fmaxf(largest, value[j]);
  if (largest > running.largest) {
    running.sum *= exponential<T>(running.largest - largest);
    running.largest = largest;
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) running.sum += exponential<T>(value[j] - running.largest);
  return running;
}

template <typename T>
__device__ Running over_warp(Running running) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Running other{__shfl_xor_sync(0xffffffffU, running.largest, offset),
                        __shfl_xor_sync(0xffffffffU, running.sum, offset)};
    running = join<T>(running, other);
  }
  return running;
}

// The block's softmax, the same bits in every thread: a fixed tree over lanes, then over warps.
template <typename T>
__device__ Running over_block(Running running) {
  static_assert(kThreads == 32 * 32);
  __shared__ Running parts[32];
  running = over_warp<T>(running);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = running;
  __syncthreads();
  return over_warp<T>(parts[threadIdx.x % 32]);
}

// kPack > 1: rows start at multiples of a pack; the elements of the last, partial pack are taken one by one.
template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(T* logits, const std::int32_t* labels, float* row_losses, std::int64_t vocabulary,
                         std::int64_t row_stride, float scale, bool gradients) {
  T* row = logits + std::int64_t{blockIdx.x} * row_stride;
  const std::int32_t label = labels[blockIdx.x];
  const std::int64_t whole = vocabulary / kPack * kPack;
  constexpr std::int64_t kStep = std::int64_t{kThreads} * kPack;
  if (label < 0) {  // the same for the whole block
    if (threadIdx.x == 0) row_losses[blockIdx.x] = 0;
    if (!gradients) return;
    const float zero[kPack] = {};
    for (std::int64_t c = std::int64_t{threadIdx.x} * kPack; c < whole; c += kStep) store(row + c, zero);
    for (std::int64_t c = whole + threadIdx.x; c < vocabulary; c += kThreads) row[c] = narrow<T>(0);
    return;
  }
  const float label_logit = widen(row[label]);
  Running running{-INFINITY, 0};
  std::int64_t c = std::int64_t{threadIdx.x} * kPack;
  for (; c + (kUnroll - 1) * kStep < whole; c += kUnroll * kStep) {
    Pack<T, kPack> pack[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) pack[u] = *reinterpret_cast<const Pack<T, kPack>*>(row + c + u * kStep);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float value[kPack];
      widen_pack(pack[u], value);
      running = with_pack<T>(running, value);
    }
  }
  for (; c < whole; c += kStep) {
    float value[kPack];
    load(row + c, value);
    running = with_pack<T>(running, value);
  }
  for (std::int64_t tail = whole + threadIdx.x; tail < vocabulary; tail += kThreads) {
    const float value[1] = {widen(row[tail])};
    running = with_pack<T>(running, value);
  }
  running = over_block<T>(running);  // its barrier also separates the reads of label_logit from the writes below
  const float log_sum = logf(running.sum);
  if (threadIdx.x == 0) row_losses[blockIdx.x] = log_sum + (running.largest - label_logit);
  if (!gradients) return;
  const float factor = scale / running.sum;
  const auto gradient = [&](float logit, std::int64_t column) {
    const float p = exponential<T>(logit - running.largest) * factor;
    return column == label ? p - scale : p;
  };
  for (c = std::int64_t{threadIdx.x} * kPack; c + (kUnroll - 1) * kStep < whole; c += kUnroll * kStep) {
    Pack<T, kPack> pack[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) pack[u] = *reinterpret_cast<const Pack<T, kPack>*>(row + c + u * kStep);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float value[kPack];
      widen_pack(pack[u], value);
#pragma unroll
      for (int j = 0; j < kPack; ++j) value[j] = gradient(value[j], c + u * kStep + j);
      store(row + c + u * kStep, value);
    }
  }
  for (; c < whole; c += kStep) {
    float value[kPack];
    load(row + c, value);
#pragma unroll
    for (int j = 0; j < kPack; ++j) value[j] = gradient(value[j], c + j);
    store(row + c, value);
  }
  for (std::int64_t tail = whole + threadIdx.x; tail < vocabulary; tail += kThreads) {
    row[tail] = narrow<T>(gradient(widen(row[tail]), tail));
  }
}

// One block: thread t adds rows t, t + kThreads, ... in order, then a fixed tree.
__global__ void __launch_bounds__(kThreads) sum_losses_kernel(const float* row_losses, std::int64_t rows, double* sum) {
  __shared__ double parts[kThreads];
  double total = 0;
#pragma unroll 4
  for (std::int64_t row = threadIdx.x; row < rows; row += kThreads) total += row_losses[row];
  parts[threadIdx.x] = total;
  for (int stride = kThreads / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (threadIdx.x < stride) parts[threadIdx.x] += parts[threadIdx.x + stride];
  }
  if (threadIdx.x == 0) *sum = parts[0];
}

}  // namespace

void cross_entropy(Element element, void* logits, const std::int32_t* labels, float* row_losses, std::int64_t rows,
                   std::int64_t vocabulary, std::int64_t row_stride, float scale, bool gradients, StreamHandle stream) {
  if (rows == 0) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    if (packs<T>(row_stride, {logits})) {
      cross_entropy_kernel<T, kVector<T>><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
          as<T>(logits), labels, row_losses, vocabulary, row_stride, scale, gradients);
    } else {
      cross_entropy_kernel<T, 1><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
          as<T>(logits), labels, row_losses, vocabulary, row_stride, scale, gradients);
    }
  });
  check_launch("cross_entropy");
}

void sum_losses(const float* row_losses, std::int64_t rows, double* sum, StreamHandle stream) {
  sum_losses_kernel<<<1, kThreads, 0, stream>>>(row_losses, rows, sum);
  check_launch("sum_losses");
}

}  // namespace protrain::ops::cuda
