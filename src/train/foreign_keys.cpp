#include "train/foreign_keys.h"

#include <algorithm>
#include <iterator>

namespace protrain {
namespace {

struct ForeignKey {
  std::string_view name, instead;
};

constexpr std::string_view kEvaluation =
    "drop it: with validation_file evaluation runs every eval_steps updates and at the end";
constexpr std::string_view kOwnFile =
    "a share of train_file is never split off: give the evaluation data as validation_file";
constexpr std::string_view kFiles = "give the files themselves as train_file, and what a record is as form";
constexpr std::string_view kTemplate = "drop it: chats are rendered by the tokenizer's own chat template";
constexpr std::string_view kAllWeights = "drop it: all weights are trained, there are no adapters";
constexpr std::string_view kPlanned = "drop it: what lies on the device and what elsewhere is planned";

constexpr ForeignKey kForeign[] = {
    {"eval_strategy", kEvaluation},
    {"evaluation_strategy", kEvaluation},
    {"do_eval", kEvaluation},
    {"do_train", "drop it: `protrain train` trains"},
    {"save_strategy", "drop it: checkpoints are saved every save_steps updates and at the end; save_steps: 0 for none"},
    {"logging_strategy", "drop it: every logging_steps updates are logged"},
    {"val_size", kOwnFile},
    {"val_set_size", kOwnFile},
    {"test_split_ratio", kOwnFile},
    {"dataset", kFiles},
    {"datasets", kFiles},
    {"dataset_dir", kFiles},
    {"eval_dataset", "give the files themselves as validation_file"},
    {"template", kTemplate},
    {"chat_template", kTemplate},
    {"neat_packing", "packing: true does it: no sample of a row sees another"},
    {"tokenized_path",
     "prepared data is kept in dataset_prepared_path by itself; a file that `protrain prepare` made is given as "
     "train_file"},
    {"roles_to_train",
     "a loss is taken on what the assistant says; mask_history: true takes it on its last answer alone, "
     "train_on_prompt: true on all roles"},
    {"train_on_eos",
     "drop it: the end token of an answer is trained on with the answer, and of the others only with "
     "train_on_prompt: true"},
    {"group_by_length", "packing: true fills rows, whatever the lengths"},
    {"stage", "drop it: `protrain train` trains on every supervised token, whatever the data is"},
    {"finetuning_type", kAllWeights},
    {"adapter", kAllWeights},
    {"lora_rank", kAllWeights},
    {"lora_r", kAllWeights},
    {"lora_target", kAllWeights},
    {"deepspeed", kPlanned},
    {"fsdp", kPlanned},
    {"fsdp_config", kPlanned},
    {"optim", "drop it: the optimizer is AdamW"},
    {"optimizer", "drop it: the optimizer is AdamW"},
    {"fp16", "bf16: true computes in bfloat16, bf16: false in float32"},
    {"torch_dtype", "bf16: true computes in bfloat16, bf16: false in float32"},
    {"flash_attn", "drop it: the fastest attention of the device is taken"},
    {"attn_implementation", "drop it: the fastest attention of the device is taken"},
    {"sequence_len", "cutoff_len is the most tokens of a row"},
    {"max_seq_length", "cutoff_len is the most tokens of a row"},
    {"block_size", "cutoff_len is the most tokens of a row"},
    {"micro_batch_size", "per_device_train_batch_size is the rows of a micro-batch"},
    {"num_epochs", "num_train_epochs is the passes over the data"},
    {"lr_scheduler", "lr_scheduler_type is the shape of the learning rate"},
    {"preprocessing_num_workers", "drop it: data is prepared once and kept"},
};

}  // namespace

std::string_view instead_of_foreign_key(std::string_view name) {
  const auto* const found = std::ranges::find(kForeign, name, &ForeignKey::name);
  return found == std::end(kForeign) ? std::string_view() : found->instead;
}

}  // namespace protrain
