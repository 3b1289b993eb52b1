// The loops of SimdKernels for any CPU lanes (adamw_arithmetic.h), which add load, store, load_bf16, load_master and
// store_master (of a representable master) to the arithmetic. What is left after the last whole vector goes to the
// scalar table, compiled for every processor.
#pragma once
#include "optimizer/adamw_arithmetic.h"
#include "optimizer/norm_tree.h"
#include "optimizer/simd_kernels.h"

namespace protrain::arithmetic {

template <class L>
struct Loops {
  static constexpr std::int64_t whole(std::int64_t n) { return n - n % L::kCount; }

  // Hardware prefetchers stop at each page of each of the five streams: 512 bytes ahead took the bf16 update from
  // 0.81-0.90 to 0.98-0.99 of the machine's best stream (bench/results/adamw_cpu). A hint: past the end of an array it
  // does nothing.
  static void fetch_ahead(const void* at) {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(at) + 512), 1);
  }

  template <class Weight>
  static StateBytes rest(const StateBytes& state, std::int64_t done) {
    return {static_cast<Weight*>(state.weight) + done,
            state.residual ? state.residual + done : nullptr,
            state.m + done,
            state.v + done,
            static_cast<const Weight*>(state.gradient) + done,
            state.n - done};
  }

  static void adamw_bf16(const AdamWStep& step, float clip_scale, const StateBytes& state) noexcept {
    const Constants<L> constants(step, clip_scale);
    auto* const weight = static_cast<std::uint16_t*>(state.weight);
    const auto* const gradient = static_cast<const std::uint16_t*>(state.gradient);
    const std::int64_t end = whole(state.n);
    for (std::int64_t i = 0; i < end; i += L::kCount) {
      if constexpr (L::kCount > 1) {
        fetch_ahead(weight + i);
        fetch_ahead(state.residual + i);
        fetch_ahead(state.m + i);
        fetch_ahead(state.v + i);
        fetch_ahead(gradient + i);
      }
      auto p = L::load_master(weight + i, state.residual + i);
      auto m = L::load(state.m + i);
      auto v = L::load(state.v + i);
      update<L, true>(constants, L::load_bf16(gradient + i), p, m, v);
      L::store_master(weight + i, state.residual + i, p);
      L::store(state.m + i, m);
      L::store(state.v + i, v);
    }
    if (end < state.n) kScalarKernels.adamw_bf16(step, clip_scale, rest<std::uint16_t>(state, end));
  }

  static void adamw_f32(const AdamWStep& step, float clip_scale, const StateBytes& state) noexcept {
    const Constants<L> constants(step, clip_scale);
    auto* const weight = static_cast<float*>(state.weight);
    const auto* const gradient = static_cast<const float*>(state.gradient);
    const std::int64_t end = whole(state.n);
    for (std::int64_t i = 0; i < end; i += L::kCount) {
      auto p = L::load(weight + i);
      auto m = L::load(state.m + i);
      auto v = L::load(state.v + i);
      update<L, false>(constants, L::load(gradient + i), p, m, v);
      L::store(weight + i, p);
      L::store(state.m + i, m);
      L::store(state.v + i, v);
    }
    if (end < state.n) kScalarKernels.adamw_f32(step, clip_scale, rest<float>(state, end));
  }

  static void split(const float* master, std::uint16_t* weight, std::int16_t* residual, std::int64_t n) noexcept {
    const std::int64_t end = whole(n);
    for (std::int64_t i = 0; i < end; i += L::kCount) {
      L::store_master(weight + i, residual + i, representable<L>(L::load(master + i)));
    }
    if (end < n) kScalarKernels.split(master + end, weight + end, residual + end, n - end);
  }

  static void join(const std::uint16_t* weight, const std::int16_t* residual, float* master, std::int64_t n) noexcept {
    const std::int64_t end = whole(n);
    for (std::int64_t i = 0; i < end; i += L::kCount) L::store(master + i, L::load_master(weight + i, residual + i));
    if (end < n) kScalarKernels.join(weight + end, residual + end, master + end, n - end);
  }

  // Plain loops: the compiler makes vectors of them, and no order of theirs depends on the width.
  static void round_to_bf16(const float* from, std::uint16_t* to, std::int64_t n) noexcept {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto bits = __builtin_bit_cast(std::uint32_t, from[i]);
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      to[i] = static_cast<std::uint16_t>(nan ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
  }

  static double tile_bf16(const std::uint16_t* x, std::int64_t n) noexcept {
    return norm_tree<L>(n, [x](std::int64_t i) {
      const double wide = __builtin_bit_cast(float, static_cast<std::uint32_t>(x[i]) << 16);
      return wide * wide;
    });
  }

  static double tile_f32(const float* x, std::int64_t n) noexcept {
    return norm_tree<L>(n, [x](std::int64_t i) {
      const double wide = x[i];
      return wide * wide;
    });
  }

  static constexpr SimdKernels kTable{adamw_bf16, adamw_f32, split, join, round_to_bf16, tile_bf16, tile_f32};
};

}  // namespace protrain::arithmetic
