#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/model_files.h"
#include "plan/plan_json.h"
#include "train/plan_file.h"
#include "train/what_if.h"

namespace protrain {
namespace {

using nlohmann::ordered_json;

constexpr int kSchema = 1;

ordered_json knobs_of(const RunPlan& run) {
  ordered_json knobs = ordered_json::parse(plan_json(run.plan, {}));
  knobs.erase("layout");
  return knobs;
}

ordered_json shape_json(const BatchShape& shape) {
  return {{"rows", shape.rows}, {"row_tokens", shape.row_tokens}, {"packed", shape.packed}};
}

std::string short_knobs(const RunPlan& run) {
  const Plan& plan = run.plan;
  return fmt::format("chunk_bytes {}, n_persist {}, n_buffer {}, gradient_slots {}, offload_distance {}, order {}",
                     format_bytes(plan.chunk_bytes), plan.n_persist, plan.n_buffer, plan.gradient_slots,
                     plan.offload_distance, order_name(plan.order));
}

}  // namespace

std::string what_is_missing(const WhatIf& answer) {
  const RunPlan& run = answer.run;
  const bool own = run.reason.starts_with("from ");  // the user's plan, which choose_plan() names so
  return fmt::format("does not fit {}: the {}plan has {}: {}; {}", answer.machine, own ? "" : "leanest ",
                     own ? run.reason.substr(run.reason.rfind(": ") + 2) : run.reason,
                     describe(run.found.missing, MemoryNeed(run.layout), run.limits), answer.nearest_change);
}

std::vector<std::string> what_if_lines(const WhatIf& answer) {
  const RunPlan& run = answer.run;
  const ModelSpec& spec = answer.model->spec;
  std::vector<std::string> lines;
  const auto line = [&](std::string_view name, const std::string& value) {
    lines.push_back(fmt::format("  {:<12} {}", name, value));
  };
  lines.push_back(fmt::format("***** plan for {}{} *****", answer.machine,
                              answer.estimate() ? " (an estimate: nothing was measured)" : ""));
  line("model", fmt::format("{} ({} parameters, {} layers)", answer.model->folder.string(), spec.parameter_count(),
                            spec.blocks.size() - 2));
  const BatchShape& batch = run.shape.train_shapes.front();
  line("batch",
       fmt::format("{} rows of {} tokens{} x {} accumulated, {}", batch.rows, batch.row_tokens,
                   batch.packed ? ", packed," : "", run.shape.accumulation, transformers_name(run.shape.compute)));
  line("plan", run.reason);
  line("knobs", short_knobs(run));
  for (const std::string& text : prediction_lines(run)) line("prediction", text);
  for (const std::string& text : memory_lines(run, spec)) line("memory", text);
  const MemoryNeed need(run.layout);
  line("limits", fmt::format("{} of {} of the device that a plan may take, {} of {} of the host",
                             format_bytes(need.device), format_bytes(run.limits.device),
                             format_bytes(host_need(need, run.limits)), format_bytes(run.limits.host)));
  for (const std::string& note : answer.notes) line("note", note);
  return lines;
}

std::string what_if_json(const WhatIf& answer) {
  const RunPlan& run = answer.run;
  const ModelSpec& spec = answer.model->spec;
  // plan.json's memory and prediction, under the same names.
  ordered_json file = ordered_json::parse(plan_file(run, spec));
  ordered_json train_shapes = ordered_json::array(), eval_shapes = ordered_json::array();
  for (const BatchShape& shape : run.shape.train_shapes) train_shapes.push_back(shape_json(shape));
  for (const BatchShape& shape : run.shape.eval_shapes) eval_shapes.push_back(shape_json(shape));
  ordered_json root = {{"schema", kSchema},
                       {"fits", answer.fits()},
                       {"estimate", answer.estimate()},
                       {"machine", answer.machine},
                       {"model",
                        {{"folder", answer.model->folder.string()},
                         {"parameters", spec.parameter_count()},
                         {"layers", spec.blocks.size() - 2}}},
                       {"batch",
                        {{"per_device_train_batch_size", answer.micro_batch},
                         {"gradient_accumulation_steps", run.shape.accumulation},
                         {"compute_dtype", std::string(transformers_name(run.shape.compute))},
                         {"train_shapes", train_shapes},
                         {"eval_shapes", eval_shapes}}},
                       {"description", run.reason},
                       {"plan", knobs_of(run)},
                       {"memory", std::move(file["memory"])},
                       {"prediction", std::move(file["prediction"])},
                       {"notes", answer.notes}};
  if (const auto& runner_up = run.found.runner_up) {
    root["prediction"]["runner_up"]["plan"] = ordered_json::parse(plan_json(runner_up->plan, {}));
    root["prediction"]["runner_up"]["plan"].erase("layout");
  }
  if (!answer.fits()) {
    root["missing"] = {{"device_bytes", run.found.missing.device},
                       {"host_bytes", run.found.missing.host},
                       {"nearest_change", answer.nearest_change}};
  }
  return root.dump(1) + "\n";
}

}  // namespace protrain
