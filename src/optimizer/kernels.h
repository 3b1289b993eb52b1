// What the update lanes run, for one device: gradient rounding, norms, AdamW. The CPU and the CUDA one give equal bits.
// Thread-safe as the streams are: one issuing thread a stream. All pointers are device pointers of that device.
//
// The CPU's also update what lies on the host beside a GPU: on a host stream, over a pool of background_cores() threads
// placed by node.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "device/device.h"
#include "optimizer/adamw.h"

namespace protrain {

// Elements of a norm tile. A tile's sum of squares: 256 fp64 lanes, lane l adds elements l, l + 256, ... in order, then
// the lanes are added pairwise at strides 128, 64, ..., 1. A tensor's tile sums are summed by the same tree (lane l
// adds tiles l, l + 256, ...; there may be more than 4096). Elements past the end are not read (they count as +0).
inline constexpr std::int64_t kNormTile = 4096;
constexpr std::int64_t norm_tiles(std::int64_t elements) { return (elements + kNormTile - 1) / kNormTile; }

class UpdateKernels {
 public:
  virtual ~UpdateKernels() = default;
  // gradient[i] = bf16(accumulator[i]), round to nearest even, any NaN to 0x7fc0. The two must not overlap.
  virtual void round_gradient(Stream&, const float* accumulator, std::uint16_t* gradient, std::int64_t n) = 0;
  // Squared norm of one tensor (bf16 or fp32), into *result. scratch: norm_tiles(n) doubles.
  virtual void squared_norm(Stream&, const void* gradient, DType, std::int64_t n, double* scratch, double* result) = 0;
  // control->gradient_norm = sqrt(sum of squared_norms in order), loss_sum = sum of losses in order, clip_scale, skip.
  // max_norm 0 = no clipping. With skip, clip_scale is 1.
  virtual void finish_norm(Stream&, const double* squared_norms, std::int64_t tensors, const double* losses,
                           std::int64_t n_losses, double max_norm, StepControl* control) = 0;
  // Nothing happens when control->skip. `compute` is kBf16 or kF32.
  virtual void adamw(Stream&, const AdamWStep&, const StepControl* control, DType compute, const StateBytes&) = 0;
};

std::unique_ptr<UpdateKernels> make_cpu_kernels(ThreadPool&);  // the pool outlives it
std::unique_ptr<UpdateKernels> make_cuda_kernels();            // Error(kConfig) in a build without CUDA

}  // namespace protrain
