// The model a run starts from: a folder with weights, or config.json alone. Everything that can be wrong with it is
// found here, before anything is allocated. One thread; the object must stay where it is (its files refer to its spec).
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "arch/architecture.h"
#include "checkpoint/model_files.h"
#include "train/config.h"

namespace protrain {

struct ModelSource {
  std::filesystem::path folder;
  std::string config_json;
  Architecture architecture;
  ModelSpec spec;
  std::unique_ptr<ModelFolder> weights;  // null: random weights

  // Where exports take their tokenizer files from.
  std::filesystem::path tokenizer_folder;

  ModelSource() = default;
  ModelSource(const ModelSource&) = delete;
  ModelSource& operator=(const ModelSource&) = delete;
};

// Error(kConfig, kFiles).
std::unique_ptr<ModelSource> open_model(Files&, const TrainConfig&);
// A folder with weights, outside of a run.
std::unique_ptr<ModelSource> open_model_folder(Files&, const std::filesystem::path&);
// config.json alone.
std::unique_ptr<ModelSource> open_config_folder(Files&, const std::filesystem::path&);

// The dtype that `name` ("auto", "float32", "bfloat16", "float16") means for this model; `otherwise` when auto and
// there are no weights.
DType export_dtype(const std::string& name, const ModelSource&, DType otherwise);

}  // namespace protrain
