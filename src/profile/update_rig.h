// Optimizer state of about a layer, several times over, for timing updates on the device or on the host. Private to
// profile/.
#pragma once
#include <vector>

#include "optimizer/kernels.h"
#include "plan/plan.h"
#include "profile/stopwatch.h"

namespace protrain::profile {

// The arrays that one update of a layer's parameters takes, as the update lanes cut a chunk; about `elements` in all
// where the layer has more. Multiples of 256 elements, as in a chunk.
struct UpdatePieces {
  std::vector<std::int64_t> tensors;    // norms: one each
  std::vector<std::int64_t> stretches;  // updates, rounding: neighbours of equal decay are one
  std::int64_t elements = 0;
};
UpdatePieces layer_pieces(const ModelSpec&, std::int64_t elements);

class UpdateRig {
 public:
  static Bytes bytes(const ModelSpec&, const UpdatePieces&, DType compute, int copies, std::int64_t losses);
  // `memory`: bytes() of the kernels' side, zero, kAlignment aligned; it and all others outlive it. Each piece of work
  // takes the next of `copies` states, so that caches hold no more of it than in a run.
  UpdateRig(const ModelSpec&, const UpdatePieces&, DType compute, int copies, std::int64_t losses, UpdateKernels&,
            std::byte* memory);

  void update(Stream&);
  void round(Stream&);  // both kinds of compute can be asked; only bf16 rounds in a run
  void norm(Stream&);
  void finish_norm(Stream&);  // of the whole model

  double elements() const { return static_cast<double>(pieces_.elements); }

 private:
  StateBytes next();

  const UpdatePieces pieces_;
  const DType compute_;
  const int copies_;
  const std::int64_t parameters_, losses_;
  UpdateKernels& kernels_;
  std::byte* const memory_;
  Bytes copy_bytes_ = 0, tiles_at_ = 0, state_at_ = 0;
  int turn_ = 0;
};

struct UpdateTimes {
  Rates::Linear update, norm, round;
  double finish_norm = 0;
};
// From a layer's pieces and from as many tiny ones. All in about `seconds`.
UpdateTimes update_times(const Device&, Stream&, UpdateRig& layer, UpdateRig& tiny, double seconds);
// The host's, as it is in the middle of a step's updates: time_sustained(), the tiny pieces in `window` at most.
Rates::Linear sustained_update_time(const Device&, Stream&, UpdateRig& layer, UpdateRig& tiny, double settle,
                                    double window);

}  // namespace protrain::profile
