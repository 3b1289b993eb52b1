#include "checkpoint/training_checkpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <limits>
#include <map>
#include <set>

#include "base/faulty_files.h"
#include "checkpoint/commit_mark.h"
#include "checkpoint/digest_files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/target_folder.h"
#include "checkpoint/test_checkpoint.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(TrainingCheckpoint, AModelIsNotReadOutOfASaveThatIsNotWhole) {
  TestStore store(test_spec(false), DType::kBf16);
  const auto fault = [](const fs::path& folder) {
    return error_of(ExitCode::kFiles, [&] { check_saved(real_files(), folder); });
  };
  const fs::path unmarked = save(store, 1), robbed = save(store, 2), foreign = save(store, 3);
  EXPECT_NO_THROW(check_saved(real_files(), unmarked));
  fs::remove(unmarked / "COMMITTED");
  EXPECT_THAT(fault(unmarked), HasSubstr("checkpoint-1/COMMITTED is missing: its save did not finish"));
  fs::remove(unmarked / "optimizer_m.safetensors");
  fs::remove(unmarked / "optimizer_v.safetensors");
  EXPECT_THAT(fault(unmarked), HasSubstr("its save did not finish"));  // one of save_only_model
  fs::remove(robbed / "tokenizer.json");
  fs::remove(robbed / "optimizer_v.safetensors");
  EXPECT_THAT(fault(robbed), HasSubstr("optimizer_v.safetensors is missing"));
  // Another program's checkpoint-3 is a model folder like any other.
  for (const char* name : {"COMMITTED", "optimizer_m.safetensors", "optimizer_v.safetensors"}) {
    fs::remove(foreign / name);
  }
  real_files().write_text(foreign / "trainer_state.json", R"({"global_step": 3, "log_history": []})", false);
  EXPECT_NO_THROW(check_saved(real_files(), foreign));
}

TEST_F(TrainingCheckpoint, NoModelIsWrittenInsideACheckpointOrALiveRun) {
  TestStore store(test_spec(false), DType::kBf16);
  const fs::path saved = save(store, 1);
  const auto check = [&](const fs::path& to) { check_model_target(real_files(), "export", saved, to, true); };
  EXPECT_THAT(error_of(ExitCode::kConfig, [&] { check(saved / "a" / "b"); }), HasSubstr("a checkpoint"));
  EXPECT_NO_THROW(check(folder_.path() / "hf"));
  const int lock = open((folder_.path() / ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  EXPECT_THAT(error_of(ExitCode::kConfig, [&] { check(folder_.path() / "hf"); }), HasSubstr("a run that is going on"));
  close(lock);
  EXPECT_NO_THROW(check(folder_.path() / "hf"));
}

TEST_F(TrainingCheckpoint, AModelsFolderThatCannotBeLookedAtIsRefused) {
  fs::create_symlink("loop", folder_.path() / "loop");
  real_files().write_text(folder_.path() / "file", "", false);
  const std::map<fs::path, std::string> faults = {
      {folder_.path() / "loop", "Too many levels of symbolic links; give a folder to write to"},
      {folder_.path() / std::string(5000, 'a'), "File name too long; give a folder to write to"},
      {folder_.path() / "file", "is not a folder; give a folder to write to"},
  };
  for (const auto& [to, fault] : faults) {
    const auto check = [&] { check_model_target(real_files(), "export", folder_.path(), to, false); };
    EXPECT_THAT(error_of(ExitCode::kConfig, check), HasSubstr(fault));
    EXPECT_FALSE(weight_file_in(real_files(), to));
    EXPECT_FALSE(model_file_in(real_files(), to));
  }
}

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
  TestStore loaded(spec, DType::kF32);
  EXPECT_EQ(warnings_of([&] { ModelFolder(real_files(), path, spec).load(*loaded); }), "");
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

void flip(const fs::path& file, std::uintmax_t at) {
  std::string text = real_files().read_text(file);
  text.at(at) = static_cast<char>(text.at(at) ^ 0x10);
  real_files().write_text(file, text, false);
}

TEST_F(TrainingCheckpoint, AFlippedByteAnywhereIsRefusedNamingTheFile) {
  real_files().make_directories(folder_.path() / "source");
  real_files().write_text(folder_.path() / "source" / "tokenizer.json", R"({"a": "b"})", false);
  std::set<std::string> seen;
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const Bytes shard_bytes : {Bytes{400}, kGiB}) {
      TestStore store(test_spec(false), DType::kBf16);
      store.randomize(4);
      const SaveOptions options = {.keep_last = 1, .model = {.dtype = dtype, .shard_bytes = shard_bytes}};
      const fs::path path = save_checkpoint(real_files(), *store, {.step = 5, .extra_json = "{}"}, kConfig,
                                            folder_.path() / "source", folder_.path(), options);
      for (const std::string& name : real_files().list(path)) {
        seen.insert(name);
        const std::uintmax_t bytes = fs::file_size(path / name);
        for (const std::uintmax_t at : {std::uintmax_t{0}, bytes / 2, bytes - 1}) {
          flip(path / name, at);
          std::string message;
          try {
            TestStore loaded(test_spec(false), DType::kBf16);
            load(path, loaded);
          } catch (const DamagedCheckpoint& damaged) {
            message = damaged.what();
          }
          EXPECT_THAT(message, AllOf(HasSubstr((path / name).string()), HasSubstr("damaged"))) << name << " at " << at;
          flip(path / name, at);
        }
      }
      EXPECT_EQ(load_fault(path), "");
    }
  }
  EXPECT_THAT(seen,
              testing::IsSupersetOf({"COMMITTED", "config.json", "tokenizer.json", "trainer_state.json",
                                     "model.safetensors", "model.safetensors.index.json", "residual.safetensors",
                                     "master.safetensors", "optimizer_m.safetensors", "optimizer_v.safetensors"}));
}

// Counts the bytes that are read of each file.
class CountingFiles : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;
  std::unique_ptr<ReadableFile> open(const fs::path& path) override {
    return std::make_unique<File>(inner_.open(path), &bytes_[path.filename().string()]);
  }
  const std::map<std::string, Bytes>& bytes() const { return bytes_; }

 private:
  class File : public ReadableFile {
   public:
    File(std::unique_ptr<ReadableFile> file, Bytes* bytes) : file_(std::move(file)), bytes_(bytes) {}
    Bytes size() const override { return file_->size(); }
    void read_at(Bytes offset, std::span<std::byte> to) const override {
      *bytes_ += static_cast<Bytes>(to.size());
      file_->read_at(offset, to);
    }

   private:
    std::unique_ptr<ReadableFile> file_;
    Bytes* bytes_;
  };
  std::map<std::string, Bytes> bytes_;
};

TEST_F(TrainingCheckpoint, DigestsCostNoSecondReadOfAnyFile) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    TestStore store(test_spec(true), DType::kBf16), loaded(test_spec(true), DType::kBf16);
    store.randomize(4);
    CountingFiles files(real_files());
    SaveOptions options;
    options.model = {.dtype = dtype, .shard_bytes = 400};
    const fs::path path =
        save_checkpoint(files, *store, {.step = 5, .extra_json = "{}"}, kConfig, {}, folder_.path(), options);
    for (const auto& [name, bytes] : files.bytes()) {
      EXPECT_EQ(bytes, 0) << "read while saving: " << name;
    }
    load_checkpoint(files, path, *loaded);
    for (const std::string& name : real_files().list(path)) {
      if (name == "COMMITTED") continue;
      // The header's length is read before the header.
      EXPECT_EQ(files.bytes().at(name), static_cast<Bytes>(fs::file_size(path / name))) << name;
    }
    fs::remove_all(path);
  }
}

TEST_F(TrainingCheckpoint, WhatIsWrongWithNewerOnesIsTold) {
  EXPECT_TRUE(find_checkpoints(real_files(), folder_.path() / "absent").complete.empty());
  TestStore store(test_spec(false), DType::kBf16);
  store.randomize(4);
  for (const std::int64_t step : {1, 2, 3, 4}) save(store, step);
  fs::remove(folder_.path() / "checkpoint-1" / "COMMITTED");
  fs::remove(folder_.path() / "checkpoint-3" / "optimizer_v.safetensors");
  fs::resize_file(folder_.path() / "checkpoint-4" / "optimizer_m.safetensors", 100);
  FoundCheckpoints found = find_checkpoints(real_files(), folder_.path());
  EXPECT_THAT(found.complete, ElementsAre(folder_.path() / "checkpoint-2"));
  EXPECT_THAT(found.faults, ElementsAre(HasSubstr("checkpoint-4/optimizer_m.safetensors has 100 bytes"),
                                        HasSubstr("checkpoint-3/optimizer_v.safetensors is missing")));
  fs::remove(folder_.path() / "checkpoint-2" / "config.json");
  found = find_checkpoints(real_files(), folder_.path());
  EXPECT_TRUE(found.complete.empty());
  EXPECT_EQ(found.faults.size(), 4U);
}

TEST_F(TrainingCheckpoint, ABranchThatIsLeftIsKeptUnderANameThatDoesNotCount) {
  TestStore store(test_spec(false), DType::kBf16);
  store.randomize(4);
  const auto steps_left = [&] {
    std::vector<std::string> all;
    for (const fs::path& path : find_checkpoints(real_files(), folder_.path()).complete) {
      all.push_back(path.filename().string());
    }
    return all;
  };
  for (std::int64_t at = 1;; ++at) {
    for (const std::string& name : names()) fs::remove_all(folder_.path() / name);
    for (const std::int64_t step : {2, 4, 6, 10}) save(store, step);
    fs::remove(folder_.path() / "checkpoint-10" / "COMMITTED");
    bool died = false;
    try {
      FaultyFiles files(real_files(),
                        {.kind = FileFaultKind::kDie, .at = at, .drop_unsynced = true, .throw_death = true});
      EXPECT_EQ(set_aside_after(files, folder_.path(), 2).size(), 3U);
    } catch (const FileDeath&) {
      died = true;
    }
    EXPECT_EQ(names().size(), 4U) << "death at operation " << at << " loses nothing";
    set_aside_after(real_files(), folder_.path(), 2);
    EXPECT_THAT(steps_left(), ElementsAre("checkpoint-2")) << at;
    if (!died) break;
  }
  save(store, 4, 1);  // the new branch; save_total_limit
  EXPECT_THAT(names(), ElementsAre("checkpoint-10.set-aside-1", "checkpoint-4", "checkpoint-4.set-aside-1",
                                   "checkpoint-6.set-aside-1"));
  set_aside_after(real_files(), folder_.path(), 2);  // once more, from the same place
  EXPECT_THAT(names(), testing::Contains("checkpoint-4.set-aside-2"));
  TestStore loaded(test_spec(false), DType::kBf16);
  EXPECT_EQ(load(folder_.path() / "checkpoint-6.set-aside-1", loaded).step, 6) << "it can be gone back to";
}

TEST_F(TrainingCheckpoint, ACheckpointOfTheModelAloneIsAModelButNotAPlaceToResume) {
  const ModelSpec spec = test_spec(false);
  TestStore store(spec, DType::kBf16), loaded(spec, DType::kF32);
  store.randomize(4);
  const SaveOptions options = {.model_only = true, .model = {}};
  const fs::path path =
      save_checkpoint(real_files(), *store, {.step = 5, .extra_json = "{}"}, kConfig, {}, folder_.path(), options);
  EXPECT_THAT(real_files().list(path),
              ElementsAre("COMMITTED", "config.json", "model.safetensors", "trainer_state.json"));
  EXPECT_THAT(load_fault(path), AllOf(HasSubstr("checkpoint-5"), HasSubstr("save_only_model")));
  ModelFolder(real_files(), path, spec).load(*loaded);
  EXPECT_EQ(newest_checkpoint(real_files(), folder_.path()), path);
}

TEST_F(TrainingCheckpoint, TheNewestThatCanBeResumedFromOutlivesModelsAlone) {
  TestStore store(test_spec(false), DType::kBf16);
  store.randomize(4);
  save(store, 40);
  save(store, 50);
  save_model(store, 60, 1);
  EXPECT_THAT(names(), ElementsAre("checkpoint-50", "checkpoint-60"));
  save_model(store, 70, 1);
  EXPECT_THAT(names(), ElementsAre("checkpoint-50", "checkpoint-70"));
  save(store, 80, 1);
  EXPECT_THAT(names(), ElementsAre("checkpoint-80"));
}

TEST_F(TrainingCheckpoint, ModelsAloneArePassedOverWhereThereIsAPlaceToResume) {
  TestStore store(test_spec(false), DType::kBf16);
  store.randomize(4);
  const fs::path first = save_model(store, 10, 0), second = save_model(store, 20, 0);
  FoundCheckpoints found = find_checkpoints(real_files(), folder_.path());
  EXPECT_THAT(found.complete, ElementsAre(second, first)) << "for the refusal that names one";
  EXPECT_TRUE(found.faults.empty());

  const fs::path third = save(store, 15);
  fs::remove(save(store, 17) / "COMMITTED");
  found = find_checkpoints(real_files(), folder_.path());
  EXPECT_THAT(found.complete, ElementsAre(third));
  EXPECT_THAT(found.faults,
              ElementsAre(HasSubstr("checkpoint-20 holds the model alone"), HasSubstr("checkpoint-17/COMMITTED")));
}

TEST_F(TrainingCheckpoint, EachNewLevelOfAFolderIsOnTheDisk) {
  const fs::path top = folder_.path() / "a", folder = top / "b" / "c" / "";
  FaultyFiles counting(real_files(), {});
  make_target_folder(counting, "output_dir", folder);
  EXPECT_EQ(counting.operations(), 4);
  make_target_folder(counting, "output_dir", folder);
  EXPECT_EQ(counting.operations(), 5) << "nothing new, nothing to sync";
  fs::remove_all(top);
  FaultyFiles files(real_files(), {.kind = FileFaultKind::kDie, .at = 5, .drop_unsynced = true, .throw_death = true});
  make_target_folder(files, "output_dir", folder);
  EXPECT_THROW(files.make_directories(top / "next"), FileDeath);
  EXPECT_TRUE(fs::is_directory(folder));
  const fs::path relative = fs::relative(top) / "d" / ".." / "e";
  make_target_folder(real_files(), "output_dir", relative);
  EXPECT_TRUE(fs::is_directory(top / "e"));
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

// Makes the mark vouch for what the folder holds now.
void recommit(const fs::path& folder) {
  DigestingFiles files(real_files(), folder);
  for (const std::string& name : files.list(folder))
    files.write_text(folder / name, files.read_text(folder / name), false);
  write_commit_mark(real_files(), folder, files.digests());
}

// Overwrites 4 bytes of a state file, with the mark's consent.
void patch(const fs::path& file, const std::string& tensor, std::int64_t element, float value) {
  std::string text = real_files().read_text(file);
  const SafetensorsFile tensors(real_files(), file);
  std::memcpy(text.data() + tensors.find(tensor)->offset + element * 4, &value, 4);
  real_files().write_text(file, text, false);
  recommit(file.parent_path());
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
