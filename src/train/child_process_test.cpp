#include "train/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <chrono>
#include <csignal>
#include <thread>

#include "train/python.h"
#include "train/signals.h"

namespace protrain {
namespace {

using ::testing::ElementsAre;

TEST(ChildProcessTest, GivesLinesOfBothStreamsAndTheStatus) {
  std::vector<std::string> lines;
  const int status = run_child({"sh", "-c", "echo one; echo \"two $WORD\" >&2; printf three; exit 4"},
                               {{"WORD", "x y"}}, [&](const std::string& line) { lines.push_back(line); });
  EXPECT_EQ(status, 4);
  EXPECT_THAT(lines, ElementsAre("one", "two x y", "three"));
}

TEST(ChildProcessTest, ASignalledChildTellsTheSignal) {
  EXPECT_EQ(run_child({"sh", "-c", "kill -9 $$"}, {}, [](const std::string&) {}), 128 + SIGKILL);
}

TEST(ChildProcessTest, AProgramThatIsNotThereSaysSo) {
  EXPECT_EQ(run_child({"/nonexistent/program"}, {}, [](const std::string&) {}), 127);
}

TEST(ChildProcessTest, OurSignalEndsTheChildAndComesOutAsInterrupted) {
  const SignalScope scope;
  std::thread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kill(getpid(), SIGTERM);
  });
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_child({"sleep", "20"}, {}, [](const std::string&) {});
    ADD_FAILURE() << "not interrupted";
  } catch (const Interrupted& stop) {
    EXPECT_EQ(stop.signal(), SIGTERM);
  }
  sender.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(ChildProcessTest, ThePythonOfLibTorchRuns) {
  EXPECT_EQ(run_child({python_executable(), "-c", "import torch.version"}, {}, [](const std::string&) {}), 0);
}

TEST(SignalTest, TheFlagIsSetWhileTheScopeLives) {
  {
    const SignalScope scope;
    EXPECT_EQ(signal_received(), 0);
    raise(SIGINT);
    EXPECT_EQ(signal_received(), SIGINT);
  }
  const SignalScope scope;
  EXPECT_EQ(signal_received(), 0);
}

TEST(SignalDeathTest, TheSecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        const SignalScope scope;
        raise(SIGTERM);
        raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace protrain
