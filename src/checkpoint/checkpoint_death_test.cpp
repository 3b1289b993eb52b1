// A save that ends at any file operation leaves a checkpoint that loads, bit for bit the old state or the new one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "base/faulty_files.h"
#include "checkpoint/checkpoint_folders.h"
#include "checkpoint/test_store.h"
#include "checkpoint/training_checkpoint.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr unsigned kOldSeed = 31, kNewSeed = 32;

void save(Files& files, TestStore& store, const fs::path& output_dir, std::int64_t step, Bytes shard_bytes = 400) {
  SaveOptions options;
  options.keep_last = 1;
  options.model = {.dtype = DType::kBf16, .shard_bytes = shard_bytes};
  save_checkpoint(files, *store, {.step = step, .applied_updates = step, .extra_json = "{}"}, R"({"a": 1})",
                  output_dir / "source", output_dir / "out", options);
}

StateBits loaded(const fs::path& output_dir, std::int64_t* step = nullptr) {
  const auto newest = newest_checkpoint(real_files(), output_dir / "out");
  if (!newest) return {};
  TestStore store(test_spec(false), DType::kBf16, 1);
  const TrainingState state = load_checkpoint(real_files(), *newest, *store);
  if (step != nullptr) *step = state.step;
  return store.bits();
}

std::vector<std::string> names(const fs::path& output_dir) { return real_files().list(output_dir / "out"); }

// An output folder with the old state committed at step 5, and a source with a tokenizer; what a save starts from.
class SaveDeath : public testing::TestWithParam<std::int64_t> {
 protected:
  SaveDeath() : old_(test_spec(false), DType::kBf16), new_(test_spec(false), DType::kBf16) {
    old_.randomize(kOldSeed);
    new_.randomize(kNewSeed);
    real_files().make_directories(start() / "source");
    real_files().write_text(start() / "source" / "tokenizer.json", "{}", false);
    save(real_files(), old_, start(), 5);
  }

  fs::path start() const { return folder_.path() / "start"; }
  fs::path fresh() {
    const fs::path path = folder_.path() / "work";
    fs::remove_all(path);
    fs::copy(start(), path, fs::copy_options::recursive);
    return path;
  }

  // Dies at operation `at` of the save of `step`; false when the save has fewer. What is left must hold one of the
  // states, and the next save must succeed and clean up.
  bool survives(FileFault fault, std::int64_t step, std::int64_t at) {
    const fs::path work = fresh();
    fault.kind = FileFaultKind::kDie;
    fault.at = at;
    fault.throw_death = true;
    std::string died_in;
    {
      FaultyFiles files(real_files(), fault);
      try {
        save(files, new_, work, step);
        return false;
      } catch (const FileDeath&) {
        died_in = files.history().empty() ? "" : files.history().back();
      }
    }
    const auto where = [&] {
      return fmt::format("death at operation {} ({}), unsynced data {}, seed {}", at, died_in,
                         fault.drop_unsynced ? "lost" : "kept", fault.seed);
    };
    std::int64_t found = 0;
    const StateBits state = loaded(work, &found);
    const bool old_state = found == 5 && state == old_.bits(), new_state = found == step && state == new_.bits();
    EXPECT_TRUE(old_state || new_state) << where() << ": step " << found << " among "
                                        << testing::PrintToString(names(work));
    new_seen_ += new_state ? 1 : 0;
    old_seen_ += old_state ? 1 : 0;

    save(real_files(), old_, work, step + 1);
    EXPECT_THAT(names(work), ElementsAre(fmt::format("checkpoint-{}", step + 1))) << where();
    EXPECT_EQ(loaded(work), old_.bits()) << where();
    return true;
  }

  TemporaryFolder folder_;
  TestStore old_, new_;
  int old_seen_ = 0, new_seen_ = 0;
};

// Step 5 again: the committed folder of that name is replaced. Step 6: a new one, then the old one is removed.
TEST_P(SaveDeath, AtAnyFileOperationACheckpointIsLeft) {
  std::int64_t operations = 0;
  for (std::int64_t at = 1; survives({}, GetParam(), at); ++at) operations = at;
  EXPECT_GE(operations, 20);
  EXPECT_GE(old_seen_, 20) << "early deaths leave the old state";
  EXPECT_GE(new_seen_, 2) << "late ones the new state";
}

TEST_P(SaveDeath, AtAnyFileOperationWithUnsyncedDataLostACheckpointIsLeft) {
  for (const std::uint64_t seed : {0, 1}) {
    std::int64_t operations = 0;
    for (std::int64_t at = 1; survives({.drop_unsynced = true, .seed = seed}, GetParam(), at); ++at) operations = at;
    EXPECT_GE(operations, 20);
  }
}

INSTANTIATE_TEST_SUITE_P(NewAndSameStep, SaveDeath, testing::Values(6, 5));

// The machine may also die after the save returned: then all of it must be there.
TEST_F(SaveDeath, ASaveThatReturnedIsOnTheDisk) {
  for (const std::int64_t step : {5, 6}) {
    const fs::path work = fresh();
    FaultyFiles counting(real_files(), {});
    save(counting, new_, work, step);
    const fs::path again = fresh();
    FaultyFiles files(real_files(), {.kind = FileFaultKind::kDie,
                                     .at = counting.operations() + 1,
                                     .drop_unsynced = true,
                                     .seed = 1,
                                     .throw_death = true});
    save(files, new_, again, step);
    EXPECT_THROW(files.make_directories(again / "next"), FileDeath);
    EXPECT_EQ(loaded(again), new_.bits());
  }
}

TEST_F(SaveDeath, ADiskThatFillsAtAnyOperationLeavesTheOldOneAndSaysSo) {
  FaultyFiles counting(real_files(), {});
  save(counting, new_, fresh(), 6);
  int failed = 0;
  for (std::int64_t at = 1; at <= counting.operations(); ++at) {
    const fs::path work = fresh();
    FaultyFiles files(real_files(), {.kind = FileFaultKind::kNoSpace, .at = at});
    const std::string message = error_of(ExitCode::kFiles, [&] { save(files, new_, work, 6); });
    if (message.empty()) {
      EXPECT_EQ(loaded(work), new_.bits()) << "operation " << at;
      continue;
    }
    ++failed;
    EXPECT_THAT(message, HasSubstr("checkpoint-6 was not saved")) << "operation " << at;
    const StateBits state = loaded(work);
    EXPECT_TRUE(state == old_.bits() || state == new_.bits()) << "operation " << at;
    if (state == old_.bits()) {
      EXPECT_THAT(message, HasSubstr("checkpoint-5 is kept")) << "operation " << at;
      EXPECT_THAT(names(work), ElementsAre("checkpoint-5")) << "the room is given back, operation " << at;
    }
    save(real_files(), new_, work, 6);
    EXPECT_THAT(names(work), ElementsAre("checkpoint-6"));
  }
  EXPECT_GE(failed, 20);
}

TEST_F(SaveDeath, AFullTmpfsKeepsTheOldCheckpoint) {
  const fs::path work = folder_.path() / "small";
  fs::create_directory(work);
  if (mount("tmpfs", work.c_str(), "tmpfs", 0, "size=96k") != 0) {
    GTEST_SKIP() << "no right to mount a tmpfs: " << std::strerror(errno);
  }
  fs::create_directory(work / "source");
  save(real_files(), old_, work, 5, kMiB);
  real_files().write_text(work / "ballast", std::string(32 << 10, 'x'), false);
  int failed = 0;
  for (std::int64_t step = 6; step < 12; ++step) {
    const std::string message = error_of(ExitCode::kFiles, [&] { save(real_files(), new_, work, step); });
    if (!message.empty()) {
      ++failed;
      EXPECT_THAT(message,
                  AllOf(HasSubstr("was not saved"), HasSubstr("No space left on device"), HasSubstr(" is kept")));
      std::error_code ignored;
      fs::remove(work / "ballast", ignored);
      EXPECT_EQ(loaded(work), step == 6 ? old_.bits() : new_.bits());
    } else {
      EXPECT_EQ(loaded(work), new_.bits());
      real_files().write_text(work / "ballast", "", false);
    }
  }
  EXPECT_GE(failed, 1);
  EXPECT_EQ(umount(work.c_str()), 0);
}

// The real thing: a child that saves, its writes stretched, is killed at random times.
TEST_F(SaveDeath, KillNineAtAnyTimeLeavesACheckpoint) {
  constexpr int kKills = 20;
  constexpr double kStretch = 0.003;
  std::mt19937 random(5);
  for (int i = 0; i < kKills; ++i) {
    const fs::path work = fresh();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      TestStore store(test_spec(false), DType::kBf16);
      store.randomize(kNewSeed);
      FaultyFiles slow(real_files(), {.kind = FileFaultKind::kSleep, .at = 0, .sleep_seconds = kStretch});
      save(slow, store, work, 6);
      _exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<int>(5, 250)(random)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    std::int64_t step = 0;
    const StateBits state = loaded(work, &step);
    EXPECT_TRUE((step == 5 && state == old_.bits()) || (step == 6 && state == new_.bits())) << "kill " << i;
    old_seen_ += step == 5 ? 1 : 0;
  }
  EXPECT_GE(old_seen_, 1) << "some kills must hit a running save";
}

}  // namespace
}  // namespace protrain
