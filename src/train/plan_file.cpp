#include "train/plan_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/plan_json.h"

namespace protrain {
namespace {

constexpr Bytes kSeen = 1000;  // what is less than so many parts of a tier is not told apart
constexpr Tier kTiers[] = {Tier::kDevice, Tier::kPinned, Tier::kPageable};

}  // namespace

std::string plan_file(const RunPlan& run, const ModelSpec& spec) {
  using nlohmann::ordered_json;
  ordered_json root = ordered_json::parse(plan_json(run.plan, run.layout));
  ordered_json memory;
  for (const Tier tier : kTiers) {
    ordered_json tags = ordered_json::object();
    for (const auto& [tag, bytes] : bytes_by_tag(run.layout, tier)) tags[std::string(tag)] = bytes;
    memory[std::string(tier_name(tier))] = {{"planned_bytes", run.layout.bytes(tier)}, {"by_tag", tags}};
  }
  memory["device"]["live_bound_bytes"] = std::min(run.layout.live_bound, run.layout.bytes(Tier::kDevice));
  memory["device"]["limit_bytes"] = run.limits.device + run.limits.outside;
  memory["device"]["outside_bytes"] = run.limits.outside;
  memory["host"] = {{"process_bytes", run.limits.process},
                    {"planned_bytes", host_need(MemoryNeed(run.layout), run.limits)},
                    {"limit_bytes", run.limits.host},
                    {"reserve_bytes", run.host_reserve},
                    {"before_plan_bytes", run.host_before}};
  memory["state_bytes"] = state_bytes(spec, run.shape.compute);
  const SearchResult& found = run.found;
  ordered_json lanes = ordered_json::object();
  for (int lane = 0; lane < kLanes; ++lane) {
    if (const double busy = found.prediction.busy[lane]; busy > 0) {
      lanes[std::string(lane_name(static_cast<Lane>(lane)))] = busy;
    }
  }
  ordered_json prediction = {{"step_seconds", found.prediction.step_seconds},
                             {"tokens_per_second", predicted_tokens_per_second(run)},
                             {"lanes", lanes},
                             {"measured", run.rates.measured},
                             {"source", run.rates.source},
                             {"binding", found.binding},
                             {"runner_up", nullptr},
                             {"search",
                              {{"space", found.space},
                               {"bounded", found.bounded},
                               {"simulated", found.simulated},
                               {"seconds", found.seconds}}}};
  if (found.runner_up) {
    prediction["runner_up"] = {{"step_seconds", found.runner_up->step_seconds}, {"why", found.runner_up->why}};
  }
  ordered_json layout = std::move(root["layout"]);
  root.erase("layout");
  root["memory"] = std::move(memory);
  root["prediction"] = std::move(prediction);
  root["layout"] = std::move(layout);
  return root.dump(1) + "\n";
}

double predicted_tokens_per_second(const RunPlan& run) {
  const double tokens = static_cast<double>(run.shape.train_shapes.front().tokens() * run.shape.accumulation);
  const double seconds = run.found.prediction.step_seconds;
  return seconds > 0 ? tokens / seconds : 0;
}

std::vector<std::string> prediction_lines(const RunPlan& run) {
  const SearchResult& found = run.found;
  const Prediction& prediction = found.prediction;
  std::string lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (prediction.busy[lane] <= 0) continue;
    lanes += fmt::format("{}{} {:.0f} %", lanes.empty() ? "" : ", ", lane_name(static_cast<Lane>(lane)),
                         100 * prediction.busy[lane] / prediction.step_seconds);
  }
  std::vector<std::string> lines = {
      fmt::format("{:.4g} s a step, {:.0f} tokens/s{} ({}); lanes work {}", prediction.step_seconds,
                  predicted_tokens_per_second(run), run.shape.train_shapes.front().packed ? "" : " in full rows",
                  run.rates.measured ? "measured rates" : "estimated rates", lanes),
      fmt::format("{} binds; of {:.3g} plans {} were bounded and {} simulated in {:.2f} s", found.binding, found.space,
                  found.bounded, found.simulated, found.seconds)};
  if (found.runner_up) {
    lines.push_back(fmt::format("runner-up {:.4g} s: {}", found.runner_up->step_seconds, found.runner_up->why));
  }
  return lines;
}

std::vector<std::string> memory_lines(const RunPlan& run, const ModelSpec& spec) {
  std::vector<std::string> lines;
  for (const Tier tier : kTiers) {
    if (run.layout.bytes(tier) == 0) continue;
    std::string tags;
    Bytes sum = 0;
    for (const auto& [tag, bytes] : bytes_by_tag(run.layout, tier)) {
      sum += bytes;
      tags += fmt::format("{}{} {}", tags.empty() ? "" : ", ", tag, format_bytes(bytes));
    }
    const Bytes planned = run.layout.bytes(tier);
    if (planned - sum > planned / kSeen) tags += fmt::format(", gaps {}", format_bytes(planned - sum));
    lines.push_back(fmt::format("{:<9}{:>11}  {}", tier_name(tier), format_bytes(planned), tags));
  }
  const MemoryNeed need(run.layout);
  if (run.limits.outside > 0) {
    lines.push_back(
        fmt::format("{:<9}{:>11}  of the arena: context, modules, libraries, tables of pinned memory; {} of {} in all",
                    "outside", format_bytes(run.limits.outside), format_bytes(need.device + run.limits.outside),
                    format_bytes(run.limits.device + run.limits.outside)));
  }
  const std::string reserve =
      run.host_reserve > 0 ? fmt::format(" ({} more are left to the system)", format_bytes(run.host_reserve)) : "";
  const Bytes host = host_need(need, run.limits);
  const std::string before = run.host_before > host ? fmt::format(
                                                          "; up to {} before, while the machine was measured, with "
                                                          "pages of files (LibTorch's), which the limit leaves out",
                                                          format_bytes(run.host_before))
                                                    : "";
  lines.push_back(fmt::format("{:<9}{:>11}  in all, of {}{}: {} of the process, the rest as above{}", "host",
                              format_bytes(host), format_bytes(run.limits.host), reserve,
                              format_bytes(run.limits.process), before));
  const Bytes state = state_bytes(spec, run.shape.compute);
  lines.push_back(fmt::format("{:<9}{:>11}  weights, gradients and moments; the device has {:.0f} % of that", "state",
                              format_bytes(state),
                              100.0 * static_cast<double>(need.device) / static_cast<double>(state)));
  return lines;
}

}  // namespace protrain
