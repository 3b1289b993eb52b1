// The one arithmetic of AdamW, for any kind of lanes: float, __m256, __m512, a CUDA thread's float.
//
// Lanes L gives the type F (one or more floats), kCount, and broadcast, mul, sub, fma, div, sqrt, less (ordered),
// is_nan, select(mask, yes, no), any_beyond(x, limit): any |x| above the limit or NaN. Each is one IEEE operation,
// rounded to nearest, denormals kept. Everything here depends on L, and an L is local to its source file: no code made
// with one file's instruction set can be linked into another.
#pragma once
#include "optimizer/adamw.h"

#ifdef __CUDACC__
#define PROTRAIN_HOST_DEVICE __host__ __device__
#else
#define PROTRAIN_HOST_DEVICE
#endif

namespace protrain::arithmetic {

inline constexpr float kCanonicalNan = __builtin_bit_cast(float, 0x7fc00000u);
inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
// The largest master whose rounding to bf16 stays finite: weight 0x7f7f, residual 0x7fff.
inline constexpr float kLargestMaster = __builtin_bit_cast(float, 0x7f7f7fffu);

template <class L>
struct Constants {
  typename L::F clip, lerp, beta2, one_minus_beta2, inverse_bias2, epsilon, keep, minus_rate;
  bool lerp_from_gradient;

  PROTRAIN_HOST_DEVICE Constants(const AdamWStep& step, float clip_scale)
      : clip(L::broadcast(clip_scale)),
        lerp(L::broadcast(step.beta1 < 0.5f ? -step.beta1 : step.one_minus_beta1)),
        beta2(L::broadcast(step.beta2)),
        one_minus_beta2(L::broadcast(step.one_minus_beta2)),
        inverse_bias2(L::broadcast(step.inverse_bias2)),
        epsilon(L::broadcast(step.epsilon)),
        keep(L::broadcast(step.keep)),
        minus_rate(L::broadcast(-step.rate)),
        lerp_from_gradient(step.beta1 < 0.5f) {}
};

// Back ends differ in which NaN an operation returns, so none may be stored as it came.
template <class L>
PROTRAIN_HOST_DEVICE inline typename L::F canonical(typename L::F x) {
  return L::select(L::is_nan(x), L::broadcast(kCanonicalNan), x);
}

// What a master becomes before it is cut into weight and residual: see the rule in adamw.h.
template <class L>
PROTRAIN_HOST_DEVICE inline typename L::F representable(typename L::F x) {
  const auto largest = L::broadcast(kLargestMaster), infinity = L::broadcast(kInfinity);
  const auto least = L::broadcast(-kLargestMaster), minus_infinity = L::broadcast(-kInfinity);
  x = L::select(L::less(largest, x), L::select(L::less(x, infinity), largest, x), x);
  x = L::select(L::less(x, least), L::select(L::less(minus_infinity, x), least, x), x);
  return canonical<L>(x);
}

// p comes out representable() when kSplit.
template <class L, bool kSplit>
PROTRAIN_HOST_DEVICE inline void update(const Constants<L>& c, typename L::F g, typename L::F& p, typename L::F& m,
                                        typename L::F& v) {
  g = L::mul(g, c.clip);
  // m + (1 - beta1)(g - m), or g - beta1 (g - m): from the nearer end, or the far one's rounding would swamp the
  // result.
  m = L::fma(c.lerp, L::sub(g, m), c.lerp_from_gradient ? g : m);
  v = L::fma(L::mul(c.one_minus_beta2, g), g, L::mul(c.beta2, v));
  const auto denominator = L::fma(L::sqrt(v), c.inverse_bias2, c.epsilon);
  p = L::fma(c.minus_rate, L::div(m, denominator), L::mul(c.keep, p));
  // A NaN in m or v is one in p too, so this rare branch is all that the special values cost.
  if (L::any_beyond(p, L::broadcast(kSplit ? kLargestMaster : kInfinity))) {
    m = canonical<L>(m);
    v = canonical<L>(v);
    p = kSplit ? representable<L>(p) : canonical<L>(p);
  }
}

}  // namespace protrain::arithmetic
