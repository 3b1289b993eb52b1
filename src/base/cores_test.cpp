#include "base/cores.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

namespace protrain {
namespace {

namespace fs = std::filesystem;

class FakeNodes : public ::testing::Test {
 protected:
  FakeNodes() : root_(fs::path(::testing::TempDir()) / ("node_root" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
  }
  ~FakeNodes() override { fs::remove_all(root_); }
  void put(const std::string& node, const std::string& cores) {
    const fs::path folder = root_ / "sys/devices/system/node" / node;
    fs::create_directories(folder);
    std::ofstream(folder / "cpulist") << cores << "\n";
  }
  std::vector<std::vector<int>> cores_of(const std::vector<int>& allowed) {
    std::vector<std::vector<int>> all;
    for (const Node& node : nodes_of(allowed, root_)) all.push_back(node.cores);
    return all;
  }
  fs::path root_;
};

using Lists = std::vector<std::vector<int>>;

TEST_F(FakeNodes, HaveTheAllowedOfTheirCores) {
  put("node0", "0-3,8-11");
  put("node1", "4-7,12-15");
  put("node2", "");        // memory only
  put("node10", "16,18");  // after node 2, not before it
  put("power", "0-99");
  EXPECT_EQ(cores_of({0, 1, 4, 8, 15, 18}), (Lists{{0, 1, 8}, {4, 15}, {18}}));
  EXPECT_EQ(cores_of({5}), (Lists{{5}}));
  EXPECT_EQ(nodes_of({5}, root_).at(0).id, 1);
}

TEST_F(FakeNodes, AreOneWhereTheSystemTellsNothingOrNotAll) {
  EXPECT_EQ(cores_of({0, 7}), (Lists{{0, 7}}));
  put("node0", "0-3");
  EXPECT_EQ(cores_of({0, 7}), (Lists{{0, 7}}));
  put("node1", "4-,nonsense");
  EXPECT_EQ(cores_of({0, 7}), (Lists{{0, 7}}));
}

TEST(Cores, AreAtLeastOneAndNoMoreThanTheMachineHas) {
  EXPECT_GE(allowed_cores(), 1);
  EXPECT_LE(allowed_cores(), static_cast<int>(std::thread::hardware_concurrency()));
  const std::vector<Node> nodes = allowed_nodes();
  ASSERT_FALSE(nodes.empty());
  const std::size_t all = std::accumulate(nodes.begin(), nodes.end(), std::size_t{0},
                                          [](std::size_t sum, const Node& node) { return sum + node.cores.size(); });
  EXPECT_GE(static_cast<int>(all), allowed_cores());
}

TEST(Cores, OfTheBackgroundLeaveRoomForTheThreadsThatIssue) {
  EXPECT_GE(background_cores(), 1);
  EXPECT_LE(background_cores(), std::max(1, allowed_cores() - 1));
  EXPECT_EQ(background_cores(1 << 20), 1);
  const int before = background_cores();
  const int cores = allowed_cores();
  ::setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_EQ(background_cores(), before);
  EXPECT_EQ(allowed_cores(), cores);
  ::unsetenv("OMP_NUM_THREADS");
}

TEST(Cores, BindTheCallingThreadOnly) {
  const std::vector<int> first = {allowed_nodes().at(0).cores.at(0)};
  const int before = allowed_cores();
  std::thread([&] {
    ASSERT_TRUE(run_on(first));
    EXPECT_EQ(allowed_cores(), 1);
    EXPECT_EQ(allowed_nodes().at(0).cores, first);
  }).join();
  EXPECT_EQ(allowed_cores(), before);
  EXPECT_FALSE(run_on({}));
}

}  // namespace
}  // namespace protrain
