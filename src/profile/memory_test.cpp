// Every family replayed at planned addresses, bit for bit; what recording leaves alone.
#include "profile/memory.h"

#include <ATen/ops/rand.h>

#include "base/error.h"
#include "profile/test_rig.h"

namespace protrain {
namespace {

using test::check_replay;
using test::Keep;
using test::Rig;

constexpr BatchShape kDense{2, 24, 2, false};
constexpr BatchShape kPacked{2, 24, 9, true};

class ReplayedModel : public ::testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    install_allocator(DeviceKind::kCpu);
    set_up_torch({.compute_threads = 2, .deterministic = true});
  }
  const std::string& config() const { return test::families()[GetParam()].second; }
};

TEST_P(ReplayedModel, HasThePlainBitsInFp32) {
  check_replay(config(), DType::kF32, DeviceKind::kCpu, kDense, 2);
  check_replay(config(), DType::kF32, DeviceKind::kCpu, kPacked, 1);
}

TEST_P(ReplayedModel, HasThePlainBitsInBf16) {
  check_replay(config(), DType::kBf16, DeviceKind::kCpu, kDense, 1);
  check_replay(config(), DType::kBf16, DeviceKind::kCpu, kPacked, 2);
}

TEST_P(ReplayedModel, KeepsLessInALightCall) {
  const Rig rig(config(), DType::kF32, DeviceKind::kCpu, kDense, 1);
  const Bytes full = rig.memory(1, Pass::kForwardKeep).saved, light = rig.memory(1, Pass::kForwardKeep, true).saved;
  EXPECT_LT(light, full);
  EXPECT_GT(light, 0);
  EXPECT_EQ(rig.memory(1, Pass::kForward).saved, 0);
  EXPECT_EQ(rig.memory(1, Pass::kBackward).saved, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, ReplayedModel, ::testing::Range(std::size_t{0}, test::families().size()),
                         [](const auto& info) { return test::families()[info.param].first; });

class Recording : public ::testing::Test {
 protected:
  void SetUp() override {
    install_allocator(DeviceKind::kCpu);
    set_up_torch({.compute_threads = 2, .deterministic = true});
  }
  const std::string llama_ = test::families()[3].second;
};

TEST_F(Recording, TouchesNoGenerator) {
  const auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor before = generator.get_state();
  const Rig rig(test::families()[0].second, DType::kF32, DeviceKind::kCpu, kDense, 1);
  EXPECT_TRUE(before.equal(generator.get_state()));
}

TEST_F(Recording, ComesOutAlikeEveryTime) {
  const Rig a(llama_, DType::kBf16, DeviceKind::kCpu, kPacked, 2),
      b(llama_, DType::kBf16, DeviceKind::kCpu, kPacked, 2);
  ASSERT_EQ(a.profile().calls.size(), b.profile().calls.size());
  for (std::size_t i = 0; i < a.profile().calls.size(); ++i) {
    const Profile::Call &x = a.profile().calls[i], &y = b.profile().calls[i];
    EXPECT_EQ(x.key, y.key);
    EXPECT_EQ(x.memory.saved, y.memory.saved);
    EXPECT_EQ(x.memory.workspace, y.memory.workspace);
  }
}

TEST_F(Recording, ListsNoCallThatNoRunMakes) {
  const Rig rig(llama_, DType::kF32, DeviceKind::kCpu, kDense, 1);
  for (const Profile::Call& call : rig.profile().calls) {
    EXPECT_TRUE(call.key.training || call.key.pass == Pass::kForward) << call.key.trace;
  }
  EXPECT_EQ(rig.memory(0, Pass::kForwardKeep).workspace, rig.memory(0, Pass::kForward).workspace);
}

TEST_F(Recording, OfAnotherRunServesNoCallOfThisOne) {
  Rig rig(llama_, DType::kF32, DeviceKind::kCpu, kDense, 1);
  rig.replay();
  rig.step(Keep::kAll);
  rig.add_to_gradients();  // with accumulation 1 no micro-batch adds
  EXPECT_THROW(rig.step(Keep::kAll), InternalError);
}

}  // namespace
}  // namespace protrain
