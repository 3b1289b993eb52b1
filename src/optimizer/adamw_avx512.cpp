// GCC 12's own header leaves the masked-out lanes of unmasked operations "uninitialized" on purpose and warns of it
// (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "optimizer/simd_loops.h"

namespace protrain {
namespace {

struct Avx512Lanes {
  using F = __m512;
  using Mask = __mmask16;
  static constexpr int kCount = 16;
  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static Mask less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static bool any_beyond(F a, F limit) { return _mm512_cmp_ps_mask(_mm512_abs_ps(a), limit, _CMP_NLE_UQ) != 0; }
  static F select(Mask mask, F yes, F no) { return _mm512_mask_blend_ps(mask, no, yes); }

  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F x) { _mm512_storeu_ps(to, x); }
  static F load_bf16(const std::uint16_t* from) { return _mm512_castsi512_ps(high(from)); }
  static F load_master(const std::uint16_t* weight, const std::int16_t* residual) {
    return _mm512_castsi512_ps(_mm512_add_epi32(high(weight), _mm512_cvtepi16_epi32(load_halves(residual))));
  }
  static void store_master(std::uint16_t* weight, std::int16_t* residual, F master) {
    const __m512i bits = _mm512_castps_si512(master);
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weight), _mm512_cvtepi32_epi16(rounded));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(residual), _mm512_cvtepi32_epi16(bits));
  }

 private:
  static __m256i load_halves(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  static __m512i high(const std::uint16_t* from) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(from)), 16);
  }
};

}  // namespace

constinit const SimdKernels kAvx512Kernels = arithmetic::Loops<Avx512Lanes>::kTable;

}  // namespace protrain
