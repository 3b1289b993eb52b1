// HF model folders: read weights into the chunk store, write them back so that transformers loads them.
// Not thread-safe; not while a schedule runs.
#pragma once
#include <filesystem>
#include <optional>

#include "base/files.h"
#include "runtime/chunk_store.h"

namespace protrain {

// Looks for model.safetensors, or model.safetensors.index.json and its shards; checks names, shapes, dtypes, bounds and
// duplicates before anything is allocated. Error(kFiles) naming file and tensor. Accepted as the same tensor: a name
// with or without the base model's prefix ("transformer.", "model."); a tied matrix under one of ModelSpec::tied_names.
// Tensors that the model does not have are ignored: silently where old files hold buffers (rotary frequencies, causal
// masks), else with a warning.
class ModelFolder {
 public:
  ModelFolder(Files&, const std::filesystem::path&, const ModelSpec&);  // both outlive it
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  DType dtype() const;           // of most elements
  bool only(DType) const;        // every parameter's tensor has it
  void load(ChunkStore&) const;  // masters, exact; refuses NaN and infinity, naming tensor and index
  // Elements [first, first + count) of a parameter as fp32, exact; refuses NaN and infinity. Thread-safe.
  void read(Id parameter, std::int64_t first, std::int64_t count, float* to) const;
  std::string config_json() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Weights drawn as ParameterSpec::fill says; a function of (seed, parameter name, element) only. Uses all allowed
// cores. Neither this nor ModelFolder::load touches moments: ChunkStore::zero_moments() is the caller's.
void fill_random(ChunkStore&, std::uint64_t seed);

struct ExportOptions {
  DType dtype = DType::kBf16;
  Bytes shard_bytes = 5 * kGiB;  // a larger model is sharded, with an index
  bool sync = false;
  bool replace_companions = false;  // remove tokenizer files of the model that was there, where `source` has none
};
// Writes model*.safetensors (+ index), config.json with the matching dtype, and copies generation_config.json and
// tokenizer files from `source` when given.
void export_model(Files&, const ChunkStore&, const std::string& config_json,
                  const std::optional<std::filesystem::path>& source, const std::filesystem::path& to,
                  const ExportOptions&);

}  // namespace protrain
