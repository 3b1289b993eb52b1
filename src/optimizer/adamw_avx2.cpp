#include <immintrin.h>

#include "optimizer/simd_loops.h"

namespace protrain {
namespace {

struct Avx2Lanes {
  using F = __m256;
  using Mask = __m256;
  static constexpr int kCount = 8;
  static F broadcast(float x) { return _mm256_set1_ps(x); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static Mask less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Mask is_nan(F a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
  static bool any_beyond(F a, F limit) {
    const F magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
    return _mm256_movemask_ps(_mm256_cmp_ps(magnitude, limit, _CMP_NLE_UQ)) != 0;
  }
  static F select(Mask mask, F yes, F no) { return _mm256_blendv_ps(no, yes, mask); }

  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, F x) { _mm256_storeu_ps(to, x); }
  static F load_bf16(const std::uint16_t* from) { return _mm256_castsi256_ps(high(from)); }
  static F load_master(const std::uint16_t* weight, const std::int16_t* residual) {
    return _mm256_castsi256_ps(_mm256_add_epi32(high(weight), _mm256_cvtepi16_epi32(load_halves(residual))));
  }
  static void store_master(std::uint16_t* weight, std::int16_t* residual, F master) {
    const __m256i bits = _mm256_castps_si256(master);
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16);
    const __m256i low = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
    // Packs within each half of the register: weights in 64-bit parts 0 and 2, residuals in 1 and 3.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, low), 0b11'01'10'00);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(weight), _mm256_castsi256_si128(packed));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(residual), _mm256_extracti128_si256(packed, 1));
  }

 private:
  static __m128i load_halves(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static __m256i high(const std::uint16_t* from) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(from)), 16);
  }
};

}  // namespace

constinit const SimdKernels kAvx2Kernels = arithmetic::Loops<Avx2Lanes>::kTable;

}  // namespace protrain
