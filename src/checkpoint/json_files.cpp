#include "checkpoint/json_files.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace protrain {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr std::array<const char*, 4> kMasterForms = {"model", "residual", "master", "none"};

json parse_object(const std::string& text, const std::string& file) {
  json tree = parse_json(text, file, ExitCode::kFiles);
  if (!tree.is_object()) fail(ExitCode::kFiles, "{}: must be a JSON object", file);
  return tree;
}

const json& member(const json& tree, const char* key, const std::string& file) {
  const auto found = tree.find(key);
  if (found == tree.end()) fail(ExitCode::kFiles, "{}: key '{}' is missing", file, key);
  return *found;
}

std::int64_t whole_number(const json& tree, const char* key, const std::string& file) {
  const json& value = member(tree, key, file);
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0) {
    fail(ExitCode::kFiles, "{}: '{}' is {}, must be a whole number of at least 0", file, key, shown(value));
  }
  return value.get<std::int64_t>();
}

std::string text_value(const json& tree, const char* key, const std::string& file) {
  const json& value = member(tree, key, file);
  if (!value.is_string()) fail(ExitCode::kFiles, "{}: '{}' is {}, must be text", file, key, shown(value));
  return value.get<std::string>();
}

}  // namespace

std::map<std::string, std::string> parse_index(const std::string& text, const std::string& file) {
  const json tree = parse_object(text, file);
  const json& weights = member(tree, "weight_map", file);
  if (!weights.is_object()) fail(ExitCode::kFiles, "{}: 'weight_map' must be an object", file);
  std::map<std::string, std::string> map;
  for (const auto& [name, shard] : weights.items()) {
    const std::string value = shard.is_string() ? shard.get<std::string>() : std::string();
    if (value.empty() || value == "." || value == ".." || value.find('/') != std::string::npos ||
        value.find('\0') != std::string::npos) {
      fail(ExitCode::kFiles, "{}: tensor '{}': {} is not the name of a file in this folder", file, name, shown(shard));
    }
    map.emplace(name, value);
  }
  return map;
}

std::string index_text(const std::map<std::string, std::string>& weight_map, Bytes total_bytes) {
  ordered_json tree;
  tree["metadata"]["total_size"] = total_bytes;
  tree["weight_map"] = weight_map;
  return tree.dump(2) + "\n";
}

std::string config_with_dtype(const std::string& text, DType dtype, const std::string& file) {
  parse_object(text, file);  // errors with their line
  ordered_json tree = ordered_json::parse(text);
  const std::string name(transformers_name(dtype));
  const bool old_key = tree.contains("torch_dtype");
  if (old_key) tree["torch_dtype"] = name;
  if (!old_key || tree.contains("dtype")) tree["dtype"] = name;
  return tree.dump(2) + "\n";
}

TrainerState parse_trainer_state(const std::string& text, const std::string& file) {
  const json tree = parse_object(text, file);
  if (const std::int64_t schema = whole_number(tree, "schema", file); schema != kSchema) {
    fail(ExitCode::kFiles, "{}: schema {} is not known to this version (it knows {})", file, schema, kSchema);
  }
  TrainerState result;
  result.state.step = whole_number(tree, "global_step", file);
  result.state.applied_updates = whole_number(tree, "applied_updates", file);

  const std::string fingerprint = text_value(tree, "data_fingerprint", file);
  const char* end = fingerprint.data() + fingerprint.size();
  const auto [stop, error] = std::from_chars(fingerprint.data(), end, result.state.data_fingerprint, 16);
  if (error != std::errc() || stop != end) {
    fail(ExitCode::kFiles, "{}: 'data_fingerprint' is '{}', must be a hexadecimal number", file, fingerprint);
  }
  const std::string compute = text_value(tree, "compute_dtype", file);
  if (compute != transformers_name(DType::kF32) && compute != transformers_name(DType::kBf16)) {
    fail(ExitCode::kFiles, "{}: 'compute_dtype' is '{}', must be float32 or bfloat16", file, compute);
  }
  result.compute = compute == transformers_name(DType::kF32) ? DType::kF32 : DType::kBf16;

  const std::string form = text_value(tree, "master_weights", file);
  std::size_t index = 0;
  while (index < kMasterForms.size() && form != kMasterForms[index]) ++index;
  if (index == kMasterForms.size()) {
    fail(ExitCode::kFiles, "{}: 'master_weights' is '{}', must be model, residual, master or none", file, form);
  }
  result.master = static_cast<MasterForm>(index);

  if (!member(tree, "extra", file).is_object()) fail(ExitCode::kFiles, "{}: 'extra' must be an object", file);
  result.state.extra_json = ordered_json::parse(text)["extra"].dump();
  return result;
}

std::string trainer_state_text(const TrainerState& trainer) {
  ordered_json tree;
  tree["schema"] = kSchema;
  tree["global_step"] = trainer.state.step;
  tree["applied_updates"] = trainer.state.applied_updates;
  tree["data_fingerprint"] = fmt::format("{:016x}", trainer.state.data_fingerprint);
  tree["compute_dtype"] = transformers_name(trainer.compute);
  tree["master_weights"] = kMasterForms[static_cast<std::size_t>(trainer.master)];
  const std::string& extra = trainer.state.extra_json;
  tree["extra"] = extra.empty() ? ordered_json::object() : ordered_json::parse(extra, nullptr, false);
  PROTRAIN_CHECK(tree["extra"].is_object(), "TrainingState::extra_json is no JSON object: {}", extra);
  return tree.dump(2) + "\n";
}

}  // namespace protrain
