// The JSON files of model and checkpoint folders, as text in and text out; the one place here that sees the JSON
// library (with safetensors.cpp). Pure; thread-safe. Errors: Error(kFiles) naming `file` and the key.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "base/dtype.h"
#include "checkpoint/training_checkpoint.h"

namespace protrain {

// model.safetensors.index.json: tensor name -> shard (a plain file name).
std::map<std::string, std::string> parse_index(const std::string& text, const std::string& file);
std::string index_text(const std::map<std::string, std::string>& weight_map, Bytes total_bytes);

// config.json with `torch_dtype` / `dtype` set to what the weight files hold; every other key stays, in its order.
std::string config_with_dtype(const std::string& text, DType, const std::string& file);

// How a checkpoint keeps the fp32 masters; kNone: it holds the model alone, and no moments either.
enum class MasterForm : std::uint8_t { kModel, kResidual, kMaster, kNone };

struct TrainerState {
  TrainingState state;
  DType compute = DType::kF32;
  MasterForm master = MasterForm::kModel;
};
TrainerState parse_trainer_state(const std::string& text, const std::string& file);
std::string trainer_state_text(const TrainerState&);

}  // namespace protrain
