#include "train/profile_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/error.h"

namespace protrain {
namespace {

const BlockSpec& block_of(const ModelSpec& spec, const CallKey& key) {
  const auto block = std::ranges::find_if(spec.blocks, [&](const BlockSpec& one) { return one.trace == key.trace; });
  if (block == spec.blocks.end()) {
    fail(ExitCode::kConfig, "the profile is of another model: this one has no block \"{}\"", key.trace);
  }
  return *block;
}

std::string block_text(const ModelSpec& spec, const CallKey& key) {
  const BlockSpec& block = block_of(spec, key);
  if (block.kind == BlockKind::kEmbedding) return "embedding";
  if (block.kind == BlockKind::kHead) return "head";
  const auto alike = std::ranges::count_if(spec.blocks, [&](const BlockSpec& one) { return one.trace == key.trace; });
  return alike == 1 ? fmt::format("layer {}", block.layer) : fmt::format("layer {} ({} alike)", block.layer, alike);
}

std::string call_text(const CallKey& key) {
  if (!key.training) return "evaluate";
  const std::string_view light = key.light ? ", light" : "";
  switch (key.pass) {
    case Pass::kForward: return "forward";
    case Pass::kForwardKeep: return fmt::format("forward, keep{}", light);
    case Pass::kBackward: return fmt::format("backward{}", light);
  }
  return "";
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }

// A row of a call's memory and `share` of its time.
std::string call_line(const ModelSpec& spec, const Rates::Call& call, const CallMemory& memory, const std::string& name,
                      double share, double flops) {
  const CallKey& key = call.key;
  return fmt::format("{:<22}{:<21}{:<19}{:>11}{:>11}{:>10}{:>12}{:>12}", block_text(spec, key), name,
                     fmt::format("{} x {}{}", key.shape.rows, key.shape.row_tokens, key.shape.packed ? " packed" : ""),
                     milliseconds(call.steady * share), milliseconds(call.rested * share),
                     flops > 0 ? fmt::format("{:.4g}", flops / call.steady / 1e12) : "", format_bytes(memory.saved),
                     format_bytes(memory.workspace));
}

// In the order of execution, training first, the largest shape first. An embedding keeps nothing, so that its
// kForwardKeep is its kForward.
std::vector<Rates::Call> shown_calls(const Rates& rates, const ModelSpec& spec) {
  std::vector<Rates::Call> calls;
  std::ranges::copy_if(rates.calls, std::back_inserter(calls), [&](const Rates::Call& call) {
    return call.key.pass != Pass::kForwardKeep || block_of(spec, call.key).kind != BlockKind::kEmbedding;
  });
  const auto order = [&](const Rates::Call& call) {
    const CallKey& key = call.key;
    return std::tuple(&block_of(spec, key), !key.training, -key.shape.tokens(), -key.shape.row_tokens, key.pass,
                      key.light);
  };
  std::ranges::stable_sort(calls, {}, order);
  return calls;
}

std::string copy_line(std::string_view name, const Rates::Linear& rate) {
  return fmt::format("{:<28}{:>10.2f} GB/s        {:>9.1f} us a copy", name, 1e-9 / rate.per_unit, 1e6 * rate.seconds);
}

std::string update_line(std::string_view name, const Rates::Linear& rate) {
  return fmt::format("{:<28}{:>10.3f} G elements/s{:>9.1f} us a chunk", name, 1e-9 / rate.per_unit, 1e6 * rate.seconds);
}

}  // namespace

double call_flops(const ModelSpec& spec, const CallKey& key) {
  const BlockSpec& block = block_of(spec, key);
  if (block.kind == BlockKind::kEmbedding) return 0;
  const auto tokens = static_cast<double>(key.shape.tokens());
  double forward = 0;
  for (const Id id : block.parameters) {
    const ParameterSpec& parameter = spec.parameters.at(static_cast<std::size_t>(id));
    if (parameter.shape.size() == 2) forward += 2 * static_cast<double>(parameter.elements()) * tokens;
  }
  if (block.kind == BlockKind::kLayer) {  // as ModelSpec::flops_per_token
    forward += 2 * static_cast<double>(spec.attention_width * key.shape.row_tokens) * tokens;
  }
  if (key.pass != Pass::kBackward) return forward;
  return block.kind == BlockKind::kHead ? 3 * forward : 2 * forward;  // the head's is forward and backward in one
}

std::vector<std::string> profile_lines(const StoredProfile& profile, const ModelSpec& spec) {
  const Rates& rates = profile.rates;
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{}{}", rates.source, rates.measured ? "" : " (an estimate)"));
  lines.emplace_back();
  lines.push_back(fmt::format("{:<22}{:<21}{:<19}{:>11}{:>11}{:>10}{:>12}{:>12}", "block", "call", "rows x tokens",
                              "steady ms", "rested ms", "TFLOP/s", "saved", "workspace"));
  for (const Rates::Call& call : shown_calls(rates, spec)) {
    const CallKey& key = call.key;
    const CallMemory& memory = profile.memory.find(key);
    lines.push_back(call_line(spec, call, memory, call_text(key), 1, call_flops(spec, key)));
    if (key.pass != Pass::kForwardKeep) continue;
    // What it leaves out is not known here, so its rate is not either.
    lines.push_back(
        call_line(spec, call, memory, key.light ? "graph alone, light" : "graph alone", call.graph_alone, 0));
  }
  lines.emplace_back();
  lines.push_back(copy_line("host to device", rates.h2d));
  lines.push_back(copy_line("device to host", rates.d2h));
  lines.push_back(update_line("update on the device", rates.gpu_update));
  lines.push_back(update_line("update on the host", rates.cpu_update));
  lines.push_back(update_line("norm", rates.norm));
  lines.push_back(update_line("rounding", rates.round));
  lines.push_back(fmt::format("{:<28}{:>10.1f} us a step", "end of the norm", 1e6 * rates.finish_norm));
  lines.emplace_back();

  constexpr Lane kShown[] = {Lane::kCompute, Lane::kH2d, Lane::kD2h, Lane::kCpuUpdate, Lane::kGpuUpdate};
  std::string header = fmt::format("{:<28}", "takes .. times as long beside");
  for (const Lane lane : kShown) header += fmt::format("{:>12}", lane_name(lane));
  lines.push_back(std::move(header));
  for (const Lane lane : kShown) {
    std::string row = fmt::format("{:<29}", lane_name(lane));
    for (const Lane other : kShown) {
      row += lane == other
                 ? fmt::format("{:>12}", "")
                 : fmt::format("{:>12.2f}",
                               rates.slowdown[static_cast<std::size_t>(lane)][static_cast<std::size_t>(other)]);
    }
    lines.push_back(std::move(row));
  }
  return lines;
}

}  // namespace protrain
