// protrain_probe CASES.json: a JSON list of cases, all run in this one process.
//   {"describe": folder, "out": file.json}: parameters (name, shape, fill, decay), rotary frequencies, counts.
//   {"run": folder, "compute": "fp32" | "bf16", "chunk_bytes", "recompute", "training", "dropout_key", "random_seed",
//    "micro_batches": [{"rows", "row_tokens", "packed", "tokens", "labels", "positions", "sample_starts"}],
//    "write": ["logits", "gradients", "weights"], "out": file.safetensors}
//     also writes "losses" and "forward_losses" (F64).
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "probe_model.h"
#include "tensor/tensor.h"

namespace protrain::probe {
namespace {

using nlohmann::json;

void describe(const json& one) {
  const Architecture arch = read_architecture(one.at("describe").get<std::string>());
  const ModelSpec spec = make_spec(arch);
  json parameters = json::array();
  for (const ParameterSpec& parameter : spec.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"shape", parameter.shape},
                          {"std", parameter.fill == Fill::kNormal ? parameter.fill_std : 0},
                          {"mean", parameter.fill == Fill::kOnes ? 1 : 0},
                          {"zero_row", parameter.zero_row},
                          {"decay", parameter.decay}});
  }
  json out{{"parameters", parameters},
           {"count", spec.parameter_count()},
           {"tied_names", spec.tied_names},
           {"window", arch.window}};
  if (arch.rotary) {
    const RopeTable table = rope_table(arch.rope, arch.head_dim);
    out["inverse_frequency"] = table.inverse_frequency;
    out["attention_factor"] = table.attention_factor;
  }
  real_files().write_text(one.at("out").get<std::string>(), out.dump(), false);
}

MicroBatch micro_batch(const json& one) {
  MicroBatch batch;
  batch.tokens = one.at("tokens").get<std::vector<std::int32_t>>();
  batch.labels = one.at("labels").get<std::vector<std::int32_t>>();
  batch.positions = one.at("positions").get<std::vector<std::int32_t>>();
  batch.sample_starts = one.at("sample_starts").get<std::vector<std::int32_t>>();
  batch.shape.rows = one.at("rows").get<std::int64_t>();
  batch.shape.row_tokens = one.at("row_tokens").get<std::int64_t>();
  batch.shape.packed = one.at("packed").get<bool>();
  batch.shape.max_samples = std::ssize(batch.sample_starts) - 1;
  return batch;
}

Options options_of(const json& one) {
  Options options;
  options.model = one.at("run").get<std::string>();
  options.compute = one.value("compute", "fp32") == "bf16" ? DType::kBf16 : DType::kF32;
  options.chunk_bytes = one.value("chunk_bytes", options.chunk_bytes);
  options.recompute = one.value("recompute", false);
  options.training = one.value("training", false);
  options.dropout_key = one.value("dropout_key", std::uint64_t{0});
  if (one.contains("random_seed")) options.random_seed = one.at("random_seed").get<std::uint64_t>();
  if (one.contains("micro_batches")) {
    for (const json& batch : one.at("micro_batches")) options.micro_batches.push_back(micro_batch(batch));
  }
  return options;
}

void write(const Result& result, const json& wanted, const std::string& path) {
  std::vector<const NamedTensor*> tensors;
  const auto add = [&](const char* kind, const std::vector<NamedTensor>& some) {
    if (std::ranges::find(wanted, json(kind)) == wanted.end()) return;
    for (const NamedTensor& tensor : some) tensors.push_back(&tensor);
  };
  add("logits", result.logits);
  add("gradients", result.gradients);
  add("weights", result.weights);
  const auto batches = std::ssize(result.losses);
  std::vector<TensorInfo> header;
  for (const char* name : {"losses", "forward_losses"}) {
    TensorInfo info;
    info.name = name;
    info.dtype = DType::kF64;
    info.shape = {batches};
    header.push_back(info);
  }
  for (const NamedTensor* tensor : tensors) {
    TensorInfo info;
    info.name = tensor->name;
    info.shape = tensor->shape;
    header.push_back(info);
  }
  SafetensorsWriter writer(real_files(), path, header, {});
  writer.append(std::as_bytes(std::span(result.losses)));
  writer.append(std::as_bytes(std::span(result.forward_losses)));
  for (const NamedTensor* tensor : tensors) writer.append(std::as_bytes(std::span(tensor->values)));
  writer.finish(false);
}

int run_cases(const std::string& file) {
  TorchOptions torch;
  torch.compute_threads = 1;
  torch.deterministic = true;
  set_up_torch(torch);
  for (const json& one : parse_json(real_files().read_text(file), file, ExitCode::kConfig)) {
    if (one.contains("describe")) {
      describe(one);
    } else {
      write(run(options_of(one)), one.value("write", json::array()), one.at("out").get<std::string>());
    }
  }
  return 0;
}

}  // namespace
}  // namespace protrain::probe

int main(int arguments, char** argument) {
  if (arguments != 2) {
    std::fputs("usage: protrain_probe CASES.json\n", stderr);
    return 2;
  }
  try {
    return protrain::probe::run_cases(argument[1]);
  } catch (const protrain::Error& error) {
    std::fprintf(stderr, "protrain_probe: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "protrain_probe: %s\n", error.what());
    return 1;
  }
}
