#include "runtime/task_runners.h"

#include <array>
#include <functional>
#include <utility>

#include "base/error.h"

namespace protrain {

namespace {

static_assert(sizeof(StepControl) == kControlBytes);
static_assert(kNormTile == kNormPartialElements);

// A runner that is one function of the task.
class FunctionRunner final : public TaskRunner {
 public:
  using Function = std::function<void(const Task&, Stream&)>;
  explicit FunctionRunner(Function function) : function_(std::move(function)) {}
  void run(const Task& task, Stream& stream) override { function_(task, stream); }

 private:
  Function function_;
};

class BlockRunner final : public TaskRunner {
 public:
  explicit BlockRunner(StepContext& context) : context_(context) {
    const ChunkStore& store = context.store;
    for (Id block = 0; block < static_cast<Id>(store.spec().blocks.size()); ++block) {
      bound_.push_back({store.bind(block, false), store.bind(block, true), store.bind(block, false)});
      for (ParameterBytes& parameter : bound_.back()[kNoGradient]) parameter.gradient = nullptr;
    }
  }

  void run(const Task& task, Stream& stream) override {
    const Invocation& what = task.what;
    const auto address = [&](const Range& range) { return range.bytes > 0 ? context_.at(range) : nullptr; };
    const int kind = context_.graph == Graph::kEvaluate ? kNoGradient : what.micro_batch == 0 ? kFirst : kAdding;

    BlockCall call;
    call.what = what;
    call.context = &context_.contexts.at(what.micro_batch);
    call.parameters = bound_.at(what.block)[kind];
    call.stream = &stream;
    call.input = address(task.block.input);
    call.output = address(task.block.output);
    call.output_gradient = address(task.block.output_gradient);
    call.input_gradient = address(task.block.input_gradient);

    Block& block = *context_.blocks.at(what.block);
    auto& saved = context_.saved.at(what.block);
    if (what.pass == Pass::kBackward) {
      block.backward(call, std::move(saved));
      saved = nullptr;
    } else {
      PROTRAIN_CHECK(saved == nullptr, "{} would drop a saved set that no backward has used", task.name);
      saved = block.forward(call);
      PROTRAIN_CHECK(what.pass == Pass::kForwardKeep || saved == nullptr, "{} kept a saved set", task.name);
    }
  }

 private:
  enum { kNoGradient, kFirst, kAdding };
  StepContext& context_;
  std::vector<std::array<std::vector<ParameterBytes>, 3>> bound_;
};

// Neighbours in a chunk that elementwise work may take as one array: no gap between them, and the same decay.
struct Stretch {
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  bool decay = false;
};

std::vector<std::vector<Stretch>> stretches(const ModelSpec& spec, const std::vector<Chunk>& chunks) {
  std::vector<std::vector<Stretch>> all;
  for (const Chunk& chunk : chunks) {
    auto& own = all.emplace_back();
    for (std::size_t i = 0; i < chunk.parameters.size(); ++i) {
      const ParameterSpec& parameter = spec.parameters[chunk.parameters[i]];
      const bool joins = !own.empty() && own.back().decay == parameter.decay &&
                         own.back().offset + own.back().elements == chunk.offsets[i];
      if (joins) {
        own.back().elements += parameter.elements();
      } else {
        own.push_back({chunk.offsets[i], parameter.elements(), parameter.decay});
      }
    }
  }
  return all;
}

}  // namespace

TaskRunners::TaskRunners(StepContext& context) {
  const auto set = [this](Op op, std::unique_ptr<TaskRunner> runner) {
    table_[static_cast<std::size_t>(op)] = runner.get();
    owned_.push_back(std::move(runner));
  };
  const auto function = [&set](Op op, FunctionRunner::Function run) {
    set(op, std::make_unique<FunctionRunner>(std::move(run)));
  };
  const auto part = [&context](Id chunk, Part part, std::int64_t element) {
    return context.store.at(context.store.home(chunk, part)) +
           element * size_of(part_dtype(part, context.store.compute()));
  };
  const auto pieces =
      std::make_shared<const std::vector<std::vector<Stretch>>>(stretches(context.store.spec(), context.chunks));

  set(Op::kRunBlock, std::make_unique<BlockRunner>(context));

  function(Op::kCopy, [&context](const Task& task, Stream& stream) {
    const Range& from = task.access.at(0).range;
    const Range& to = task.access.at(1).range;
    PROTRAIN_CHECK(from.bytes == to.bytes, "{}: {} bytes to {}", task.name, from.bytes, to.bytes);
    stream.copy(context.at(to), context.at(from), from.bytes);
  });

  function(Op::kRound, [&context, part, pieces](const Task& task, Stream& stream) {
    for (const Stretch& piece : pieces->at(task.chunk)) {
      context.kernels.round_gradient(
          stream, reinterpret_cast<const float*>(part(task.chunk, Part::kAccumulator, piece.offset)),
          reinterpret_cast<std::uint16_t*>(part(task.chunk, Part::kGradient, piece.offset)), piece.elements);
    }
  });

  function(Op::kNorm, [&context, part](const Task& task, Stream& stream) {
    const Chunk& chunk = context.chunks.at(task.chunk);
    auto* norms = reinterpret_cast<double*>(context.at(context.layout.find(Region::kNorms, 0)));
    auto* partial = reinterpret_cast<double*>(context.at(context.layout.find(Region::kNorms, 1)));
    for (std::size_t i = 0; i < chunk.parameters.size(); ++i) {
      const Id id = chunk.parameters[i];
      context.kernels.squared_norm(stream, part(task.chunk, Part::kGradient, chunk.offsets[i]), context.store.compute(),
                                   context.store.spec().parameters[id].elements(), partial, norms + id);
    }
  });

  function(Op::kFinishNorm, [&context](const Task&, Stream& stream) {
    const auto* norms = reinterpret_cast<const double*>(context.at(context.layout.find(Region::kNorms, 0)));
    const auto* losses = reinterpret_cast<const double*>(context.at(context.layout.find(Region::kLosses)));
    auto* control = reinterpret_cast<StepControl*>(context.at(context.layout.find(Region::kControl)));
    const auto tensors = static_cast<std::int64_t>(context.store.spec().parameters.size());
    context.kernels.finish_norm(stream, norms, context.graph == Graph::kTrain ? tensors : 0, losses,
                                static_cast<std::int64_t>(context.contexts.size()), context.max_norm, control);
  });

  function(Op::kUpdate, [&context, part, pieces](const Task& task, Stream& stream) {
    const auto* control = reinterpret_cast<const StepControl*>(context.at(context.layout.find(Region::kControl)));
    for (const Stretch& piece : pieces->at(task.chunk)) {
      StateBytes state;
      state.weight = part(task.chunk, Part::kWeight, piece.offset);
      if (context.store.has(task.chunk, Part::kResidual)) {
        state.residual = reinterpret_cast<std::int16_t*>(part(task.chunk, Part::kResidual, piece.offset));
      }
      state.m = reinterpret_cast<float*>(part(task.chunk, Part::kM, piece.offset));
      state.v = reinterpret_cast<float*>(part(task.chunk, Part::kV, piece.offset));
      state.gradient = part(task.chunk, Part::kGradient, piece.offset);
      state.n = piece.elements;
      context.kernels.adamw(stream, piece.decay ? context.decayed : context.plain, control, context.store.compute(),
                            state);
    }
  });
}

TaskRunners::~TaskRunners() = default;

}  // namespace protrain
