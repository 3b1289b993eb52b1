// Folders that a save left behind, on a disk that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/faulty_files.h"
#include "checkpoint/commit_mark.h"
#include "checkpoint/test_checkpoint.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Operations that `fails` picks end as those of a broken disk do.
class FailingFiles : public ForwardingFiles {
 public:
  using Fails = std::function<bool(std::string_view operation, const fs::path& path)>;
  explicit FailingFiles(Fails fails) : ForwardingFiles(real_files()), fails_(std::move(fails)) {}
  std::unique_ptr<ReadableFile> open(const fs::path& path) override {
    check("open", path);
    return inner_.open(path);
  }
  std::vector<std::string> list(const fs::path& path) override {
    check("list", path);
    return inner_.list(path);
  }
  bool exists(const fs::path& path) override { return !fails_("look at", path) && inner_.exists(path); }
  void rename(const fs::path& from, const fs::path& to) override {
    check("rename", from);
    inner_.rename(from, to);
  }
  void remove_all(const fs::path& path) override {
    check("remove", path);
    inner_.remove_all(path);
  }

 private:
  void check(std::string_view operation, const fs::path& path) const {
    if (fails_(operation, path)) fail(ExitCode::kFiles, "cannot {} {}: I/O error", operation, path.string());
  }
  Fails fails_;
};

using CheckpointLeftovers = TrainingCheckpoint;

TEST_F(CheckpointLeftovers, WhatCannotBeRemovedStopsNoSave) {
  FailingFiles stuck([](std::string_view operation, const fs::path&) { return operation == "remove"; });
  TestStore store(test_spec(false), DType::kBf16), loaded(test_spec(false), DType::kBf16);
  store.randomize(4);
  const auto save_stuck = [&](std::int64_t step) { save(store, step, 1, DType::kBf16, stuck); };
  const fs::path left = folder_.path() / ".checkpoint-11.partial";
  real_files().make_directories(left);
  real_files().write_text(left / "model.safetensors.partial", "half", false);

  EXPECT_THAT(warnings_of([&] { save_stuck(10); }), HasSubstr("cannot remove"));
  save_stuck(11);
  EXPECT_THAT(names(), ElementsAre(".checkpoint-10.removed", ".checkpoint-11.removed", "checkpoint-11"));
  save_stuck(10);  // a run that went back: the names of what goes are taken
  save_stuck(11);
  EXPECT_THAT(names(), ElementsAre(".checkpoint-10.removed", ".checkpoint-10.removed-1", ".checkpoint-11.removed",
                                   ".checkpoint-11.removed-1", "checkpoint-11"));
  save_stuck(11);  // what this one replaces is left as well
  EXPECT_THAT(names(), testing::Contains(".checkpoint-11.removed-2"));
  remove_checkpoints(stuck, folder_.path());
  EXPECT_EQ(newest_checkpoint(real_files(), folder_.path()), std::nullopt) << "what is going does not count";

  load(save(store, 12, 1), loaded);
  EXPECT_EQ(loaded.bits(), store.bits());
  EXPECT_THAT(names(), ElementsAre("checkpoint-12"));
}

TEST_F(CheckpointLeftovers, ALeftoverThatCannotBeRenamedStopsOnlyTheSaveThatNeedsItsName) {
  const fs::path left = folder_.path() / ".checkpoint-7.partial";
  real_files().make_directories(left);
  FailingFiles stuck([&](std::string_view operation, const fs::path& path) {
    return path == left && (operation == "remove" || operation == "rename");
  });
  TestStore store(test_spec(false), DType::kBf16);
  store.randomize(4);
  const auto save_stuck = [&](std::int64_t step) { save(store, step, 1, DType::kBf16, stuck); };
  EXPECT_THAT(warnings_of([&] { save_stuck(8); }), HasSubstr("cannot rename " + left.string()));
  EXPECT_THAT(error_of(ExitCode::kFiles, [&] { save_stuck(7); }),
              AllOf(HasSubstr("checkpoint-7 was not saved"), HasSubstr("checkpoint-8 is kept")));
}

TEST_F(CheckpointLeftovers, WhatCannotBeReadIsNotRemoved) {
  TestStore store(test_spec(false), DType::kBf16), loaded(test_spec(false), DType::kBf16);
  store.randomize(4);
  const fs::path partial = folder_.path() / ".checkpoint-5.partial";
  const std::vector<std::pair<std::string, fs::path>> faults = {
      {"open", partial / "COMMITTED"}, {"open", partial / "optimizer_v.safetensors"}, {"list", partial}};
  for (const auto& fault : faults) {
    SCOPED_TRACE(fault.first + " " + fault.second.string());
    FailingFiles unreadable([&](std::string_view operation, const fs::path& path) {
      const bool left = fs::exists(partial / "COMMITTED");  // and not the one that is being written
      return (left && operation == fault.first && path == fault.second) ||
             (operation == "look at" && path.parent_path() == partial);
    });
    fs::rename(save(store, 5), partial);  // a death before it took its place
    EXPECT_EQ(check_commit(unreadable, partial).commit, Commit::kUnknown);
    EXPECT_THAT(warnings_of([&] { save(store, 6, 1, DType::kBf16, unreadable); }), HasSubstr("cannot be told"));
    EXPECT_THAT(names(), ElementsAre(".checkpoint-5.partial", "checkpoint-6"));
    save(store, 5, 1, DType::kBf16, unreadable);  // its name is needed
    EXPECT_THAT(names(), ElementsAre("checkpoint-5", "checkpoint-5.set-aside-1"));
    EXPECT_EQ(load(folder_.path() / "checkpoint-5.set-aside-1", loaded).step, 5);
    for (const std::string& name : names()) fs::remove_all(folder_.path() / name);
  }
}

TEST_F(CheckpointLeftovers, ASaveThatCouldNotTakeItsPlaceStaysWhenItCannotBeReadEither) {
  const fs::path partial = folder_.path() / ".checkpoint-5.partial";
  FailingFiles broken([&](std::string_view operation, const fs::path& path) {
    return (operation == "rename" && path == partial) || (operation == "open" && path == partial / "COMMITTED");
  });
  TestStore store(test_spec(false), DType::kBf16), loaded(test_spec(false), DType::kBf16);
  store.randomize(4);
  EXPECT_THAT(error_of(ExitCode::kFiles, [&] { save(store, 5, 1, DType::kBf16, broken); }),
              HasSubstr("checkpoint-5 was not saved"));
  EXPECT_EQ(load(folder_.path() / "checkpoint-5", loaded).step, 5) << "it stands for the one that is not there";
  EXPECT_EQ(check_commit(real_files(), partial).commit, Commit::kWhole);
  fs::remove(partial / "config.json");
  EXPECT_EQ(check_commit(real_files(), partial).commit, Commit::kNone);
}

}  // namespace
}  // namespace protrain
