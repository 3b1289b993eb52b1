#include "runtime/task_runners.h"

#include <functional>
#include <utility>

#include "base/error.h"
#include "runtime/block_runner.h"

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

// Neighbours in a chunk that elementwise work may take as one array: no gap between them, and the same decay.
struct Stretch {
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  bool decay = false;
};
using Stretches = std::vector<std::vector<Stretch>>;  // by chunk

Stretches stretches(const ModelSpec& spec, const std::vector<Chunk>& chunks) {
  Stretches all;
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

// The task's n-th range, as an array.
template <typename T>
T* array(const StepContext& context, const Task& task, std::size_t n) {
  return reinterpret_cast<T*>(context.at(task.access.at(n).range));
}
std::int64_t doubles(const Task& task, std::size_t n) {
  return static_cast<std::int64_t>(task.access.at(n).range.bytes / Bytes{sizeof(double)});
}

void copy(StepContext& context, const Task& task, Stream& stream) {
  const Range& from = task.access.at(0).range;
  const Range& to = task.access.at(1).range;
  PROTRAIN_CHECK(from.bytes == to.bytes, "{}: {} bytes to {}", task.name, from.bytes, to.bytes);
  stream.copy(context.at(to), context.at(from), from.bytes);
  // The host's weight cannot change before this copy has read it, so its version now is that of the bytes.
  if (task.chunk >= 0 && to.tier == Tier::kDevice) context.store.loaded(task.chunk);
}

void round(StepContext& context, const Stretches& pieces, const Task& task, Stream& stream) {
  const auto* sums = array<const float>(context, task, 0);
  auto* wire = array<std::uint16_t>(context, task, 1);
  for (const Stretch& piece : pieces.at(task.chunk)) {
    context.device_kernels.round_gradient(stream, sums + piece.offset, wire + piece.offset, piece.elements);
  }
}

void norm(StepContext& context, const Task& task, Stream& stream) {
  const DType type = context.store.compute();
  const auto* wire = array<const std::byte>(context, task, 0);
  auto* partial = array<double>(context, task, 1);
  auto* norms = reinterpret_cast<double*>(context.at(context.layout.find(Region::kNorms, 0)));
  const Chunk& chunk = context.chunks.at(task.chunk);
  for (std::size_t i = 0; i < chunk.parameters.size(); ++i) {
    const Id id = chunk.parameters[i];
    context.device_kernels.squared_norm(stream, wire + chunk.offsets[i] * size_of(type), type,
                                        context.store.spec().parameters[id].elements(), partial, norms + id);
  }
}

void finish_norm(StepContext& context, const Task& task, Stream& stream) {
  const bool all = task.access.size() > 2;
  context.device_kernels.finish_norm(stream, all ? array<const double>(context, task, 2) : nullptr,
                                     all ? doubles(task, 2) : 0, array<const double>(context, task, 0),
                                     doubles(task, 0), all ? context.max_norm : 0,
                                     array<StepControl>(context, task, 1));
}

void update(StepContext& context, const Stretches& pieces, const Task& task, Stream& stream) {
  ChunkStore& store = context.store;
  const bool on_host = task.lane == Lane::kCpuUpdate;
  UpdateKernels* kernels = on_host ? context.host_kernels : &context.device_kernels;
  PROTRAIN_CHECK(kernels != nullptr, "{}: there are no host kernels", task.name);
  const UpdateScalars& scalars = task.pending ? context.pending_scalars : context.scalars;
  const auto part = [&](Part part, std::int64_t element) {
    const Range home = store.home(task.chunk, part);
    PROTRAIN_CHECK((home.tier != Tier::kDevice) == on_host, "{}: {} is in tier {}", task.name, part_name(part),
                   static_cast<int>(home.tier));
    return store.at(home) + element * size_of(part_dtype(part, store.compute()));
  };
  for (const Stretch& piece : pieces.at(task.chunk)) {
    StateBytes state;
    state.weight = part(Part::kWeight, piece.offset);
    if (store.has(task.chunk, Part::kResidual)) {
      state.residual = reinterpret_cast<std::int16_t*>(part(Part::kResidual, piece.offset));
    }
    state.m = reinterpret_cast<float*>(part(Part::kM, piece.offset));
    state.v = reinterpret_cast<float*>(part(Part::kV, piece.offset));
    state.gradient = part(Part::kGradient, piece.offset);
    state.n = piece.elements;
    kernels->adamw(stream, piece.decay ? scalars.decayed : scalars.plain, array<const StepControl>(context, task, 0),
                   store.compute(), state);
  }
  if (on_host) store.raise_version(task.chunk);
}

}  // namespace

TaskRunners::TaskRunners(StepContext& context) {
  const auto set = [&](Op op, std::unique_ptr<TaskRunner> runner) {
    table_[static_cast<std::size_t>(op)] = runner.get();
    owned_.push_back(std::move(runner));
  };
  const auto function = [&](Op op, FunctionRunner::Function run) {
    set(op, std::make_unique<FunctionRunner>(std::move(run)));
  };
  const auto pieces = std::make_shared<const Stretches>(stretches(context.store.spec(), context.chunks));

  set(Op::kRunBlock, std::make_unique<BlockRunner>(context));
  function(Op::kCopy, [&context](const Task& task, Stream& stream) { copy(context, task, stream); });
  function(Op::kRound, [&context, pieces](const Task& task, Stream& stream) { round(context, *pieces, task, stream); });
  function(Op::kNorm, [&context](const Task& task, Stream& stream) { norm(context, task, stream); });
  function(Op::kFinishNorm, [&context](const Task& task, Stream& stream) { finish_norm(context, task, stream); });
  function(Op::kUpdate,
           [&context, pieces](const Task& task, Stream& stream) { update(context, *pieces, task, stream); });
}

TaskRunners::~TaskRunners() = default;

}  // namespace protrain
