#include "base/faulty_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

constexpr FileFaultKind kDie = FileFaultKind::kDie;

class Faults : public ::testing::Test {
 protected:
  Faults() : root_(fs::path(::testing::TempDir()) / ("faulty_files" + std::to_string(::getpid()))) { clear(); }
  ~Faults() override { fs::remove_all(root_); }
  void clear() {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  bool there(const std::string& name) const { return fs::exists(root_ / name); }
  std::string text(const std::string& name) const { return real_files().read_text(root_ / name); }

  // A save as it should be: written aside, synced, renamed, old ones removed after.
  void careful_save(Files& files, const std::string& content) {
    files.make_directories(root_ / "tmp");
    files.write_text(root_ / "tmp" / "data", content, true);
    files.write_text(root_ / "tmp" / "mark", content, true);
    files.sync_directory(root_ / "tmp");
    files.rename(root_ / "tmp", root_ / content);
    files.sync_directory(root_);
  }

  fs::path root_;
};

TEST_F(Faults, CountsEveryOperationThatChangesSomethingAndNoOther) {
  FaultyFiles files(real_files(), {});
  careful_save(files, "one");
  files.read_text(root_ / "one" / "data");
  files.exists(root_);
  files.list(root_);
  EXPECT_EQ(files.operations(), 12);  // mkdir, 2 x (create, write, sync, close), sync_directory, rename, sync_directory
  EXPECT_EQ(files.history()[1], "create " + (root_ / "tmp" / "data").string());
  EXPECT_EQ(text("one/data"), "one");
}

// Every point of death, with and without loss of what was not synced: the old one is whole, the new one whole or not
// there.
TEST_F(Faults, ACarefulSaveSurvivesEveryDeathAndEveryLoss) {
  FaultyFiles counter(real_files(), {});
  careful_save(counter, "old");
  const std::int64_t operations = counter.operations();
  for (const bool drop : {false, true}) {
    for (std::int64_t at = 1; at <= operations; ++at) {
      for (const std::uint64_t seed : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << "dies at " << at << " drop " << drop << " seed " << seed);
        clear();
        careful_save(real_files(), "old");
        FaultyFiles files(real_files(),
                          {.kind = kDie, .at = at, .drop_unsynced = drop, .seed = seed, .throw_death = true});
        EXPECT_THROW(careful_save(files, "new"), FileDeath);
        EXPECT_THROW(files.exists(root_), FileDeath);
        EXPECT_EQ(text("old/data"), "old");
        if (there("new")) {
          EXPECT_EQ(text("new/data"), "new");
          EXPECT_EQ(text("new/mark"), "new");
        }
      }
    }
  }
}

TEST_F(Faults, UnsyncedDataIsCutOffOrZeroedAndSyncedDataStays) {
  for (const std::uint64_t seed : {0, 1}) {
    clear();
    FaultyFiles files(real_files(), {.kind = kDie, .at = 6, .drop_unsynced = true, .seed = seed, .throw_death = true});
    const auto file = files.create(root_ / "a");                      // 1
    file->write(std::as_bytes(std::span(std::string_view("kept"))));  // 2
    file->sync();                                                     // 3
    files.sync_directory(root_);                                      // 4
    file->write(std::as_bytes(std::span(std::string_view("lost"))));  // 5
    EXPECT_THROW(file->close(), FileDeath);
    EXPECT_EQ(text("a"), seed == 0 ? std::string("kept") : std::string("kept\0\0\0\0", 8));
  }
}

TEST_F(Faults, ASyncedFileWithoutItsDirectorysSyncIsLost) {
  FaultyFiles files(real_files(), {.kind = kDie, .at = 5, .drop_unsynced = true, .throw_death = true});
  files.write_text(root_ / "a", "data", true);
  EXPECT_THROW(files.make_directories(root_ / "b"), FileDeath);
  EXPECT_FALSE(there("a"));
}

TEST_F(Faults, AReplacementWithoutDirectorySyncGivesTheOldFileBack) {
  real_files().write_text(root_ / "a", "old", true);
  FaultyFiles files(real_files(), {.kind = kDie, .at = 7, .drop_unsynced = true, .throw_death = true});
  files.write_text(root_ / "a.tmp", "new", true);
  files.sync_directory(root_);
  files.rename(root_ / "a.tmp", root_ / "a");
  EXPECT_THROW(files.make_directories(root_ / "b"), FileDeath);
  EXPECT_EQ(text("a"), "old");
  EXPECT_EQ(text("a.tmp"), "new");
}

TEST_F(Faults, ASafeRenameOfAFolderWhoseNamesWereNotSyncedLosesTheNames) {
  FaultyFiles files(real_files(), {.kind = kDie, .at = 8, .drop_unsynced = true, .throw_death = true});
  files.make_directories(root_ / "tmp");                   // 1
  files.write_text(root_ / "tmp" / "data", "data", true);  // 2 to 5
  files.rename(root_ / "tmp", root_ / "new");              // 6
  files.sync_directory(root_);                             // 7
  EXPECT_THROW(files.make_directories(root_ / "b"), FileDeath);
  EXPECT_TRUE(there("new"));
  EXPECT_FALSE(there("new/data"));
}

TEST_F(Faults, NamesSyncedUnderTheFoldersNewNameStay) {
  FaultyFiles files(real_files(), {.kind = kDie, .at = 9, .drop_unsynced = true, .throw_death = true});
  files.make_directories(root_ / "tmp");
  files.write_text(root_ / "tmp" / "data", "data", true);
  files.rename(root_ / "tmp", root_ / "new");
  files.sync_directory(root_ / "new");
  files.sync_directory(root_);
  EXPECT_THROW(files.make_directories(root_ / "b"), FileDeath);
  EXPECT_EQ(text("new/data"), "data");
}

TEST_F(Faults, ARemovalThatWasNotSyncedComesBack) {
  careful_save(real_files(), "old");
  FaultyFiles files(real_files(), {.kind = kDie, .at = 2, .drop_unsynced = true, .throw_death = true});
  files.remove_all(root_ / "old");
  EXPECT_FALSE(there("old"));
  EXPECT_THROW(files.sync_directory(root_), FileDeath);
  EXPECT_EQ(text("old/data"), "old");
  EXPECT_EQ(text("old/mark"), "old");
}

TEST_F(Faults, ADyingRemovalLeavesHalfOfTheTree) {
  bool data_left = false;
  bool mark_left = false;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    clear();
    careful_save(real_files(), "old");
    FaultyFiles files(real_files(), {.kind = kDie, .at = 1, .seed = seed, .throw_death = true});
    EXPECT_THROW(files.remove_all(root_ / "old"), FileDeath);
    EXPECT_NE(there("old/data"), there("old/mark")) << "seed " << seed;
    data_left |= there("old/data");
    mark_left |= there("old/mark");
  }
  EXPECT_TRUE(data_left && mark_left) << "the seed should pick the half";
}

TEST_F(Faults, ADyingWriteIsHalfDone) {
  FaultyFiles files(real_files(), {.kind = kDie, .at = 2, .throw_death = true});
  EXPECT_THROW(files.write_text(root_ / "a", "12345678", false), FileDeath);
  EXPECT_EQ(text("a"), "1234");
}

TEST_F(Faults, AFullDiskStaysFullButLetsRemove) {
  FaultyFiles files(real_files(), {.kind = FileFaultKind::kNoSpace, .at = 2});
  for (const char* name : {"a", "b"}) {
    try {
      files.write_text(root_ / name, "x", false);
      FAIL() << "wrote to a full disk";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kFiles);
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos);
    }
  }
  files.remove_all(root_ / "a");
  EXPECT_FALSE(there("a"));
}

TEST_F(Faults, ARealDeathEndsTheProcessAsAKillDoes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto die = [&] {
    FaultyFiles files(real_files(), {.kind = kDie, .at = 2});
    files.write_text(root_ / "a", "12345678", false);
  };
  EXPECT_EXIT(die(), ::testing::ExitedWithCode(137), "");
}

TEST_F(Faults, SleepStretchesOperations) {
  FaultyFiles files(real_files(), {.kind = FileFaultKind::kSleep, .sleep_seconds = 0.01});
  const auto start = std::chrono::steady_clock::now();
  files.write_text(root_ / "a", "x", false);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
}

TEST_F(Faults, TheTextFormIsReadAndBadOnesAreRefused) {
  const FileFault die = parse_file_fault("die@17,drop_unsynced,seed=3");
  EXPECT_EQ(die.kind, kDie);
  EXPECT_EQ(die.at, 17);
  EXPECT_TRUE(die.drop_unsynced);
  EXPECT_EQ(die.seed, 3u);
  const FileFault sleep = parse_file_fault("sleep=0.05");
  EXPECT_EQ(sleep.kind, FileFaultKind::kSleep);
  EXPECT_EQ(sleep.at, 0);
  EXPECT_EQ(sleep.sleep_seconds, 0.05);
  EXPECT_EQ(parse_file_fault("no_space@4").kind, FileFaultKind::kNoSpace);
  for (const char* text : {"", "die", "die@", "die@0", "die@x", "die@3,", "die@3,drop", "sleep", "sleep=x", "no_space",
                           "no_space@2,drop_unsynced", "explode@3"}) {
    EXPECT_THROW(parse_file_fault(text), Error) << text;
  }
}

TEST_F(Faults, ManyThreadsAreCountedWithoutLoss) {
  FaultyFiles files(real_files(), {});
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 20; ++i) files.write_text(root_ / std::to_string(thread), "x", false);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(files.operations(), 4 * 20 * 3);
}

}  // namespace
}  // namespace protrain
