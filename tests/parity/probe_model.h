// A tiny model folder run through chunk store and blocks on the CPU device, for tests that compare with a reference.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "base/dtype.h"
#include "block/batch.h"

namespace protrain::probe {

struct MicroBatch {
  BatchShape shape;
  std::vector<std::int32_t> tokens, labels, positions, sample_starts;
};

struct Options {
  std::filesystem::path model;  // folder with config.json; weights too unless random_seed is set
  std::optional<std::uint64_t> random_seed;
  DType compute = DType::kF32;
  Bytes chunk_bytes = 64 * kKiB;
  bool recompute = false;
  bool training = false;  // dropout as config.json says
  std::uint64_t dropout_key = 0;
  std::vector<MicroBatch> micro_batches;
};

struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

struct Result {
  std::vector<double> losses;          // sum over the supervised tokens of each micro-batch
  std::vector<double> forward_losses;  // the same from the head's forward-only mode
  std::vector<NamedTensor> logits;     // "logits.<micro-batch>" [T, vocabulary]
  std::vector<NamedTensor> gradients;  // "grad.<parameter>": on the wire, of the mean loss over all supervised tokens
  std::vector<NamedTensor> weights;    // "weight.<parameter>": masters
};

Architecture read_architecture(const std::filesystem::path& model);
Result run(const Options&);

}  // namespace protrain::probe
