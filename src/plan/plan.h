// The plan (values of all knobs), the chunks it cuts the model into, and the layout of every byte it needs. Plain data
// and pure functions; thread-safe.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "arch/spec.h"
#include "base/dtype.h"
#include "block/batch.h"
#include "device/device.h"
#include "memory/packing.h"
#include "plan/activation.h"
#include "plan/profile.h"

namespace protrain {

// Where a chunk's optimizer state lives and its update runs.
enum class UpdatePlace : std::uint8_t {
  kResident,  // device; needs a chunk that is not streamed
  kCpu,       // host
};

// How a step's micro-batches walk through the blocks. Not neutral: sums of gradients are taken in another order.
enum class Order : std::uint8_t {
  kMicroBatch,  // each micro-batch forward, then backward
  kLayer,       // all micro-batches through a block before the next; backward the exact reverse
};

// What the run needs beside the model, fixed before the plan is made.
struct RunShape {
  DType compute = DType::kF32;           // kF32 or kBf16: weights, activations, gradients on the wire
  std::int64_t accumulation = 1;         // micro-batches a step
  std::vector<BatchShape> train_shapes;  // planned shapes; the layout covers the largest
  std::vector<BatchShape> eval_shapes;
  std::int64_t eval_micro_batches = 1;  // uploaded together
};

// The knobs. All are neutral (they change no bit of the result) but `order`.
//
// Body chunks are numbered in execution order. The first n_persist of them are persistent: an address of their own on
// the device. The others are streamed: number j of them (from 0) always lands in body slot j mod n_buffer. Embedding
// and head chunks always have weight and gradient regions of their own. A chunk of place kCpu has its weight, residual,
// m, v and wire gradient on the host; its gradient leaves the device through gradient slot g mod gradient_slots, where
// g numbers the body chunks of place kCpu in execution order.
struct Plan {
  int schema = 2;
  Bytes chunk_bytes = 64 * kMiB;  // of weights; a chunk holds at least one group
  int n_persist = 0;              // body chunks
  int n_buffer = 0;        // body slots; at least the most streamed chunks that one block touches; 0 if none streams
  int gradient_slots = 0;  // likewise of kCpu body chunks; 0 if there are none
  // Blocks that a transfer of saved sets and inputs may lag or lead their computation by; at least 1.
  int offload_distance = 2;
  Order order = Order::kMicroBatch;
  std::vector<Activation> activation;  // per block of ModelSpec; the embedding's and head's are ignored
  std::vector<UpdatePlace> place;      // per chunk of make_chunks
  Tier state_tier = Tier::kPageable;   // of residual, m and v of kCpu chunks; their weights and gradients are pinned
  Bytes predicted_device_bytes = 0;    // Layout::bytes(kDevice)
};

// Counts of layers by mode, and the interleaved layout: swap blocks early and spaced `swap_interval` apart (nearer
// where they would not all fit), then recompute_host and recompute blocks in the gaps, kept ones last, the light ones
// first. The rest of the layers are kKeep. Error(kConfig) for more than there are.
struct ActivationCounts {
  int swap = 0, keep_light = 0, recompute = 0, recompute_host = 0;
};
std::vector<Activation> interleave(const ModelSpec&, const ActivationCounts&, int swap_interval = 2);
// Everything on the device and kept: the plan that needs no link.
Plan resident_plan(const ModelSpec&, const RunShape&, Bytes chunk_bytes, Activation = Activation::kKeep);

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
  // For the whole run.
  kState,       // index: chunk x kParts + part. Device for kResident chunks, host for kCpu ones (weight and gradient
                // pinned, the rest state_tier). kGradient and kAccumulator of device chunks live while they are needed
  kWeightHome,  // index: chunk. Device weight of a kCpu chunk that is not streamed
  kWeightSlot,  // index: body slot
  kGradientSlot,  // index: gradient slot, wire dtype
  kBatch,         // index: 0, 1 alternating by step; all micro-batches of a step
  kLosses,        // one double a micro-batch
  kNorms,         // index 0: squared norm of each parameter, by id; 1: partial sums of one tensor
  kControl,       // StepControl of this step; index 1: of the losses alone (updates during backward)
  kTables,        // Profile::tables
  kLibrary,       // Profile::library_workspace
  kBatchStaging,  // pinned; index 0, 1: the host side of kBatch
  kResults,       // pinned; StepControl as it came back; index 0, 1: by step slot, 2: of the losses alone
  // While they are needed; several at one address.
  kAccumulator,   // index: chunk. fp32 sum of a kCpu chunk's gradient, before it is rounded into its way out; in fp32
                  // compute with accumulation in kMicroBatch order it is what leaves
  kWireGradient,  // index: chunk. Of a kCpu embedding or head chunk; body chunks use kGradientSlot
  kBlockInput,    // index: micro-batch x blocks + block (from 1); [T, h]. One micro-batch's in kMicroBatch order. After
                  // those, two of evaluation (in kLayer order two a micro-batch), by turns
  kInputGradient,  // likewise; gradient of that block's input
  kSaved,          // likewise; the block's saved set (kept, light, or recomputed)
  kWorkspace,      // index: block x 4 + pass (3: evaluation's forward); blocks of equal trace, both light or both not,
                   // share one entry: the first such block
  kHostInput,      // pinned; as kBlockInput, of kSwap and kRecomputeHost
  kHostSaved,      // pinned; as kSaved, of kSwap
};
std::string_view region_name(Region);
// What a region's bytes are for, in a few words that tables sum by: "weights", "optimizer state", "gradients",
// "activations", "workspace", "batches", "control".
std::string_view region_tag(Region, Id index);

struct RegionKey {
  Region region = Region::kState;
  Id index = 0;
  bool operator==(const RegionKey&) const = default;
};

// Sizes that the optimizer's kernels fix and this layer cannot see; src/runtime checks that they agree.
inline constexpr Bytes kControlBytes = 24;                  // sizeof(StepControl)
inline constexpr std::int64_t kNormPartialElements = 4096;  // kNormTile: elements behind one partial sum (a double)

// Every region of every tier. Entries stand in order of (region, index) and start at multiples of kAlignment. Two may
// share bytes only where their lives in the total order of every graph are disjoint; the accesses of the tasks then put
// edges between them.
struct Layout {
  struct Entry {
    Region region;
    Id index;
    Range range;
    bool whole_run;        // else it is acquired and released by tasks
    bool at_peak = false;  // lives when most bytes of its tier do
  };
  std::vector<Entry> entries;
  // Device: largest sum of bytes (aligned) live at one time; above bytes(kDevice) by less than kAlignment at most.
  Bytes live_bound = 0;

  Range find(Region, Id index = 0) const;  // InternalError when absent
  Range find(const RegionKey& key) const { return find(key.region, key.index); }
  bool contains(Region, Id index) const;
  Bytes bytes(Tier) const;  // largest end offset = peak
};

// Offsets and live_bound of a layout whose entries have sizes: of each tier, the regions of the whole run one after the
// other, above them the others, packed by their lives (by entry, on one clock). Entries that never live are dropped.
void assign_addresses(Layout&, std::vector<std::vector<Interval>> lives, PackEffort = PackEffort::kThorough);

// These parts of all chunks side by side on the device, for the whole run: for a store that no schedule runs over.
// Parts that this compute dtype does not have are left out.
Layout parts_layout(const std::vector<Chunk>&, DType compute, std::span<const Part>);

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

// Which body chunks stream, and where they land. By chunk id; -1 where there is none.
struct Slots {
  std::vector<Id> weight;    // body slot of a streamed chunk
  std::vector<Id> gradient;  // gradient slot of a kCpu body chunk
};
Slots slots(const std::vector<Chunk>&, const Plan&);

// The device bytes that a block's calls read a chunk's weight from, element 0 first.
RegionKey weight_region(const Plan&, const Slots&, Id chunk);

// Where a chunk's gradient lies on the device, element 0 first. Backward writes `sum`; norm, update and the way out
// read `wire`. Equal: nothing is rounded, sum_dtype is the compute dtype; else sum_dtype is kF32.
struct GradientRegions {
  RegionKey sum, wire;
  DType sum_dtype = DType::kF32;
};
GradientRegions gradient_regions(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Plan&,
                                 const Slots&, Id chunk);

// The part of a chunk that one block touches: the elements from its first parameter there to its last.
struct ChunkUse {
  Id chunk = -1;
  std::int64_t offset = 0;
  std::int64_t elements = 0;
};
// By block, chunks ascending.
std::vector<std::vector<ChunkUse>> chunk_uses(const ModelSpec&, const std::vector<Chunk>&);

// The fewest slots that do: the most streamed (kCpu body) chunks that one block touches. The plan's own counts are not
// looked at.
struct SlotNeed {
  int buffer = 0, gradient = 0;
  Id buffer_block = -1, gradient_block = -1;  // a block that touches so many
};
SlotNeed slot_need(const ModelSpec&, const std::vector<Chunk>&, const Plan&);

// Refuses (Error(kConfig)) a plan that this model or run cannot take, naming the knob, its value and what would do: a
// resident update of a streamed chunk, too few slots, sizes that do not match the model. More slots than chunks that
// rotate through them are allowed and take no bytes.
void validate(const ModelSpec&, const std::vector<Chunk>&, const RunShape&, const Plan&);

}  // namespace protrain
