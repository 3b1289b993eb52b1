#include "train/model_source.h"

#include <system_error>

#include "base/error.h"
#include "checkpoint/commit_mark.h"

namespace protrain {
namespace fs = std::filesystem;
namespace {

std::unique_ptr<ModelSource> open(Files& files, const fs::path& folder, bool weights, std::string_view what,
                                  const ArchitectureOverrides& overrides) {
  const fs::path config = folder / "config.json";
  if (const std::string fault = folder_fault(folder); !fault.empty()) {
    fail(ExitCode::kConfig, "{}: {} {}; give a folder with config.json", what, folder.string(), fault);
  }
  std::error_code absent;
  if (fs::symlink_status(config, absent).type() == fs::file_type::not_found) {
    fail(ExitCode::kFiles, "{}: {} is missing", what, config.string());
  }
  auto model = std::make_unique<ModelSource>();
  model->folder = folder;
  model->tokenizer_folder = folder;
  model->config_json = files.read_text(config);
  model->architecture = parse_architecture(model->config_json, config.string(), overrides);
  model->spec = make_spec(model->architecture);
  if (weights) model->weights = std::make_unique<ModelFolder>(files, folder, model->spec);
  return model;
}

}  // namespace

std::unique_ptr<ModelSource> open_model(Files& files, const TrainConfig& config) {
  const ArchitectureOverrides overrides = {.attention_dropout = config.attention_dropout,
                                           .residual_dropout = config.residual_dropout,
                                           .embedding_dropout = config.embedding_dropout};
  const bool weights = !config.model_name_or_path.empty();
  if (weights) check_saved(files, config.model_name_or_path);
  auto model = weights ? open(files, config.model_name_or_path, true, "model_name_or_path", overrides)
                       : open(files, config.config_name, false, "config_name", overrides);
  if (!config.tokenizer_name.empty()) {
    if (const std::string fault = folder_fault(config.tokenizer_name); !fault.empty()) {
      fail(ExitCode::kConfig, "tokenizer_name: {} {}; give a folder with a tokenizer", config.tokenizer_name, fault);
    }
    model->tokenizer_folder = config.tokenizer_name;
  }
  return model;
}

std::unique_ptr<ModelSource> open_model_folder(Files& files, const fs::path& folder) {
  return open(files, folder, true, "model", {.attention_dropout = 0});
}

std::unique_ptr<ModelSource> open_config_folder(Files& files, const fs::path& folder) {
  return open(files, folder, false, "config", {.attention_dropout = 0});
}

DType export_dtype(const std::string& name, const ModelSource& model, DType otherwise) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    if (transformers_name(dtype) == name) return dtype;
  }
  return model.weights ? model.weights->dtype() : otherwise;
}

}  // namespace protrain
