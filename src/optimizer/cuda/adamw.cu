#include <initializer_list>

#include "optimizer/adamw_arithmetic.h"
#include "optimizer/cuda/launch.h"
#include "optimizer/cuda/packs.cuh"
#include "optimizer/scalar_lanes.h"

namespace protrain::cuda {
namespace {

// Intrinsics: IEEE whatever the compiler's flags are, denormals kept because nothing asks to flush them.
struct CudaLanes {
  using F = float;
  using Mask = bool;
  static __device__ F broadcast(float x) { return x; }
  static __device__ F mul(F a, F b) { return __fmul_rn(a, b); }
  static __device__ F sub(F a, F b) { return __fsub_rn(a, b); }
  static __device__ F fma(F a, F b, F c) { return __fmaf_rn(a, b, c); }
  static __device__ F div(F a, F b) { return __fdiv_rn(a, b); }
  static __device__ F sqrt(F a) { return __fsqrt_rn(a); }
  static __device__ Mask less(F a, F b) { return a < b; }
  static __device__ Mask is_nan(F a) { return a != a; }
  static __device__ bool any_beyond(F a, F limit) { return !(fabsf(a) <= limit); }
  static __device__ F select(Mask mask, F yes, F no) { return mask ? yes : no; }
};

// A thread takes N neighbouring elements: N = 8 makes every bf16 access 16 bytes wide, N = 1 takes any alignment.
template <int N>
__global__ void __launch_bounds__(kThreads)
    adamw_bf16_kernel(AdamWStep step, const StepControl* control, StateBytes s) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  const std::int64_t count = s.n - first;
  if (count <= 0) return;
  const StepControl decided = *control;
  auto* const weights = static_cast<std::uint16_t*>(s.weight) + first;
  auto gradient = load<N>(static_cast<const std::uint16_t*>(s.gradient) + first, count);
  auto weight = load<N>(static_cast<const std::uint16_t*>(weights), count);
  auto residual = load<N>(static_cast<const std::int16_t*>(s.residual + first), count);
  auto m = load<N>(static_cast<const float*>(s.m + first), count);
  auto v = load<N>(static_cast<const float*>(s.v + first), count);
  if (decided.skip) return;  // after the loads, so that they need not wait for the decision's
  const arithmetic::Constants<CudaLanes> constants(step, decided.clip_scale);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    float master = arithmetic::join(weight.at[k], residual.at[k]);
    arithmetic::update<CudaLanes, true>(constants, arithmetic::widen(gradient.at[k]), master, m.at[k], v.at[k]);
    const SplitMaster parts = arithmetic::split(master);
    weight.at[k] = parts.weight;
    residual.at[k] = parts.residual;
  }
  store<N>(weights, weight, count);
  store<N>(s.residual + first, residual, count);
  store<N>(s.m + first, m, count);
  store<N>(s.v + first, v, count);
}

template <int N>
__global__ void __launch_bounds__(kThreads) adamw_f32_kernel(AdamWStep step, const StepControl* control, StateBytes s) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  const std::int64_t count = s.n - first;
  if (count <= 0) return;
  const StepControl decided = *control;
  auto* const weights = static_cast<float*>(s.weight) + first;
  auto gradient = load<N>(static_cast<const float*>(s.gradient) + first, count);
  auto weight = load<N>(static_cast<const float*>(weights), count);
  auto m = load<N>(static_cast<const float*>(s.m + first), count);
  auto v = load<N>(static_cast<const float*>(s.v + first), count);
  if (decided.skip) return;  // after the loads, so that they need not wait for the decision's
  const arithmetic::Constants<CudaLanes> constants(step, decided.clip_scale);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    arithmetic::update<CudaLanes, false>(constants, gradient.at[k], weight.at[k], m.at[k], v.at[k]);
  }
  store<N>(weights, weight, count);
  store<N>(s.m + first, m, count);
  store<N>(s.v + first, v, count);
}

template <int N>
__global__ void __launch_bounds__(kThreads) round_kernel(const float* from, std::uint16_t* to, std::int64_t n) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (first >= n) return;
  const auto wide = load<N>(from + first, n - first);
  Pack<std::uint16_t, N> rounded;
#pragma unroll
  for (int k = 0; k < N; ++k) rounded.at[k] = arithmetic::round_to_bf16(wide.at[k]);
  store<N>(to + first, rounded, n - first);
}

}  // namespace

void launch_adamw(cudaStream_t stream, const AdamWStep& step, const StepControl* control, DType compute,
                  const StateBytes& s) {
  if (s.n == 0) return;
  const bool wide = aligned({s.weight, s.residual, s.m, s.v, s.gradient});
  if (compute == DType::kBf16) {
    if (wide) {
      adamw_bf16_kernel<8><<<blocks_for((s.n + 7) / 8), kThreads, 0, stream>>>(step, control, s);
    } else {
      adamw_bf16_kernel<1><<<blocks_for(s.n), kThreads, 0, stream>>>(step, control, s);
    }
  } else if (wide) {
    adamw_f32_kernel<4><<<blocks_for((s.n + 3) / 4), kThreads, 0, stream>>>(step, control, s);
  } else {
    adamw_f32_kernel<1><<<blocks_for(s.n), kThreads, 0, stream>>>(step, control, s);
  }
  check_launch("adamw");
}

void launch_round(cudaStream_t stream, const float* from, std::uint16_t* to, std::int64_t n) {
  if (n == 0) return;
  if (aligned({from, to})) {
    round_kernel<8><<<blocks_for((n + 7) / 8), kThreads, 0, stream>>>(from, to, n);
  } else {
    round_kernel<1><<<blocks_for(n), kThreads, 0, stream>>>(from, to, n);
  }
  check_launch("round_gradient");
}

}  // namespace protrain::cuda
