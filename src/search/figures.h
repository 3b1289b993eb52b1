// The numbers of a model, a run and a machine that closed forms are made of, looked up once: what calls cost and keep
// by block and mode, and what a choice of modes adds up to. Internal to search/. Immutable once made.
#pragma once
#include <array>
#include <vector>

#include "schedule/simulate.h"

namespace protrain {

// Seconds of calls when the device rests half of the time and when it never does.
struct CallCost {
  double rested = 0, steady = 0;
  CallCost& operator+=(const CallCost& other) {
    rested += other.rested;
    steady += other.steady;
    return *this;
  }
  // share: of the way from rested to steady, 0..1
  double at(double share) const { return rested + share * (steady - rested); }
};

// One block under one mode, one micro-batch.
struct ModeFigures {
  CallCost forward, backward;  // backward with the forward that runs again
  // Aligned, of the largest planned shape.
  Bytes saved = 0;
  Bytes forward_workspace = 0;
  Bytes recompute_workspace = 0, backward_workspace = 0;
  // What crosses the link each way, of the predicted shape.
  int copies = 0;
  Bytes copied = 0;
};

struct Figures {
  // All outlive it.
  Figures(const ModelSpec&, const RunShape&, const Profile&, const Rates&, const PredictOptions&);

  const ModelSpec& spec;
  const RunShape& shape;
  const Rates& rates;
  const bool clip;
  const Id blocks;
  const double micro_batches;
  std::vector<std::array<ModeFigures, kActivations>> modes;  // by block; of embedding and head all modes are equal
  Bytes activation = 0;                                      // aligned, of the largest training shape
  double upload = 0;                                         // seconds of the batch's way to the device
  double results = 0;                                        // seconds of the control's way back
  Bytes fixed_device = 0;                                    // regions of the whole run that no knob changes, aligned
  Bytes fixed_pinned = 0;                                    // likewise
  Bytes evaluation_peak = 0;                                 // lent bytes of an evaluation in kMicroBatch order
  // Of its steady times, the compute lane works at least this part.
  double least_ratio = 1;
  double slowdown_floor = 1;  // 1 unless some lane makes another one faster

  Bytes element(Part part) const { return size_of(part_dtype(part, shape.compute)); }
  double h2d(double copies, double bytes) const { return copies * rates.h2d.seconds + bytes * rates.h2d.per_unit; }
  double d2h(double copies, double bytes) const { return copies * rates.d2h.seconds + bytes * rates.d2h.per_unit; }
};

// What a mode for each block adds up to.
struct ActivationSums {
  ActivationSums(const Figures&, std::vector<Activation>, Order, int offload_distance);

  std::vector<Activation> modes;  // by block
  // Of one micro-batch.
  CallCost forward, backward;
  std::vector<CallCost> forward_before;  // by block: of the forwards of earlier blocks
  double copies = 0, copied = 0;         // saved sets and inputs, each way
  // Calls of one micro-batch beside which those leave and come back: from the first to the last of their layers, with
  // the distance.
  CallCost beside_out, beside_in;
  double layers_beside_in = 0;  // share of the layers
  // Device bytes lent to activations and workspaces while the block's backward runs, at least; of the last micro-batch
  // (kMicroBatch) or the first of the block's (kLayer).
  std::vector<Bytes> live;
  Bytes forward_peak = 0;  // at least, while the last layer's forward runs
  Bytes pinned = 0;        // at least, at one time
};

}  // namespace protrain
