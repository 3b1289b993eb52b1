#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/faulty_files.h"
#include "checkpoint/convert.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_store.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr const char* kConfig = R"({
  "zeta": 1e-05,
  "architectures": ["LlamaForCausalLM"],
  "torch_dtype": "float32",
  "alpha": {"b": 1, "a": null}
})";

class Export : public testing::Test {
 protected:
  fs::path to() const { return folder_.path() / "to"; }
  void write(const ChunkStore& store, const ExportOptions& options, const std::optional<fs::path>& source = {}) {
    export_model(real_files(), store, kConfig, source, to(), options);
  }
  std::string text(const std::string& name) { return real_files().read_text(to() / name); }
  std::vector<std::string> names() { return real_files().list(to()); }

  TemporaryFolder folder_;
};

// The bytes that one parameter has in the exported files.
std::vector<std::byte> stored(const fs::path& file, const std::string& name) {
  const SafetensorsFile tensors(real_files(), file);
  const TensorInfo* info = tensors.find(name);
  std::vector<std::byte> bytes;
  if (info == nullptr) return bytes;
  bytes.resize(static_cast<std::size_t>(info->bytes));
  tensors.read(*info, 0, bytes);
  return bytes;
}

TEST_F(Export, EachDtypeHoldsTheWeightsItShould) {
  for (const bool tied : {false, true}) {
    const ModelSpec spec = test_spec(tied);
    for (const DType compute : {DType::kF32, DType::kBf16}) {
      TestStore store(spec, compute);
      store.randomize(11);
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
        write(*store, {.dtype = dtype});
        const SafetensorsFile file(real_files(), to() / "model.safetensors");
        EXPECT_EQ(file.tensors().size(), spec.parameters.size()) << "a tied matrix is stored once";
        EXPECT_EQ(file.metadata().at("format"), "pt");
        for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
          const auto id = static_cast<Id>(i);
          const std::int64_t n = spec.parameters[i].elements();
          std::vector<std::byte> wanted(static_cast<std::size_t>(n * size_of(dtype)));
          if (dtype == compute) {
            store->read(id, Part::kWeight, 0, n, wanted.data());
          } else {
            from_float(dtype, store.masters(id).data(), wanted.data(), n);
          }
          EXPECT_EQ(stored(to() / "model.safetensors", spec.parameters[i].name), wanted) << spec.parameters[i].name;
        }
        const ModelFolder folder(real_files(), to(), spec);
        EXPECT_TRUE(folder.only(dtype));
      }
    }
  }
}

TEST_F(Export, TheConfigKeepsItsKeysInOrderAndNamesTheDtypeOfTheFile) {
  TestStore store(test_spec(false), DType::kF32);
  store.randomize(1);
  write(*store, {.dtype = DType::kF16});
  EXPECT_EQ(text("config.json"), R"({
  "zeta": 1e-05,
  "architectures": [
    "LlamaForCausalLM"
  ],
  "torch_dtype": "float16",
  "alpha": {
    "b": 1,
    "a": null
  }
}
)");
  export_model(real_files(), *store, R"({"dtype": "float32", "x": 1})", {}, to(), {.dtype = DType::kBf16});
  EXPECT_EQ(text("config.json"), "{\n  \"dtype\": \"bfloat16\",\n  \"x\": 1\n}\n");
  export_model(real_files(), *store, R"({"x": 1})", {}, to(), {.dtype = DType::kBf16});
  EXPECT_EQ(text("config.json"), "{\n  \"x\": 1,\n  \"dtype\": \"bfloat16\"\n}\n");
}

TEST_F(Export, ALargeModelIsShardedAndTheNextExportLeavesNoStaleFile) {
  const ModelSpec spec = test_spec(false);
  TestStore store(spec, DType::kBf16);
  store.randomize(2);
  write(*store, {.dtype = DType::kF32});
  EXPECT_THAT(names(), UnorderedElementsAre("config.json", "model.safetensors"));

  constexpr Bytes kShardBytes = 400;
  write(*store, {.dtype = DType::kF32, .shard_bytes = kShardBytes});
  std::vector<std::string> shards;
  Bytes total = 0;
  for (const std::string& name : names()) {
    if (!name.starts_with("model-")) continue;
    shards.push_back(name);
    Bytes bytes = 0;
    const SafetensorsFile file(real_files(), to() / name);
    for (const TensorInfo& tensor : file.tensors()) bytes += tensor.bytes;
    EXPECT_TRUE(bytes <= kShardBytes || file.tensors().size() == 1) << name;
    total += bytes;
  }
  EXPECT_GT(shards.size(), 3U);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    EXPECT_EQ(shards[i], fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
  }
  EXPECT_EQ(names().size(), shards.size() + 2) << "index, config, shards and nothing else";
  EXPECT_THAT(text("model.safetensors.index.json"), HasSubstr(fmt::format("\"total_size\": {}", total)));

  TestStore other(spec, DType::kBf16, 1);
  ModelFolder(real_files(), to(), spec).load(*other);
  other->zero_moments();
  store->zero_moments();
  EXPECT_EQ(other.bits(), store.bits()) << "fp32 export carries masters exactly";

  write(*store, {.dtype = DType::kF32});
  EXPECT_THAT(names(), UnorderedElementsAre("config.json", "model.safetensors"));
}

TEST_F(Export, TokenizerAndGenerationFilesAreCopiedAndNothingElse) {
  const fs::path source = folder_.path() / "source";
  real_files().make_directories(source);
  const std::vector<std::string> copied = {"generation_config.json",
                                           "tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "vocab.json",
                                           "vocab.txt",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "chat_template.jinja",
                                           "added_tokens.json"};
  for (const std::string& name : copied) real_files().write_text(source / name, "content of " + name, false);
  for (const char* name : {"README.md", "model-00001-of-00001.safetensors", "optimizer.pt", "config.json"}) {
    real_files().write_text(source / name, "no", false);
  }
  TestStore store(test_spec(false), DType::kF32);
  store.randomize(1);
  write(*store, {}, source);
  for (const std::string& name : copied) EXPECT_EQ(text(name), "content of " + name);
  EXPECT_EQ(names().size(), copied.size() + 2);
  EXPECT_NE(text("config.json"), "no");
}

TEST_F(Export, ExportingIntoTheFolderItCameFromKeepsTheTokenizer) {
  TestStore store(test_spec(false), DType::kF32);
  store.randomize(1);
  write(*store, {});
  real_files().write_text(to() / "tokenizer.json", "precious", false);
  write(*store, {}, to() / ".." / "to");
  EXPECT_EQ(text("tokenizer.json"), "precious");
}

TEST_F(Export, AWeightThatTheDtypeCannotHoldIsRefusedNamingIt) {
  TestStore store(test_spec(false), DType::kF32);
  store.randomize(1);
  const float large = 65520;
  store->write_master(2, 5, 1, &large);
  EXPECT_THAT(error_of(ExitCode::kFiles, [&] { write(*store, {.dtype = DType::kF16}); }),
              HasSubstr("tensor 'model.layers.0.self_attn.q_proj.weight': element 5 is 65520, more than float16"));
  const float fits = std::nextafter(large, 0.0F);
  store->write_master(2, 5, 1, &fits);
  write(*store, {.dtype = DType::kF16});

  const float nan = std::numeric_limits<float>::quiet_NaN();
  store->write_master(2, 7, 1, &nan);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    EXPECT_THAT(error_of(ExitCode::kNonFinite, [&] { write(*store, {.dtype = dtype}); }),
                HasSubstr("element 7 is nan"));
  }
}

TEST_F(Export, AnExportThatFailsLeavesTheModelThatWasThere) {
  const ModelSpec spec = test_spec(false);
  TestStore store(spec, DType::kF32);
  store.randomize(1);
  write(*store, {.dtype = DType::kF32});
  const std::string before = text("model.safetensors");
  store.randomize(2);
  FaultyFiles full(real_files(), {.kind = FileFaultKind::kNoSpace, .at = 3});
  EXPECT_NE(error_of(ExitCode::kFiles, [&] { export_model(full, *store, kConfig, {}, to(), {.dtype = DType::kF32}); }),
            "");
  EXPECT_EQ(text("model.safetensors"), before);
}

TEST_F(Export, AnExportThatFailsOrDiesLeavesTheConfigThatWasThereWhole) {
  TestStore store(test_spec(false), DType::kF32);
  store.randomize(1);
  write(*store, {});
  const std::string old_config = R"({"x": "the only one"})", new_config = text("config.json");
  for (const FileFaultKind kind : {FileFaultKind::kNoSpace, FileFaultKind::kDie}) {
    int failed = 0;
    for (std::int64_t at = 1;; ++at) {
      fs::remove_all(to());
      real_files().make_directories(to());
      real_files().write_text(to() / "config.json", old_config, false);
      FaultyFiles files(real_files(), {.kind = kind, .at = at, .throw_death = true});
      try {
        export_model(files, *store, kConfig, {}, to(), {});
        break;
      } catch (const std::exception&) {
        ++failed;
      }
      EXPECT_THAT(text("config.json"), testing::AnyOf(old_config, new_config)) << "operation " << at;
    }
    EXPECT_GE(failed, 5);
  }
}

}  // namespace
}  // namespace protrain
