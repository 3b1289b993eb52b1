// The sums of kernels.h in their fixed order: one warp a tile, then one block a tensor, then one block a step.
#include <initializer_list>

#include "optimizer/cuda/launch.h"
#include "optimizer/cuda/packs.cuh"
#include "optimizer/kernels.h"
#include "optimizer/norm_finish.h"
#include "optimizer/norm_tree.h"
#include "optimizer/scalar_lanes.h"

namespace protrain::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kLanesPerThread = kNormLanes / kWarp;  // 8 neighbouring lanes: a row of a tile is one wide load a thread

__device__ double widen(float x) { return x; }
__device__ double widen(std::uint16_t bf16) { return arithmetic::widen(bf16); }

// N: elements an access, 8 when the array is aligned for that, else 1.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) tile_kernel(const T* x, std::int64_t n, double* sums) {
  const std::int64_t tile = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int thread = threadIdx.x % kWarp;
  const std::int64_t first = tile * kNormTile + thread * kLanesPerThread;
  if (tile * kNormTile >= n) return;  // whole warps only
  double lanes[kLanesPerThread] = {};
#pragma unroll
  for (int row = 0; row < kNormTile / kNormLanes; ++row) {
#pragma unroll
    for (int lane = 0; lane < kLanesPerThread; lane += N) {
      const std::int64_t at = first + row * kNormLanes + lane;
      const auto values = load<N>(x + at, n - at);  // past the end zero, which changes no sum of squares
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const double value = widen(values.at[k]);
        lanes[lane + k] += value * value;
      }
    }
  }
  // Lane l is lanes[l % 8] of thread l / 8: strides 128 to 8 cross threads, 4 to 1 do not.
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (double& lane : lanes) lane += __shfl_down_sync(0xffffffffu, lane, distance);
  }
#pragma unroll
  for (int stride = kLanesPerThread / 2; stride > 0; stride /= 2) {
#pragma unroll
    for (int k = 0; k < stride; ++k) lanes[k] += lanes[k + stride];
  }
  if (thread == 0) sums[tile] = lanes[0];
}

__global__ void __launch_bounds__(kNormLanes) tensor_kernel(const double* sums, std::int64_t tiles, double* result) {
  __shared__ double lanes[kNormLanes];
  const int lane = threadIdx.x;
  double sum = 0;
#pragma unroll 8
  for (std::int64_t tile = lane; tile < tiles; tile += kNormLanes) sum += sums[tile];
  lanes[lane] = sum;
  for (int stride = kNormLanes / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (lane < stride) lanes[lane] += lanes[lane + stride];
  }
  if (lane == 0) *result = canonical(lanes[0]);
}

// The sum in order, for thread 0; the others only fetch.
__device__ double ordered_sum(const double* values, std::int64_t n) {
  __shared__ double fetched[kThreads];
  double sum = 0;
  for (std::int64_t first = 0; first < n; first += kThreads) {
    __syncthreads();
    if (first + threadIdx.x < n) fetched[threadIdx.x] = values[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int k = 0; k < kThreads && first + k < n; ++k) sum += fetched[k];
    }
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    finish_kernel(const double* squared_norms, std::int64_t tensors, const double* losses, std::int64_t n_losses,
                  double max_norm, StepControl* control) {
  const double squares = ordered_sum(squared_norms, tensors);
  const double loss = ordered_sum(losses, n_losses);
  if (threadIdx.x == 0) *control = make_step_control(__dsqrt_rn(squares), loss, max_norm);
}

template <class T>
void launch_tiles(cudaStream_t stream, const T* x, std::int64_t n, double* sums) {
  const unsigned blocks = blocks_for(norm_tiles(n) * kWarp);
  if (aligned({x})) {
    tile_kernel<T, kLanesPerThread><<<blocks, kThreads, 0, stream>>>(x, n, sums);
  } else {
    tile_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(x, n, sums);
  }
  check_launch("squared_norm");
}

}  // namespace

void launch_squared_norm(cudaStream_t stream, const void* gradient, DType type, std::int64_t n, double* scratch,
                         double* result) {
  if (n > 0 && type == DType::kBf16) launch_tiles(stream, static_cast<const std::uint16_t*>(gradient), n, scratch);
  if (n > 0 && type == DType::kF32) launch_tiles(stream, static_cast<const float*>(gradient), n, scratch);
  tensor_kernel<<<1, kNormLanes, 0, stream>>>(scratch, norm_tiles(n), result);
  check_launch("squared_norm");
}

void launch_finish_norm(cudaStream_t stream, const double* squared_norms, std::int64_t tensors, const double* losses,
                        std::int64_t n_losses, double max_norm, StepControl* control) {
  finish_kernel<<<1, kThreads, 0, stream>>>(squared_norms, tensors, losses, n_losses, max_norm, control);
  check_launch("finish_norm");
}

}  // namespace protrain::cuda
