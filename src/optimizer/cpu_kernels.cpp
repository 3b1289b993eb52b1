#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "optimizer/kernels.h"
#include "optimizer/norm_finish.h"
#include "optimizer/norm_tree.h"
#include "optimizer/simd_kernels.h"

namespace protrain {
namespace {

// Elements that one thread takes at least: 26 bytes each, so starting a thread costs little beside them. A multiple of
// a cache line of 2-byte elements: threads write lines of their own when the arrays are aligned.
constexpr std::int64_t kGrain = 32768;

class CpuKernels final : public UpdateKernels {
 public:
  explicit CpuKernels(ThreadPool& pool) : pool_(pool), simd_(simd_kernels(best_simd())) {}

  void round_gradient(Stream& stream, const float* accumulator, std::uint16_t* gradient, std::int64_t n) override {
    stream.call([=, this] {
      pool_.parallel_for(n, kGrain, [=, this](std::int64_t begin, std::int64_t end) {
        simd_.round_to_bf16(accumulator + begin, gradient + begin, end - begin);
      });
    });
  }

  void squared_norm(Stream& stream, const void* gradient, DType type, std::int64_t n, double* scratch,
                    double* result) override {
    PROTRAIN_CHECK(type == DType::kBf16 || type == DType::kF32, "no norm of {}", safetensors_name(type));
    stream.call([=, this] {
      const std::int64_t tiles = norm_tiles(n);
      pool_.parallel_for(tiles, kGrain / kNormTile, [=, this](std::int64_t begin, std::int64_t end) {
        for (std::int64_t tile = begin; tile < end; ++tile) {
          const std::int64_t first = tile * kNormTile, elements = std::min(kNormTile, n - first);
          scratch[tile] = type == DType::kBf16
                              ? simd_.tile_bf16(static_cast<const std::uint16_t*>(gradient) + first, elements)
                              : simd_.tile_f32(static_cast<const float*>(gradient) + first, elements);
        }
      });
      *result = canonical(norm_tree<CpuKernels>(tiles, [=](std::int64_t tile) { return scratch[tile]; }));
    });
  }

  void finish_norm(Stream& stream, const double* squared_norms, std::int64_t tensors, const double* losses,
                   std::int64_t n_losses, double max_norm, StepControl* control) override {
    stream.call([=] {
      double squares = 0, loss = 0;
      for (std::int64_t i = 0; i < tensors; ++i) squares += squared_norms[i];
      for (std::int64_t i = 0; i < n_losses; ++i) loss += losses[i];
      *control = make_step_control(std::sqrt(squares), loss, max_norm);
    });
  }

  void adamw(Stream& stream, const AdamWStep& step, const StepControl* control, DType compute,
             const StateBytes& state) override {
    PROTRAIN_CHECK(compute == DType::kBf16 || compute == DType::kF32, "no update of {}", safetensors_name(compute));
    const Bytes width = size_of(compute);
    stream.call([&, this] {
      if (control->skip) return;
      const float clip_scale = control->clip_scale;
      pool_.parallel_for(state.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        const StateBytes part{static_cast<std::byte*>(state.weight) + begin * width,
                              state.residual ? state.residual + begin : nullptr,
                              state.m + begin,
                              state.v + begin,
                              static_cast<const std::byte*>(state.gradient) + begin * width,
                              end - begin};
        (compute == DType::kBf16 ? simd_.adamw_bf16 : simd_.adamw_f32)(step, clip_scale, part);
      });
    });
  }

 private:
  ThreadPool& pool_;
  const SimdKernels& simd_;
};

}  // namespace

std::unique_ptr<UpdateKernels> make_cpu_kernels(ThreadPool& pool) { return std::make_unique<CpuKernels>(pool); }

}  // namespace protrain
