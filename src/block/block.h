// The interface between the runtime and any block: bytes in, bytes out. Implemented by model/, by toys in tests.
//
// A block runs on one thread at a time, with work issued to BlockCall::stream. It owns no parameter and no activation:
// every pointer belongs to the runtime and stays valid until the call's work has completed on the stream. It allocates
// nothing on the device: what it needs beside its results lies in saved and workspace.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "arch/spec.h"
#include "base/dtype.h"
#include "block/batch.h"
#include "device/device.h"

namespace protrain {

// kForward: no graph kept. kForwardKeep: the returned SavedGraph feeds backward. kBackward: gradients; for the head it
// is forward and backward in one go (there is no SavedGraph).
enum class Pass : std::uint8_t { kForward, kForwardKeep, kBackward };

struct Invocation {
  Id block = -1;
  Id micro_batch = 0;
  Pass pass = Pass::kForward;
  bool light = false;  // kForwardKeep and the kBackward of it: only what is dear to compute is saved
};

// Where one parameter's weight is, and where its gradient goes.
struct ParameterBytes {
  const std::byte* weight = nullptr;   // compute dtype
  std::byte* gradient = nullptr;       // gradient_dtype; null in evaluation
  DType gradient_dtype = DType::kF32;  // the wire dtype (= compute dtype), or kF32 = accumulator
  bool first = true;                   // overwrite the gradient (beta 0), else add to it
};

struct Context {
  BatchShape shape;
  const std::byte* batch = nullptr;       // on the device, as batch_layout(shape) says
  const std::byte* host_batch = nullptr;  // the same bytes on the host
  std::uint64_t dropout_key = 0;  // seed and step; masks are a function of it, sample position and operator only
  double loss_scale = 0;          // 1 / supervised tokens of the whole step (all micro-batches, all ranks)
  bool training = true;           // false: no dropout
};

// Shapes, with T = context.shape.tokens() and h = ModelSpec::hidden, compute dtype:
//   layer:     input, output, output_gradient, input_gradient [T, h]
//   embedding: input and input_gradient null; output, output_gradient [T, h]
//   head:      input, input_gradient [T, h]; output = one double: sum of -log p(label) over the supervised tokens of
//   this
//              micro-batch (unscaled); output_gradient null. Gradients are those of loss_scale x that sum.
// output null in kForwardKeep of a layer: only the graph is wanted (recompute), the result's values need not be
// computed.
// saved, workspace: CallMemory of this call (plan/profile.h) at least, aligned to kAlignment; null when that is 0
// bytes.
//   saved is written by kForwardKeep and read by its kBackward, at the same address both times; in between its bytes
//   (and those of input) may have been away. workspace holds anything during the call and nothing after it.
struct BlockCall {
  Invocation what;
  const Context* context = nullptr;
  std::span<const ParameterBytes> parameters;  // as BlockSpec::parameters
  Stream* stream = nullptr;
  const std::byte* input = nullptr;
  const std::byte* output_gradient = nullptr;
  std::byte* output = nullptr;
  std::byte* input_gradient = nullptr;
  std::byte* saved = nullptr;
  std::byte* workspace = nullptr;
};

// Bookkeeping of a kept forward (an autograd graph); its bytes all lie in BlockCall::saved and input.
class SavedGraph {
 public:
  virtual ~SavedGraph() = default;
};

class Block {
 public:
  virtual ~Block() = default;
  virtual const BlockSpec& spec() const = 0;
  virtual std::unique_ptr<SavedGraph> forward(const BlockCall&) = 0;  // null unless kForwardKeep
  virtual void backward(const BlockCall&, std::unique_ptr<SavedGraph>) = 0;
};

}  // namespace protrain
