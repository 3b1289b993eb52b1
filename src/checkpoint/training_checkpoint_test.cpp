#include "checkpoint/training_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/test_store.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kConfig = R"({"model_type": "llama"})";

class TrainingCheckpoint : public testing::Test {
 protected:
  fs::path save(TestStore& store, std::int64_t step, int keep_last = 0, DType dtype = DType::kBf16) {
    SaveOptions options;
    options.keep_last = keep_last;
    options.model.dtype = dtype;
    const TrainingState state{
        .step = step, .applied_updates = step - 1, .data_fingerprint = ~std::uint64_t{5}, .extra_json = kExtra};
    return save_checkpoint(real_files(), *store, state, kConfig, {}, folder_.path(), options);
  }
  TrainingState load(const fs::path& path, TestStore& store) { return load_checkpoint(real_files(), path, *store); }
  std::string load_fault(const fs::path& path, const ModelSpec& spec = test_spec(false)) {
    TestStore store(spec, DType::kBf16);
    return error_of(ExitCode::kFiles, [&] { load(path, store); });
  }
  std::vector<std::string> names() { return real_files().list(folder_.path()); }

  static constexpr const char* kExtra = R"({"loss":0.1234567890123456789,"list":[1,{"b":2,"a":null}]})";
  TemporaryFolder folder_;
};

TEST_F(TrainingCheckpoint, EveryBitComesBackWhateverChunksDtypesAndTies) {
  for (const bool tied : {false, true}) {
    for (const DType compute : {DType::kF32, DType::kBf16}) {
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
        const ModelSpec spec = test_spec(tied);
        TestStore saved(spec, compute);
        saved.randomize(21);
        const fs::path path = save(saved, 7, 0, dtype);
        for (const Bytes chunk_bytes : {Bytes{1}, Bytes{4096}, kMiB}) {
          TestStore loaded(spec, compute, chunk_bytes);
          const TrainingState state = load(path, loaded);
          EXPECT_EQ(loaded.bits(), saved.bits());
          EXPECT_EQ(state.step, 7);
          EXPECT_EQ(state.applied_updates, 6);
          EXPECT_EQ(state.data_fingerprint, ~std::uint64_t{5});
          EXPECT_EQ(state.extra_json, R"({"loss":0.12345678901234568,"list":[1,{"b":2,"a":null}]})");
        }
      }
    }
  }
  EXPECT_GT(TestStore(test_spec(false), DType::kF32, 1).chunks(), TestStore(test_spec(false), DType::kF32).chunks());
}

TEST_F(TrainingCheckpoint, TheMastersAreExactInTheOtherComputeDtypeToo) {
  const ModelSpec spec = test_spec(false);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    TestStore saved(spec, DType::kBf16);
    saved.randomize(22);
    TestStore wide(spec, DType::kF32);
    load(save(saved, 1, 0, dtype), wide);
    TestStore narrow(spec, DType::kBf16);
    load(save(wide, 2, 0, dtype), narrow);
    EXPECT_EQ(narrow.bits(), saved.bits());
    for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
      EXPECT_EQ(wide.masters(static_cast<Id>(i)), saved.masters(static_cast<Id>(i)));
    }
  }
}

TEST_F(TrainingCheckpoint, TheModelInsideLoadsAsAModelFolder) {
  const ModelSpec spec = test_spec(false);
  TestStore saved(spec, DType::kBf16);
  saved.randomize(3);
  const fs::path path = save(saved, 3);
  std::string warnings;
  log::set_sink([&](log::Level, const std::string& line) { warnings += line; });
  TestStore loaded(spec, DType::kF32);
  ModelFolder(real_files(), path, spec).load(*loaded);
  log::set_sink({});
  EXPECT_EQ(warnings, "");
}

TEST_F(TrainingCheckpoint, TheNewestCommittedOneIsFound) {
  EXPECT_EQ(newest_checkpoint(real_files(), folder_.path() / "absent"), std::nullopt);
  EXPECT_EQ(newest_checkpoint(real_files(), folder_.path()), std::nullopt);
  TestStore store(test_spec(false), DType::kF32);
  store.randomize(4);
  for (const std::int64_t step : {9, 10, 100}) save(store, step);
  EXPECT_EQ(newest_checkpoint(real_files(), folder_.path()), folder_.path() / "checkpoint-100");
  fs::remove(folder_.path() / "checkpoint-100" / "COMMITTED");
  EXPECT_EQ(newest_checkpoint(real_files(), folder_.path()), folder_.path() / "checkpoint-10");
  fs::create_directory(folder_.path() / "checkpoint-final");
  fs::create_directory(folder_.path() / "checkpoint-2000");
  EXPECT_EQ(newest_checkpoint(real_files(), folder_.path()), folder_.path() / "checkpoint-10");
}

TEST_F(TrainingCheckpoint, KeepLastKeepsTheNewestAndTheOneJustSaved) {
  TestStore store(test_spec(false), DType::kF32);
  store.randomize(4);
  for (const std::int64_t step : {2, 4, 10}) save(store, step);
  save(store, 12, 2);
  EXPECT_THAT(names(), ElementsAre("checkpoint-10", "checkpoint-12"));
  save(store, 11, 2);  // a run that went back
  EXPECT_THAT(names(), ElementsAre("checkpoint-11", "checkpoint-12"));
  save(store, 20, 1);
  EXPECT_THAT(names(), ElementsAre("checkpoint-20"));
  remove_checkpoints(real_files(), folder_.path());
  EXPECT_THAT(names(), ElementsAre());
}

TEST_F(TrainingCheckpoint, SavingTheSameStepAgainReplacesIt) {
  const ModelSpec spec = test_spec(false);
  TestStore store(spec, DType::kBf16), loaded(spec, DType::kBf16);
  store.randomize(4);
  save(store, 5);
  store.randomize(5);
  const fs::path path = save(store, 5);
  EXPECT_THAT(names(), ElementsAre("checkpoint-5"));
  load(path / "", loaded);
  EXPECT_EQ(loaded.bits(), store.bits());
}

TEST_F(TrainingCheckpoint, AFolderOfAnotherProgramIsKept) {
  const fs::path foreign = folder_.path() / "checkpoint-5";
  real_files().make_directories(foreign);
  real_files().write_text(foreign / "model.safetensors", "someone's weights", false);
  TestStore store(test_spec(false), DType::kF32);
  store.randomize(4);
  save(store, 4, 1);
  save(store, 6, 1);
  EXPECT_EQ(real_files().read_text(foreign / "model.safetensors"), "someone's weights");
  save(store, 5, 1);
  EXPECT_EQ(real_files().read_text(folder_.path() / "checkpoint-5.set-aside-1" / "model.safetensors"),
            "someone's weights");
  EXPECT_EQ(load_fault(foreign), "");
}

TEST_F(TrainingCheckpoint, AFolderThatIsNotWholeIsRefusedWithItsReason) {
  TestStore store(test_spec(false), DType::kBf16);
  store.randomize(4);
  const fs::path path = folder_.path() / "checkpoint-5";
  EXPECT_THAT(load_fault(path), HasSubstr("no such checkpoint"));
  save(store, 5);
  const std::vector<std::string> files = real_files().list(path);
  EXPECT_EQ(files.size(), 7U);
  for (const std::string& name : files) {
    save(store, 5);
    fs::remove(path / name);
    EXPECT_THAT(load_fault(path), HasSubstr(name + " is missing"));
    if (name == "COMMITTED") continue;
    save(store, 5);
    fs::resize_file(path / name, fs::file_size(path / name) - 1);
    EXPECT_THAT(load_fault(path), AllOf(HasSubstr(name + " has "), HasSubstr(" were saved")));
  }
  for (std::uintmax_t bytes = 0; bytes < fs::file_size(path / "COMMITTED"); bytes += 13) {
    save(store, 5);
    fs::resize_file(path / "COMMITTED", bytes);
    EXPECT_THAT(load_fault(path), HasSubstr("COMMITTED is damaged"));
  }
}

TEST_F(TrainingCheckpoint, AnotherModelsShapeIsRefusedNamingATensor) {
  TestStore store(test_spec(false), DType::kBf16);
  store.randomize(4);
  const fs::path path = save(store, 5);
  EXPECT_THAT(
      load_fault(path, test_spec(false, 11)),
      HasSubstr("tensor 'model.layers.0.mlp.down_proj.weight' has shape [6, 10], but config.json makes it [6, 11]"));
  ModelSpec more = test_spec(false);
  more.parameters[1].name = "model.layers.0.another.weight";
  EXPECT_THAT(load_fault(path, more), HasSubstr("'model.layers.0.another.weight' is missing"));
}

// Overwrites 4 bytes of a state file behind the mark's back.
void patch(const fs::path& file, const std::string& tensor, std::int64_t element, float value) {
  std::string text = real_files().read_text(file);
  const SafetensorsFile tensors(real_files(), file);
  std::memcpy(text.data() + tensors.find(tensor)->offset + element * 4, &value, 4);
  real_files().write_text(file, text, false);
}

TEST_F(TrainingCheckpoint, MomentsThatCannotBeAreRefusedNamingTensorAndIndex) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  struct Case {
    const char* file;
    float value;
  };
  for (const Case& test : std::initializer_list<Case>{{"optimizer_m.safetensors", kNan},
                                                      {"optimizer_m.safetensors", -kInf},
                                                      {"optimizer_v.safetensors", kInf},
                                                      {"optimizer_v.safetensors", kNan},
                                                      {"optimizer_v.safetensors", -1e-30F}}) {
    TestStore store(test_spec(false), DType::kBf16);
    store.randomize(4);
    const fs::path path = save(store, 5);
    patch(path / test.file, "lm_head.weight", 33, test.value);
    EXPECT_THAT(load_fault(path), AllOf(HasSubstr(test.file), HasSubstr("tensor 'lm_head.weight': element 33 is ")));
  }
}

TEST_F(TrainingCheckpoint, AStateThatCouldNotBeLoadedIsNotSavedAndTheOldOneStays) {
  const ModelSpec spec = test_spec(false);
  TestStore store(spec, DType::kBf16), loaded(spec, DType::kBf16);
  store.randomize(4);
  save(store, 5, 1);
  const StateBits before = store.bits();
  const float bad = -1;
  store->write(3, Part::kV, 2, 1, reinterpret_cast<const std::byte*>(&bad));
  EXPECT_THAT(error_of(ExitCode::kNonFinite, [&] { save(store, 6, 1); }),
              AllOf(HasSubstr("checkpoint-6 was not saved"), HasSubstr("self_attn.k_proj.weight': element 2 is -1"),
                    HasSubstr("checkpoint-5 is kept")));
  EXPECT_THAT(names(), ElementsAre("checkpoint-5"));
  load(folder_.path() / "checkpoint-5", loaded);
  EXPECT_EQ(loaded.bits(), before);
}

}  // namespace
}  // namespace protrain
