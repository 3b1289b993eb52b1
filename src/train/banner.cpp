#include "train/banner.h"

#include <fmt/core.h>

#include "train/plan_file.h"

namespace protrain {

std::vector<std::string> banner(const TrainConfig& config, const ModelSource& model, const DataSources& data,
                                const MeasuredModel& measured, const RunPlan& run, std::int64_t total_steps) {
  const std::int64_t micro_batch = config.per_device_train_batch_size;
  const std::int64_t batch = micro_batch * config.gradient_accumulation_steps;
  std::vector<std::string> lines = {"***** training *****"};
  const auto line = [&](std::string_view name, const std::string& value) {
    lines.push_back(fmt::format("  {:<22} {}", name, value));
  };
  line("model", fmt::format("{} ({} parameters{})", model.folder.string(), model.spec.parameter_count(),
                            model.weights ? "" : ", random weights"));
  line("data", fmt::format("{} samples, {} tokens, {} rows of at most {} tokens{}", data.train_tokens->samples(),
                           data.train_tokens->tokens(), data.train->rows(), data.sampling.cutoff_len,
                           config.packing ? ", packed" : ""));
  if (data.eval) {
    line("evaluation data",
         fmt::format("{} samples, {} tokens", data.eval_tokens->samples(), data.eval_tokens->tokens()));
  }
  line("batch", fmt::format("{} = {} rows x {} accumulated", batch, micro_batch, config.gradient_accumulation_steps));
  line("steps", fmt::format("{} ({} an epoch)", total_steps, data.train->steps_per_epoch()));
  line("device", fmt::format("{}, {}, {} compute threads", measured.device->name(),
                             transformers_name(run.shape.compute), measured.compute_threads));
  line("plan", run.reason);
  for (const std::string& text : prediction_lines(run)) line("prediction", text);
  for (const std::string& text : memory_lines(run, model.spec)) line("memory", text);
  line("pinned host memory", format_bytes(run.layout.bytes(Tier::kPinned)));
  return lines;
}

}  // namespace protrain
