// For this layer's tests: a small model with awkward shapes in a chunk store on the simulated device, its whole state
// as one comparable value, and a folder that goes away.
#pragma once
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/chunk_store.h"

namespace protrain {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    // In memory where that is possible: these tests sync thousands of files.
    std::string name = "/dev/shm/protrain-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      name = (std::filesystem::temp_directory_path() / "protrain-test-XXXXXX").string();
      PROTRAIN_CHECK(mkdtemp(name.data()) != nullptr);
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// LLaMA's names; vocabulary 13, hidden 6, two layers with grouped-query attention.
inline ModelSpec test_spec(bool tied, std::int64_t ffn = 10) {
  ModelSpec spec;
  spec.hidden = 6;
  spec.vocabulary = 13;
  spec.tied = tied;
  if (tied) spec.tied_names = {"lm_head.weight"};
  const auto add = [&](BlockSpec& block, const std::string& name, std::vector<std::int64_t> shape, Fill fill) {
    const auto id = static_cast<Id>(spec.parameters.size());
    spec.parameters.push_back({.name = name, .shape = std::move(shape), .group = id, .fill = fill, .fill_std = 0.02});
    block.parameters.push_back(id);
    return id;
  };
  BlockSpec embedding{.kind = BlockKind::kEmbedding, .trace = "embedding", .parameters = {}};
  const Id matrix = add(embedding, "model.embed_tokens.weight", {13, 6}, Fill::kNormal);
  spec.blocks.push_back(embedding);
  for (Id layer = 0; layer < 2; ++layer) {
    BlockSpec block{.kind = BlockKind::kLayer, .layer = layer, .trace = "layer", .parameters = {}};
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(block, prefix + "input_layernorm.weight", {6}, Fill::kOnes);
    const Id q = add(block, prefix + "self_attn.q_proj.weight", {8, 6}, Fill::kNormal);
    for (const char* name : {"k_proj", "v_proj"}) {
      spec.parameters[add(block, prefix + "self_attn." + name + ".weight", {4, 6}, Fill::kNormal)].group = q;
    }
    add(block, prefix + "self_attn.q_proj.bias", {8}, Fill::kZeros);
    add(block, prefix + "mlp.down_proj.weight", {6, ffn}, Fill::kNormal);
    spec.blocks.push_back(block);
  }
  BlockSpec head{.kind = BlockKind::kHead, .trace = "head", .parameters = {}};
  add(head, "model.norm.weight", {6}, Fill::kOnes);
  if (tied) {
    head.parameters.push_back(matrix);
  } else {
    add(head, "lm_head.weight", {13, 6}, Fill::kNormal);
  }
  spec.blocks.push_back(head);
  return spec;
}

// Everything that a checkpoint must bring back, as bits.
struct StateBits {
  std::vector<std::vector<std::byte>> parts;
  bool operator==(const StateBits&) const = default;
};

class TestStore {
 public:
  TestStore(ModelSpec spec, DType compute, Bytes chunk_bytes = kMiB) : spec_(std::move(spec)) {
    shape_.compute = compute;
    shape_.train_shapes = {{.rows = 1, .row_tokens = 4, .max_samples = 1}};
    plan_ = resident_plan(spec_, shape_, chunk_bytes);
    chunks_ = make_chunks(spec_, plan_.chunk_bytes, compute);
    layout_ = parts_layout(chunks_, compute, std::array{Part::kWeight, Part::kResidual, Part::kM, Part::kV});
    device_ = make_cpu_device();
    arena_ = std::make_unique<Arena>(*device_, Tier::kDevice, layout_.bytes(Tier::kDevice));
    store_ = std::make_unique<ChunkStore>(spec_, chunks_, layout_, shape_, plan_, *device_, Arenas{arena_.get()});
  }

  ChunkStore& operator*() { return *store_; }
  ChunkStore* operator->() { return store_.get(); }
  std::size_t chunks() const { return chunks_.size(); }

  // Masters over many magnitudes with both signs, m likewise, v >= 0; zeros and subnormals among them.
  void randomize(unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> exponent(-140, 10), kind(0, 15);
    std::uniform_real_distribution<float> mantissa(-1, 1);
    const auto draw = [&] { return kind(random) == 0 ? 0.0F : std::ldexp(mantissa(random), exponent(random)); };
    for (std::size_t i = 0; i < spec_.parameters.size(); ++i) {
      const auto id = static_cast<Id>(i);
      const std::int64_t n = spec_.parameters[i].elements();
      std::vector<float> values(static_cast<std::size_t>(n));
      for (float& value : values) value = draw();
      store_->write_master(id, 0, n, values.data());
      for (float& value : values) value = draw();
      store_->write(id, Part::kM, 0, n, reinterpret_cast<const std::byte*>(values.data()));
      for (float& value : values) value = std::abs(draw());
      store_->write(id, Part::kV, 0, n, reinterpret_cast<const std::byte*>(values.data()));
    }
  }

  StateBits bits() const {
    StateBits state;
    for (std::size_t i = 0; i < spec_.parameters.size(); ++i) {
      for (const Part part : {Part::kWeight, Part::kResidual, Part::kM, Part::kV}) {
        if (part == Part::kResidual && store_->compute() == DType::kF32) continue;
        const std::int64_t n = spec_.parameters[i].elements();
        std::vector<std::byte> bytes(static_cast<std::size_t>(n * size_of(part_dtype(part, store_->compute()))));
        store_->read(static_cast<Id>(i), part, 0, n, bytes.data());
        state.parts.push_back(std::move(bytes));
      }
    }
    return state;
  }

  std::vector<float> masters(Id id) const {
    std::vector<float> values(static_cast<std::size_t>(spec_.parameters[id].elements()));
    store_->read_master(id, 0, static_cast<std::int64_t>(values.size()), values.data());
    return values;
  }

  Id id_of(const std::string& name) const {
    for (std::size_t i = 0; i < spec_.parameters.size(); ++i) {
      if (spec_.parameters[i].name == name) return static_cast<Id>(i);
    }
    return -1;
  }

 private:
  ModelSpec spec_;
  RunShape shape_;
  Plan plan_;
  std::vector<Chunk> chunks_;
  Layout layout_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<ChunkStore> store_;
};

// The message of the Error that fn throws; empty when it throws none or one of another code.
template <typename Fn>
std::string error_of(ExitCode code, Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.code() == code ? error.what() : "";
  }
  return "";
}

}  // namespace protrain
