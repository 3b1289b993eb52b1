#include "train/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
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

TEST(ChildProcessTest, TheChildsChildrenAreSignalledToo) {
  const SignalScope scope;
  std::thread sender;
  std::string grandchild;
  EXPECT_THROW(run_child({"sh", "-c", "sleep 30 & echo $!; wait"}, {},
                         [&](const std::string& line) {
                           grandchild = line;
                           raise(SIGTERM);
                         }),
               Interrupted);
  // Gone, or a zombie that nobody waits for yet.
  const int pid = std::stoi(grandchild);
  bool runs = true;
  for (int i = 0; i < 100 && runs; ++i) {
    std::string name, state;
    std::ifstream("/proc/" + grandchild + "/stat") >> name >> name >> state;
    runs = kill(pid, 0) == 0 && state != "Z";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(runs);
}

TEST(ChildProcessTest, AChildDoesNotOutliveAKilledParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    run_child({"sh", "-c", "echo $$; sleep 30"}, {}, [&](const std::string& line) {
      if (write(ends[1], line.data(), line.size()) < 0) _exit(1);
    });
    _exit(0);
  }
  char text[32] = {};
  ASSERT_GT(read(ends[0], text, sizeof text - 1), 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  bool runs = true;
  for (int i = 0; i < 100 && runs; ++i) {
    std::string name, state;
    std::ifstream("/proc/" + std::string(text) + "/stat") >> name >> name >> state;
    runs = kill(std::stoi(text), 0) == 0 && state != "Z";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(runs);
  close(ends[0]);
  close(ends[1]);
}

TEST(SignalTest, TheFlagIsSetWhileTheScopeLives) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const SignalScope scope;
    EXPECT_EQ(signal_received(), 0);
    raise(signal);
    EXPECT_EQ(signal_received(), signal);
  }
  const SignalScope scope;
  EXPECT_EQ(signal_received(), 0);
}

TEST(SignalTest, AHangupThatIsIgnoredStaysIgnored) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const SignalScope scope;
    raise(SIGHUP);
    EXPECT_EQ(signal_received(), 0);
  }
  std::signal(SIGHUP, SIG_DFL);
}

TEST(SignalTest, TheFirstIsToldAtOnceAndItsEchoDoesNotEndTheProcess) {
  for (const bool saved : {true, false}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const SignalScope scope(ends[1]);
    if (saved) announce_checkpoint(true);
    raise(SIGTERM);
    raise(SIGTERM);
    raise(SIGINT);
    close(ends[1]);
    std::string told(1000, '\0');
    told.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read(ends[0], told.data(), told.size()))));
    close(ends[0]);
    EXPECT_THAT(told, ::testing::StartsWith(saved ? "protrain: SIGTERM: stopping, a checkpoint will be saved"
                                                  : "protrain: SIGTERM: stopping, there is nothing to save"));
    EXPECT_EQ(std::ranges::count(told, '\n'), 3) << told;
    EXPECT_EQ(signal_received(), SIGTERM);
  }
}

TEST(SignalDeathTest, ASecondSignalEndsTheProcessWithAWord) {
  EXPECT_EXIT(
      {
        const SignalScope scope(STDERR_FILENO);
        raise(SIGTERM);
        std::this_thread::sleep_for(std::chrono::milliseconds(1050));
        raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "SIGTERM again: ending at once; the last checkpoint stays");
}

}  // namespace
}  // namespace protrain
