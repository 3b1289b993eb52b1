#include "profile/update_rig.h"

#include <algorithm>

#include "base/error.h"

namespace protrain::profile {
namespace {

constexpr std::int64_t kElementAlignment = kAlignment / 2;  // of 2-byte parts

Bytes control_bytes(const ModelSpec& spec, std::int64_t losses) {
  return kAlignment +
         round_up((static_cast<Bytes>(spec.parameters.size()) + losses) * Bytes{sizeof(double)}, kAlignment);
}

Bytes tile_bytes(const UpdatePieces& pieces) {
  const std::int64_t largest = *std::max_element(pieces.tensors.begin(), pieces.tensors.end());
  return round_up(norm_tiles(largest) * Bytes{sizeof(double)}, kAlignment);
}

Bytes state_bytes(const UpdatePieces& pieces, DType compute) {
  Bytes width = 0;
  for (const Part part : {Part::kWeight, Part::kResidual, Part::kM, Part::kV, Part::kGradient}) {
    width += size_of(part_dtype(part, compute));
  }
  return pieces.elements * width;
}

}  // namespace

UpdatePieces layer_pieces(const ModelSpec& spec, std::int64_t elements) {
  const auto layer = std::find_if(spec.blocks.begin(), spec.blocks.end(),
                                  [](const BlockSpec& one) { return one.kind == BlockKind::kLayer; });
  PROTRAIN_CHECK(layer != spec.blocks.end() && !layer->parameters.empty(), "a model has layers");
  std::int64_t whole = 0;
  for (const Id id : layer->parameters) whole += spec.parameters.at(static_cast<std::size_t>(id)).elements();
  const double scale = std::min(1.0, static_cast<double>(elements) / static_cast<double>(whole));
  UpdatePieces pieces;
  bool decay = false;
  for (const Id id : layer->parameters) {
    const ParameterSpec& parameter = spec.parameters[static_cast<std::size_t>(id)];
    const auto scaled = static_cast<std::int64_t>(scale * static_cast<double>(parameter.elements()));
    const std::int64_t own = round_up(std::max<std::int64_t>(scaled, 1), kElementAlignment);
    pieces.tensors.push_back(own);
    if (pieces.stretches.empty() || decay != parameter.decay) pieces.stretches.push_back(0);
    decay = parameter.decay;
    pieces.stretches.back() += own;
    pieces.elements += own;
  }
  return pieces;
}

Bytes UpdateRig::bytes(const ModelSpec& spec, const UpdatePieces& pieces, DType compute, int copies,
                       std::int64_t losses) {
  return control_bytes(spec, losses) + tile_bytes(pieces) + copies * state_bytes(pieces, compute);
}

UpdateRig::UpdateRig(const ModelSpec& spec, const UpdatePieces& pieces, DType compute, int copies, std::int64_t losses,
                     UpdateKernels& kernels, std::byte* memory)
    : pieces_(pieces),
      compute_(compute),
      copies_(copies),
      parameters_(static_cast<std::int64_t>(spec.parameters.size())),
      losses_(losses),
      kernels_(kernels),
      memory_(memory),
      copy_bytes_(state_bytes(pieces, compute)),
      tiles_at_(control_bytes(spec, losses)),
      state_at_(tiles_at_ + tile_bytes(pieces)) {}

StateBytes UpdateRig::next() {
  std::byte* at = memory_ + state_at_ + turn_ * copy_bytes_;
  turn_ = (turn_ + 1) % copies_;
  const auto take = [&](Part part) {
    std::byte* const own = at;
    at += pieces_.elements * size_of(part_dtype(part, compute_));
    return own;
  };
  StateBytes state;
  state.weight = take(Part::kWeight);
  std::byte* const residual = take(Part::kResidual);
  if (compute_ == DType::kBf16) state.residual = reinterpret_cast<std::int16_t*>(residual);
  state.m = reinterpret_cast<float*>(take(Part::kM));
  state.v = reinterpret_cast<float*>(take(Part::kV));
  state.gradient = take(Part::kGradient);
  return state;
}

void UpdateRig::update(Stream& stream) {
  static const AdamWStep kStep = make_adamw_step({}, 1e-3, 0.1, 1);
  const Bytes width = size_of(compute_);
  StateBytes state = next();
  for (const std::int64_t n : pieces_.stretches) {
    state.n = n;
    kernels_.adamw(stream, kStep, reinterpret_cast<const StepControl*>(memory_), compute_, state);
    state.weight = static_cast<std::byte*>(state.weight) + n * width;
    if (state.residual != nullptr) state.residual += n;
    state.m += n;
    state.v += n;
    state.gradient = static_cast<const std::byte*>(state.gradient) + n * width;
  }
}

void UpdateRig::round(Stream& stream) {
  // The sums lie in m; what the sides hold does not change the time.
  const StateBytes state = next();
  auto* to = static_cast<std::uint16_t*>(const_cast<void*>(state.gradient));
  const float* from = state.m;
  for (const std::int64_t n : pieces_.stretches) {
    kernels_.round_gradient(stream, from, to, n);
    from += n;
    to += n;
  }
}

void UpdateRig::norm(Stream& stream) {
  const StateBytes state = next();
  const auto* from = static_cast<const std::byte*>(state.gradient);
  auto* const tiles = reinterpret_cast<double*>(memory_ + tiles_at_);
  auto* const norms = reinterpret_cast<double*>(memory_ + kAlignment);
  for (const std::int64_t n : pieces_.tensors) {
    kernels_.squared_norm(stream, from, compute_, n, tiles, norms);
    from += n * size_of(compute_);
  }
}

void UpdateRig::finish_norm(Stream& stream) {
  const auto* const norms = reinterpret_cast<const double*>(memory_ + kAlignment);
  kernels_.finish_norm(stream, norms, parameters_, norms + parameters_, losses_, 1,
                       reinterpret_cast<StepControl*>(memory_));
}

namespace {

using Do = void (UpdateRig::*)(Stream&);

Rates::Linear two_points(const Device& device, Stream& stream, UpdateRig& layer, UpdateRig& tiny, Do what,
                         double seconds) {
  const auto time = [&](UpdateRig& rig) {
    return time_alone(device, stream, [&](Stream& on) { (rig.*what)(on); }, seconds);
  };
  const double of_tiny = time(tiny);
  return fit(tiny.elements(), of_tiny, layer.elements(), time(layer));
}

}  // namespace

Rates::Linear sustained_update_time(const Device& device, Stream& stream, UpdateRig& layer, UpdateRig& tiny,
                                    double settle, double window) {
  const double of_tiny = time_alone(device, stream, [&](Stream& on) { tiny.update(on); }, window);
  return fit(tiny.elements(), of_tiny, layer.elements(),
             time_sustained(device, stream, [&](Stream& on) { layer.update(on); }, settle, window));
}

UpdateTimes update_times(const Device& device, Stream& stream, UpdateRig& layer, UpdateRig& tiny, double seconds) {
  constexpr double kTimings = 7;
  const double each = seconds / kTimings;
  UpdateTimes times;
  times.update = two_points(device, stream, layer, tiny, &UpdateRig::update, each);
  times.norm = two_points(device, stream, layer, tiny, &UpdateRig::norm, each);
  times.round = two_points(device, stream, layer, tiny, &UpdateRig::round, each);
  times.finish_norm = time_alone(device, stream, [&](Stream& on) { layer.finish_norm(on); }, each);
  return times;
}

}  // namespace protrain::profile
