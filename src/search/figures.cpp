#include "search/figures.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"

namespace protrain {

namespace {

Bytes aligned(Bytes bytes) { return round_up(bytes, kAlignment); }

// Lanes that tasks of today run on.
constexpr std::array kWorking = {Lane::kCompute, Lane::kH2d, Lane::kD2h, Lane::kCpuUpdate, Lane::kGpuUpdate};

BatchShape predicted_batch(const RunShape& shape, const PredictOptions& options) {
  if (options.batch.tokens() > 0) return options.batch;
  return *std::max_element(shape.train_shapes.begin(), shape.train_shapes.end(),
                           [](const BatchShape& a, const BatchShape& b) { return a.tokens() < b.tokens(); });
}

// The modes of blocks of one trace.
class ModesOfTrace {
 public:
  ModesOfTrace(const ModelSpec& spec, const RunShape& shape, const Profile& profile, const Rates& rates,
               const BatchShape& batch, const BlockSpec& block)
      : shape_(shape), profile_(profile), rates_(rates), batch_(batch), block_(block) {
    activation_ = batch.tokens() * spec.hidden * size_of(shape.compute);
  }

  std::array<ModeFigures, kActivations> all() const {
    std::array<ModeFigures, kActivations> result;
    if (block_.kind != BlockKind::kLayer) {
      result.fill(one(traits(Activation::kKeep)));
      return result;
    }
    for (int mode = 0; mode < kActivations; ++mode) result[mode] = one(traits(static_cast<Activation>(mode)));
    return result;
  }

 private:
  CallCost seconds(Pass pass, bool light) const {
    const Rates::Call& call = rates_.find({block_.trace, pass, light, batch_, true});
    return {call.rested, call.steady};
  }
  CallCost recompute_seconds(bool light) const {
    const Rates::Call& call = rates_.find({block_.trace, Pass::kForwardKeep, light, batch_, true});
    return {call.rested * call.graph_alone, call.steady * call.graph_alone};
  }
  Bytes largest(Pass pass, bool light, Bytes CallMemory::* what) const {
    Bytes most = 0;
    for (const BatchShape& batch : shape_.train_shapes) {
      most = std::max(most, profile_.find({block_.trace, pass, light, batch, true}).*what);
    }
    return aligned(most);
  }

  ModeFigures one(const ActivationTraits& mode) const {
    ModeFigures figures;
    const bool head = block_.kind == BlockKind::kHead;
    figures.backward = seconds(Pass::kBackward, mode.light);
    figures.backward_workspace = largest(Pass::kBackward, mode.light, &CallMemory::workspace);
    if (head) return figures;
    figures.saved = largest(Pass::kForwardKeep, mode.light, &CallMemory::saved);
    if (mode.recompute) {
      figures.forward = seconds(Pass::kForward, false);
      figures.forward_workspace = largest(Pass::kForward, false, &CallMemory::workspace);
      figures.backward += recompute_seconds(mode.light);
      figures.recompute_workspace = largest(Pass::kForwardKeep, mode.light, &CallMemory::workspace);
    } else {
      figures.forward = seconds(Pass::kForwardKeep, mode.light);
      figures.forward_workspace = largest(Pass::kForwardKeep, mode.light, &CallMemory::workspace);
    }
    const Bytes saved = profile_.find({block_.trace, Pass::kForwardKeep, mode.light, batch_, true}).saved;
    if (mode.offload_saved && saved > 0) {
      ++figures.copies;
      figures.copied += saved;
    }
    if (mode.offload_input) {
      ++figures.copies;
      figures.copied += activation_;
    }
    return figures;
  }

  const RunShape& shape_;
  const Profile& profile_;
  const Rates& rates_;
  const BatchShape& batch_;
  const BlockSpec& block_;
  Bytes activation_ = 0;
};

// As src/schedule/regions.cpp counts them.
void add_fixed(const ModelSpec& spec, const RunShape& shape, const Profile& profile, Figures& figures) {
  std::int64_t largest = 0;
  for (const ParameterSpec& parameter : spec.parameters) largest = std::max(largest, parameter.elements());
  const auto doubles = [](std::int64_t count) { return aligned(count * Bytes{sizeof(double)}); };
  figures.fixed_device += doubles(static_cast<std::int64_t>(spec.parameters.size()));
  figures.fixed_device += doubles(ceil_div(largest, kNormPartialElements));
  figures.fixed_device += doubles(std::max(shape.accumulation, shape.eval_micro_batches));
  figures.fixed_device += aligned(kControlBytes) + aligned(profile.tables) + aligned(profile.library_workspace);
  Bytes batch = 0;
  for (const BatchShape& one : shape.train_shapes) {
    batch = std::max(batch, batch_layout(one).bytes * shape.accumulation);
  }
  for (const BatchShape& one : shape.eval_shapes) {
    batch = std::max(batch, batch_layout(one).bytes * shape.eval_micro_batches);
  }
  figures.fixed_device += 2 * aligned(batch);
  figures.fixed_pinned += 2 * aligned(batch) + 2 * aligned(kControlBytes);
  for (const BatchShape& one : shape.eval_shapes) {
    const Bytes activation = aligned(one.tokens() * spec.hidden * size_of(shape.compute));
    for (const BlockSpec& block : spec.blocks) {
      const Bytes workspace = profile.find({block.trace, Pass::kForward, false, one, false}).workspace;
      const int activations = block.kind == BlockKind::kLayer ? 2 : 1;
      figures.evaluation_peak = std::max(figures.evaluation_peak, aligned(workspace) + activations * activation);
    }
  }
}

}  // namespace

Figures::Figures(const ModelSpec& spec_in, const RunShape& shape_in, const Profile& profile, const Rates& rates_in,
                 const PredictOptions& options)
    : spec(spec_in),
      shape(shape_in),
      rates(rates_in),
      clip(options.clip),
      blocks(static_cast<Id>(spec.blocks.size())),
      micro_batches(static_cast<double>(shape.accumulation)) {
  const BatchShape batch = predicted_batch(shape, options);
  std::map<std::pair<std::string, BlockKind>, std::array<ModeFigures, kActivations>> known;
  double faster = 1;
  for (const BlockSpec& block : spec.blocks) {
    const auto [found, fresh] = known.try_emplace({block.trace, block.kind});
    if (fresh) found->second = ModesOfTrace(spec, shape, profile, rates, batch, block).all();
    modes.push_back(found->second);
  }
  for (const Rates::Call& call : rates.calls) {
    if (call.steady > 0) faster = std::min(faster, call.rested / call.steady);
  }
  for (const BatchShape& one : shape.train_shapes) {
    activation = std::max(activation, aligned(one.tokens() * spec.hidden * size_of(shape.compute)));
  }
  upload = h2d(1, static_cast<double>(batch_layout(batch).bytes) * micro_batches);
  results = d2h(1, kControlBytes);
  add_fixed(spec, shape, profile, *this);
  double fastest = 1;
  for (const Lane a : kWorking) {
    double floor = 1;
    for (const Lane b : kWorking) {
      const double factor = a == b ? 1 : rates.slowdown[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
      floor *= std::min(1.0, factor);
    }
    fastest = std::min(fastest, floor);
  }
  slowdown_floor = fastest;
  least_ratio = faster * fastest;
}

namespace {

// The most host bytes that saved sets and inputs take at one time: their lives as src/schedule/loads.cpp sets them,
// from the copy out to the copy in.
Bytes host_peak(const Figures& figures, const std::vector<Activation>& modes, Order order, int distance) {
  const bool layer = order == Order::kLayer;
  const std::int64_t sets = layer ? figures.shape.accumulation : 1;
  const std::int64_t turn = (figures.blocks - 1) * sets;  // number of the head's visit
  std::vector<Bytes> change(static_cast<std::size_t>(2 * figures.blocks * sets + 2), 0);
  for (Id block = 1; block + 1 < figures.blocks; ++block) {
    const ActivationTraits& mode = traits(modes[block]);
    if (!mode.offload_saved && !mode.offload_input) continue;
    const ModeFigures& figure = figures.modes[block][static_cast<std::size_t>(modes[block])];
    const Bytes bytes = (mode.offload_saved ? figure.saved : 0) + (mode.offload_input ? figures.activation : 0);
    for (std::int64_t m = 0; m < sets; ++m) {
      const std::int64_t forward = block * sets + m;
      const std::int64_t backward = turn + (figures.blocks - 1 - block) * sets + (sets - 1 - m);
      const std::int64_t out = std::min(forward + 1 + distance, backward);
      const std::int64_t in = std::max(backward - distance, out);
      change[static_cast<std::size_t>(out)] += bytes;
      change[static_cast<std::size_t>(in) + 1] -= bytes;
    }
  }
  Bytes most = 0;
  Bytes now = 0;
  for (const Bytes each : change) most = std::max(most, now += each);
  return most;
}

}  // namespace

ActivationSums::ActivationSums(const Figures& figures, std::vector<Activation> modes_in, Order order, int distance)
    : modes(std::move(modes_in)) {
  const bool layer_order = order == Order::kLayer;
  const Bytes sets = layer_order ? figures.shape.accumulation : 1;
  const Bytes activation = figures.activation;
  const Id blocks = figures.blocks;
  forward_before.reserve(static_cast<std::size_t>(blocks));
  live.assign(static_cast<std::size_t>(blocks), 0);
  bool offloads = false;
  Bytes kept = 0;  // inputs and saved sets of earlier blocks, of one micro-batch
  for (Id block = 0; block < blocks; ++block) {
    const bool layer = figures.spec.blocks[block].kind == BlockKind::kLayer;
    const Activation chosen = layer ? modes[block] : Activation::kKeep;
    const ActivationTraits& mode = traits(chosen);
    const ModeFigures& figure = figures.modes[block][static_cast<std::size_t>(chosen)];
    forward_before.push_back(forward);
    forward += figure.forward;
    backward += figure.backward;
    copies += figure.copies;
    copied += static_cast<double>(figure.copied);
    offloads = offloads || mode.offload_saved || mode.offload_input;

    // Its own input and saved set are there; of the other micro-batches where they stay.
    const Bytes input = block > 0 ? activation : 0;
    const Bytes stays_saved = mode.recompute || mode.offload_saved ? 0 : figure.saved;
    const Bytes stays = stays_saved + (mode.offload_input ? 0 : input);
    const Bytes own = input + figure.saved + (sets - 1) * stays;
    const Bytes output_gradients = block + 1 < blocks ? sets * activation : 0;
    const Bytes call = std::max((block > 0 ? activation : 0) + figure.backward_workspace, figure.recompute_workspace);
    live[block] = sets * kept + own + output_gradients + call;
    // A forward: what earlier blocks keep, its input, what it keeps, its output.
    if (block + 1 < blocks) {
      const Bytes peak =
          sets * kept + input + (mode.recompute ? 0 : figure.saved) + activation + figure.forward_workspace;
      forward_peak = std::max(forward_peak, peak);
    }
    kept += stays;
  }
  if (!offloads) return;
  pinned = host_peak(figures, modes, order, distance);
  const auto away = [this, &figures](Id block) {
    const ActivationTraits& mode = traits(modes[block]);
    return figures.spec.blocks[block].kind == BlockKind::kLayer && (mode.offload_saved || mode.offload_input);
  };
  Id first = 0;
  while (!away(first)) ++first;
  Id last = blocks - 1;
  while (!away(last)) --last;
  last = std::min<Id>(last + static_cast<Id>(distance / sets), blocks - 1);
  for (Id block = first + 1; block <= last; ++block) {
    const ModeFigures& figure = figures.modes[block][static_cast<std::size_t>(modes[block])];
    beside_out += figure.forward;
    beside_in += figure.backward;
    layers_beside_in += 1 / static_cast<double>(blocks);
  }
}

}  // namespace protrain
