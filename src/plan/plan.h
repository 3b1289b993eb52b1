// The plan (values of all knobs), the chunks it cuts the model into, and the layout of every byte it needs. Plain data
// and pure functions; thread-safe.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "arch/spec.h"
#include "base/dtype.h"
#include "block/batch.h"
#include "device/device.h"

namespace protrain {

// What a block keeps between its forward and its backward.
enum class Activation : std::uint8_t {
  kKeep,       // its saved set
  kRecompute,  // its input; forward runs again in backward
};

struct Plan {
  int schema = 1;
  Bytes chunk_bytes = 64 * kMiB;       // of weights; a chunk holds at least one group
  std::vector<Activation> activation;  // per block of ModelSpec; the embedding's and head's are ignored
  Bytes predicted_device_bytes = 0;    // Layout::bytes(kDevice)
};

// What the run needs beside the model, fixed before the plan is made.
struct RunShape {
  DType compute = DType::kF32;           // kF32 or kBf16: weights, activations, gradients on the wire
  std::int64_t accumulation = 1;         // micro-batches a step
  std::vector<BatchShape> train_shapes;  // planned shapes; the layout covers the largest
  std::vector<BatchShape> eval_shapes;
  std::int64_t eval_micro_batches = 1;  // uploaded together
};

// Parameters packed in execution order. Offsets are in elements and multiples of 256, so that every part (bf16, int16,
// fp32) of every tensor starts at a multiple of kAlignment; within a group whose members allow it (all but the last are
// multiples of 256 elements) there are no gaps.
struct Chunk {
  BlockKind kind = BlockKind::kLayer;  // body chunks have one size; embedding and head are chunks of their own
  std::vector<Id> parameters;
  std::vector<std::int64_t> offsets;  // in elements
  std::int64_t elements = 0;
};

enum class Part : std::uint8_t { kWeight, kResidual, kM, kV, kGradient, kAccumulator };
inline constexpr int kParts = 6;
DType part_dtype(Part, DType compute);
std::string_view part_name(Part);

enum class Region : std::uint8_t {
  kState,       // index: chunk x kParts + part
  kBlockInput,  // index: block (from 1); [T, h]. Training: one a block. Evaluation alternates between those of 1 and 2
  kInputGradient,  // index: block mod 2; [T, h]: the gradient of that block's input
  kBatch,          // index: 0, 1 alternating by step; all micro-batches of a step
  kLosses,         // one double a micro-batch
  kNorms,          // index 0: squared norm of each parameter, by id; 1: partial sums of one tensor
  kControl,        // StepControl
  kBatchStaging,   // pinned; index 0, 1: the host side of kBatch
  kResults,        // pinned; StepControl as it came back
};
std::string_view region_name(Region);

// Sizes that the optimizer's kernels fix and this layer cannot see; src/runtime checks that they agree.
inline constexpr Bytes kControlBytes = 24;                  // sizeof(StepControl)
inline constexpr std::int64_t kNormPartialElements = 4096;  // kNormTile: elements behind one partial sum (a double)

// Every region of every tier. Entries do not overlap, stand in order of (region, index), and start at multiples of
// kAlignment.
struct Layout {
  struct Entry {
    Region region;
    Id index;
    Range range;
  };
  std::vector<Entry> entries;

  Range find(Region, Id index = 0) const;  // InternalError when absent
  bool contains(Region, Id index) const;
  Bytes bytes(Tier) const;  // largest end offset = peak
};

// Where the parameter is: its chunk and element offset in it.
struct Place {
  Id chunk = -1;
  std::int64_t offset = 0;
};

// Body chunks take whole blocks while they fit; a block larger than a chunk is cut between groups. Where chunk_bytes is
// less than the largest group of a layer, that group sets the size.
std::vector<Chunk> make_chunks(const ModelSpec&, Bytes chunk_bytes, DType compute);
// By parameter id.
std::vector<Place> places(const ModelSpec&, const std::vector<Chunk>&);
// Whether a parameter's gradient is summed in fp32 before it is rounded to the wire dtype: in bf16 compute with
// accumulation, and always for what the embedding and the head touch (token tiles, tied sums). Never in fp32 compute,
// where the gradient on the wire is that sum. The same for all parameters of a chunk.
bool accumulates(const ModelSpec&, const RunShape&, Id parameter);

// Refuses (Error(kConfig)) a plan that this model or run cannot take, with the reason.
void validate(const ModelSpec&, const RunShape&, const Plan&);
Layout layout(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Plan&);

}  // namespace protrain
