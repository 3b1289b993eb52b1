#include "profile/memory.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/error.h"
#include "profile/sample_block.h"

namespace protrain {
namespace {

using profile::SampleBatch;
using profile::SampleWeights;

// Restores the book's mode, whatever happens.
class ModeScope {
 public:
  ModeScope(TraceBook& book, TraceBook::Mode mode) : book_(book), before_(book.mode()) { book.set_mode(mode); }
  ~ModeScope() { book_.set_mode(before_); }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  TraceBook& book_;
  const TraceBook::Mode before_;
};

class Recorder {
 public:
  Recorder(const ModelSpec& spec, std::span<const std::unique_ptr<Block>> blocks, TraceBook& book,
           const RunShape& shape, Device& device)
      : spec_(spec), blocks_(blocks), book_(book), shape_(shape), device_(device), stream_(device.stream("record")) {}

  Stream& stream() { return *stream_; }

  void block(Id id) {
    const SampleWeights weights(spec_, shape_, id, device_.kind(), *stream_);
    warm_ = false;
    for (const BatchShape& batch : shape_.train_shapes) train(id, weights, batch);
    for (const BatchShape& batch : shape_.eval_shapes) {
      const SampleBatch sample(spec_, batch, shape_.compute, device_.kind(), *stream_);
      record([&] { run(id, Pass::kForward, false, weights.bind(true, false), sample, false); });
    }
  }

 private:
  void train(Id id, const SampleWeights& weights, const BatchShape& batch) {
    const SampleBatch sample(spec_, batch, shape_.compute, device_.kind(), *stream_);
    const BlockKind kind = spec_.blocks[static_cast<std::size_t>(id)].kind;
    // A micro-batch that overwrites its gradients, and one that adds.
    for (const bool first : {true, false}) {
      if (!first && shape_.accumulation == 1) continue;
      const auto bound = weights.bind(first, true);
      if (kind != BlockKind::kLayer) {
        record([&] { run(id, Pass::kBackward, false, bound, sample, true); });
        continue;
      }
      for (const bool light : {false, true}) {
        record([&] {
          auto graph = run(id, Pass::kForwardKeep, light, bound, sample, true);
          run(id, Pass::kBackward, light, bound, sample, true, true, std::move(graph));
        });
        if (first) record([&] { run(id, Pass::kForwardKeep, light, bound, sample, true, /*value=*/false); });
      }
    }
    if (kind == BlockKind::kHead) return;
    record([&] { run(id, Pass::kForward, false, weights.bind(true, true), sample, true); });
  }

  // Libraries make their state on first use. CUDA: of every kind of call, up to twice (cuDNN's plans, autograd's own
  // thread). The CPU's keep none that a block's first calls do not make.
  void record(const std::function<void()>& calls) {
    const int warm_ups = device_.kind() == DeviceKind::kCuda ? 2 : warm_ ? 0 : 1;
    for (int i = 0; i < warm_ups; ++i) calls();
    warm_ = true;
    const ModeScope mode(book_, TraceBook::Mode::kRecord);
    calls();
  }

  std::unique_ptr<SavedGraph> run(Id id, Pass pass, bool light, const std::vector<ParameterBytes>& bound,
                                  const SampleBatch& sample, bool training, bool value = true,
                                  std::unique_ptr<SavedGraph> graph = nullptr) {
    const BlockKind kind = spec_.blocks[static_cast<std::size_t>(id)].kind;
    const Context context = sample.context(training);
    BlockCall call;
    call.what = {id, 0, pass, light};
    call.context = &context;
    call.parameters = bound;
    call.stream = stream_.get();
    call.input = kind == BlockKind::kEmbedding ? nullptr : sample.input();
    if (pass != Pass::kBackward || kind == BlockKind::kHead) call.output = value ? sample.output() : nullptr;
    Block& block = *blocks_[static_cast<std::size_t>(id)];
    if (pass != Pass::kBackward) return block.forward(call);
    call.output_gradient = kind == BlockKind::kHead ? nullptr : sample.output_gradient();
    call.input_gradient = kind == BlockKind::kEmbedding ? nullptr : sample.input_gradient();
    block.backward(call, std::move(graph));
    return nullptr;
  }

  const ModelSpec& spec_;
  const std::span<const std::unique_ptr<Block>> blocks_;
  TraceBook& book_;
  const RunShape& shape_;
  Device& device_;
  const std::unique_ptr<Stream> stream_;
  bool warm_ = false;  // this block has run
};

}  // namespace

Profile record_memory(const ModelSpec& spec, std::span<const std::unique_ptr<Block>> blocks, TraceBook& book,
                      const RunShape& shape, Device& device, Bytes tables) {
  PROTRAIN_CHECK(blocks.size() == spec.blocks.size() && book.mode() == TraceBook::Mode::kPlain);
  Profile profile;
  profile.tables = tables;
  {
    Recorder recorder(spec, blocks, book, shape, device);
    profile.library_workspace = make_library_workspaces(recorder.stream(), device.kind(), nullptr, 0);
    std::set<std::string> seen;
    for (Id id = 0; id < static_cast<Id>(spec.blocks.size()); ++id) {
      if (seen.insert(spec.blocks[static_cast<std::size_t>(id)].trace).second) recorder.block(id);
    }
    recorder.stream().synchronize();
  }
  release_plain_memory(device.kind());
  // The book may hold calls of other shapes, from before.
  for (const Profile::Call& call : book.calls()) {
    const auto& shapes = call.key.training ? shape.train_shapes : shape.eval_shapes;
    if (std::ranges::find(shapes, call.key.shape) != shapes.end()) profile.calls.push_back(call);
  }
  // An embedding keeps nothing: its forward is the same whatever it is asked to keep.
  const std::vector<Profile::Call> recorded = profile.calls;
  for (Profile::Call call : recorded) {
    if (call.key.trace != spec.blocks.front().trace || call.key.pass != Pass::kForward || !call.key.training) continue;
    call.key.pass = Pass::kForwardKeep;
    profile.calls.push_back(call);
  }
  return profile;
}

}  // namespace protrain
