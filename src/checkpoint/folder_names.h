// Names of the files of an HF model folder and of what a training checkpoint adds. Values only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace protrain {

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kConfigFile = "config.json";

inline constexpr const char* kRunConfigFile = "train_config.yaml";  // a run's, in its output folder

inline constexpr const char* kTrainerStateFile = "trainer_state.json";
inline constexpr const char* kFirstMomentFile = "optimizer_m.safetensors";
inline constexpr const char* kSecondMomentFile = "optimizer_v.safetensors";
inline constexpr const char* kResidualFile = "residual.safetensors";  // of bf16 weights: int16
inline constexpr const char* kMasterFile = "master.safetensors";      // fp32, where the model's files are no exact copy
inline constexpr const char* kCommitFile = "COMMITTED";

// Elements that one read, conversion or write handles: 16 MiB of fp32. Even, so that pairs are not cut.
inline constexpr std::int64_t kPieceElements = std::int64_t{4} << 20;

std::string shard_name(std::size_t index, std::size_t count);  // index from 1: "model-00001-of-00003.safetensors"
bool is_weight_file(std::string_view name);                    // the single file, the index, or any shard
bool is_shard(std::string_view name);
bool is_other_weights(std::string_view name);  // of other programs and formats: adapters, .bin, .gguf, ...
// Copied along with a model: generation_config.json, tokenizer files, chat template.
bool is_companion(std::string_view name);

}  // namespace protrain
