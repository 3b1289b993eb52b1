// As memory_test.cpp, on a GPU with deterministic kernels: autograd's thread, cuBLAS workspaces, flash attention; and
// that nothing is allocated on the device once calls are replayed.
#include "profile/test_rig.h"

namespace protrain {
namespace {

class CudaReplay : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    install_allocator(DeviceKind::kCuda);
    set_up_torch({.compute_threads = 2, .deterministic = true});
  }
};

TEST_F(CudaReplay, EveryFamilyHasThePlainBits) {
  for (const auto& [name, config] : test::families()) {
    for (const DType compute : {DType::kF32, DType::kBf16}) {
      for (const bool packed : {false, true}) {
        SCOPED_TRACE(name + (compute == DType::kBf16 ? " bf16" : " fp32") + (packed ? " packed" : ""));
        const BatchShape shape{2, 64, packed ? std::int64_t{9} : std::int64_t{2}, packed};
        test::check_replay(config, compute, DeviceKind::kCuda, shape, packed ? 2 : 1);
      }
    }
  }
}

TEST_F(CudaReplay, AllocatesNothingOnTheDeviceAfterStart) {
  test::Rig rig(test::families()[3].second, DType::kBf16, DeviceKind::kCuda, {4, 256, 4, false}, 2);
  rig.replay();
  rig.step(test::Keep::kAll);
  reset_allocator_counts();
  for (int i = 0; i < 20; ++i) rig.step(test::Keep::kLight);
  EXPECT_EQ(allocator_counts().plain, 0);
  EXPECT_EQ(allocator_counts().mismatches, 0);
}

}  // namespace
}  // namespace protrain
