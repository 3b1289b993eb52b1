#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "base/log.h"
#include "checkpoint/convert.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_store.h"

namespace protrain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct FileTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  DType dtype = DType::kF32;
};

class ModelFolders : public testing::Test {
 protected:
  ModelFolders() {
    log::set_sink([this](log::Level level, const std::string& line) {
      if (level == log::Level::kWarning) warnings_ += line + "\n";
    });
  }
  ~ModelFolders() override { log::set_sink({}); }

  // One tensor a parameter; values that bf16 and fp16 hold exactly, a different set for each tensor.
  static std::vector<FileTensor> tensors_of(const ModelSpec& spec) {
    std::vector<FileTensor> tensors;
    for (const ParameterSpec& parameter : spec.parameters) {
      FileTensor tensor{parameter.name, parameter.shape, {}};
      for (std::int64_t i = 0; i < parameter.elements(); ++i) {
        tensor.values.push_back(static_cast<float>((i * 7 + static_cast<std::int64_t>(tensors.size())) % 61 - 30) / 8);
      }
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }

  void write(const std::vector<FileTensor>& tensors, const std::string& file = "model.safetensors") {
    std::vector<TensorInfo> infos;
    infos.reserve(tensors.size());
    for (const FileTensor& tensor : tensors) {
      infos.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    }
    SafetensorsWriter writer(real_files(), folder_.path() / file, infos, {});
    for (const FileTensor& tensor : tensors) {
      std::vector<std::byte> bytes(tensor.values.size() * static_cast<std::size_t>(size_of(tensor.dtype)));
      if (is_weight_dtype(tensor.dtype)) {
        from_float(tensor.dtype, tensor.values.data(), bytes.data(), static_cast<std::int64_t>(tensor.values.size()));
      }
      writer.append(bytes);
    }
    writer.finish(false);
  }

  // The first half of the tensors in the first shard, the rest in the second; the index as `change` leaves it.
  void write_shards(const std::vector<FileTensor>& tensors,
                    const std::function<void(std::map<std::string, std::string>&)>& change = {}) {
    const std::size_t half = tensors.size() / 2;
    write({tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(half)}, kFirst);
    write({tensors.begin() + static_cast<std::ptrdiff_t>(half), tensors.end()}, kSecond);
    std::map<std::string, std::string> weights;
    for (std::size_t i = 0; i < tensors.size(); ++i) weights[tensors[i].name] = i < half ? kFirst : kSecond;
    if (change) change(weights);
    std::string text;
    for (const auto& [name, shard] : weights) {
      text += fmt::format("{}\"{}\": \"{}\"", text.empty() ? "" : ", ", name, shard);
    }
    real_files().write_text(folder_.path() / "model.safetensors.index.json", "{\"weight_map\": {" + text + "}}", false);
  }

  void expect_loads(const ModelSpec& spec, const std::vector<FileTensor>& wanted) {
    for (const DType compute : {DType::kF32, DType::kBf16}) {
      TestStore store(spec, compute);
      ModelFolder(real_files(), folder_.path(), spec).load(*store);
      for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
        EXPECT_EQ(store.masters(static_cast<Id>(i)), wanted[i].values) << spec.parameters[i].name;
      }
    }
  }
  std::string fault(const ModelSpec& spec) {
    return error_of(ExitCode::kFiles, [&] { ModelFolder(real_files(), folder_.path(), spec); });
  }
  std::string load_fault(const ModelSpec& spec) {
    TestStore store(spec, DType::kBf16);
    const ModelFolder folder(real_files(), folder_.path(), spec);
    return error_of(ExitCode::kFiles, [&] { folder.load(*store); });
  }

  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";
  TemporaryFolder folder_;
  std::string warnings_;
};

TEST_F(ModelFolders, ASingleFileAndShardsLoadTheSameMasters) {
  const ModelSpec spec = test_spec(false);
  const auto tensors = tensors_of(spec);
  write(tensors);
  expect_loads(spec, tensors);
  std::filesystem::remove(folder_.path() / "model.safetensors");
  write_shards(tensors);
  expect_loads(spec, tensors);
  EXPECT_EQ(warnings_, "");
}

TEST_F(ModelFolders, MixedDtypesLoadExactlyAndTheCommonestIsNamed) {
  const ModelSpec spec = test_spec(false);
  auto tensors = tensors_of(spec);
  for (FileTensor& tensor : tensors) tensor.dtype = tensor.shape.size() == 2 ? DType::kBf16 : DType::kF32;
  tensors[3].dtype = DType::kF16;
  tensors[1].values[2] = 1.0F + 0x1p-23F;  // an fp32 norm weight keeps its last bit
  write(tensors);
  expect_loads(spec, tensors);
  const ModelFolder folder(real_files(), folder_.path(), spec);
  EXPECT_EQ(folder.dtype(), DType::kBf16);
  EXPECT_FALSE(folder.only(DType::kBf16));
}

TEST_F(ModelFolders, EachFaultOfShardsIsRefusedNamingFileAndTensor) {
  const ModelSpec spec = test_spec(false);
  const auto tensors = tensors_of(spec);
  const std::string first_of_second = tensors[tensors.size() / 2].name;
  const std::string last = tensors.back().name;

  write_shards(tensors);
  std::filesystem::remove(folder_.path() / kSecond);
  EXPECT_THAT(fault(spec), AllOf(HasSubstr(std::string(kSecond) + ": is missing"), HasSubstr("holds tensor '")));

  write_shards(tensors);
  std::filesystem::resize_file(folder_.path() / kSecond, std::filesystem::file_size(folder_.path() / kSecond) - 1);
  EXPECT_THAT(fault(spec), AllOf(HasSubstr(kSecond), HasSubstr("tensor '" + last + "': needs bytes [")));

  write_shards(tensors, [&](auto& weights) { weights[first_of_second] = kFirst; });
  EXPECT_THAT(fault(spec), HasSubstr(fmt::format("index.json: names tensor '{}' in {}", first_of_second, kFirst)));

  write_shards(tensors, [&](auto& weights) { weights["absent"] = kSecond; });
  EXPECT_THAT(fault(spec), HasSubstr(fmt::format("names tensor 'absent' in {}, which does not hold it", kSecond)));

  write_shards(tensors, [&](auto& weights) { weights["x"] = "../model.safetensors"; });
  EXPECT_THAT(fault(spec), HasSubstr("tensor 'x': \"../model.safetensors\" is not the name of a file"));

  write_shards(tensors);
  auto twice =
      std::vector<FileTensor>(tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() / 2), tensors.end());
  twice.push_back(tensors[0]);
  write(twice, kSecond);
  EXPECT_THAT(fault(spec),
              AllOf(HasSubstr("'" + tensors[0].name + "' stands in"), HasSubstr(kFirst), HasSubstr(kSecond)));

  std::filesystem::remove(folder_.path() / "model.safetensors.index.json");
  EXPECT_THAT(fault(spec), HasSubstr("but no model.safetensors.index.json"));
}

TEST_F(ModelFolders, AStrayShardIsIgnoredWithAWarning) {
  const ModelSpec spec = test_spec(false);
  const auto tensors = tensors_of(spec);
  write_shards(tensors);
  real_files().write_text(folder_.path() / "model-00003-of-00003.safetensors", "not even a header", false);
  expect_loads(spec, tensors);
  EXPECT_THAT(warnings_, HasSubstr("ignores 'model-00003-of-00003.safetensors'"));
}

TEST_F(ModelFolders, AMissingTensorAndAWrongShapeAreNamed) {
  const ModelSpec spec = test_spec(false);
  auto tensors = tensors_of(spec);
  tensors.pop_back();
  write(tensors);
  EXPECT_THAT(fault(spec), HasSubstr("tensor 'lm_head.weight' is missing"));

  tensors = tensors_of(spec);
  tensors[2].shape = {6, 8};
  write(tensors);
  EXPECT_THAT(fault(spec),
              HasSubstr("tensor 'model.layers.0.self_attn.q_proj.weight' has shape [6, 8], but config.json "
                        "makes it [8, 6]"));
  tensors = tensors_of(spec);
  tensors[2].dtype = DType::kI32;
  write(tensors);
  EXPECT_THAT(fault(spec), HasSubstr("is I32; weights must be F32, BF16 or F16"));

  std::filesystem::remove(folder_.path() / "model.safetensors");
  EXPECT_THAT(fault(spec), HasSubstr("holds neither model.safetensors nor"));
  real_files().write_text(folder_.path() / "pytorch_model.bin", "x", false);
  EXPECT_THAT(fault(spec), HasSubstr("must be converted to safetensors"));
}

TEST_F(ModelFolders, NanAndInfinityAreRefusedNamingTensorAndIndex) {
  const ModelSpec spec = test_spec(false);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      auto tensors = tensors_of(spec);
      tensors[2].dtype = dtype;
      tensors[2].values[41] = bad;
      write(tensors);
      EXPECT_THAT(load_fault(spec), AllOf(HasSubstr("tensor 'model.layers.0.self_attn.q_proj.weight': element 41 is "),
                                          HasSubstr(std::isnan(bad) ? "nan" : "-inf")));
    }
  }
}

TEST_F(ModelFolders, KnownBuffersAreIgnoredSilentlyAndOthersWithAWarning) {
  const ModelSpec spec = test_spec(false);
  const auto tensors = tensors_of(spec);
  auto more = tensors;
  more.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {2}, {1, 2}});
  more.push_back({"transformer.h.0.attn.bias", {1, 1}, {1}});
  more.push_back({"h.0.attn.masked_bias", {}, {1}});
  write(more);
  expect_loads(spec, tensors);
  EXPECT_EQ(warnings_, "");
  more.push_back({"model.vision.weight", {1}, {1}});
  write(more);
  expect_loads(spec, tensors);
  EXPECT_THAT(warnings_, HasSubstr("ignores tensor 'model.vision.weight'"));
}

TEST_F(ModelFolders, ATiedAliasMayStandBesideTheMatrixOnlyWhenEqual) {
  const ModelSpec spec = test_spec(true);
  const auto tensors = tensors_of(spec);
  auto more = tensors;
  more.push_back({"lm_head.weight", tensors[0].shape, tensors[0].values, DType::kBf16});
  write(more);
  expect_loads(spec, tensors);
  EXPECT_EQ(warnings_, "");

  more.back().values[77] += 1;
  write(more);
  EXPECT_THAT(load_fault(spec),
              AllOf(HasSubstr("tensor 'lm_head.weight' differs from 'model.embed_tokens.weight' at element 77"),
                    HasSubstr("tie_word_embeddings")));

  more.back() = {"lm_head.weight", {6, 13}, tensors[0].values};
  write(more);
  EXPECT_THAT(fault(spec), HasSubstr("tensor 'lm_head.weight' has shape [6, 13]"));

  auto alias_only = tensors;
  alias_only[0].name = "lm_head.weight";
  write(alias_only);
  expect_loads(spec, tensors);
}

TEST_F(ModelFolders, NamesLoadWithAndWithoutTheBasePrefix) {
  const ModelSpec spec = test_spec(false);
  const auto tensors = tensors_of(spec);
  auto short_names = tensors;
  for (FileTensor& tensor : short_names) {
    if (tensor.name.starts_with("model.")) tensor.name = tensor.name.substr(6);
  }
  write(short_names);
  expect_loads(spec, tensors);

  ModelSpec gpt = spec;
  for (ParameterSpec& parameter : gpt.parameters) parameter.name = "transformer." + parameter.name;
  write(tensors);
  expect_loads(gpt, tensors);

  ModelSpec bare = spec;
  for (std::size_t i = 0; i < bare.parameters.size(); ++i) bare.parameters[i].name = short_names[i].name;
  write(tensors);
  expect_loads(bare, tensors);
  EXPECT_EQ(warnings_, "");

  auto both = tensors;
  both.push_back({"norm.weight", {6}, std::vector<float>(6, 1)});
  write(both);
  EXPECT_THAT(fault(spec), AllOf(HasSubstr("'model.norm.weight'"), HasSubstr("'norm.weight'")));
}

}  // namespace
}  // namespace protrain
