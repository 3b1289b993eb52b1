#include "tensor/tensor.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>

#include "base/error.h"

namespace protrain {
namespace {

TEST(Tensor, AViewSharesTheBytesAndOwnsNothing) {
  std::array<float, 6> values{1, 2, 3, 4, 5, 6};
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  {
    const at::Tensor tensor = view(bytes, {2, 3}, DType::kF32, DeviceKind::kCpu);
    ASSERT_EQ(tensor.sizes(), at::IntArrayRef({2, 3}));
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_FALSE(tensor.requires_grad());
    EXPECT_EQ(tensor.const_data_ptr(), static_cast<const void*>(values.data()));
    tensor.mutable_data_ptr<float>()[5] = 9;
  }
  EXPECT_EQ(values[5], 9.0F);
}

TEST(Tensor, EveryDTypeHasATensorTypeOfItsSize) {
  for (const DType type : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64, DType::kI64, DType::kI32, DType::kI16,
                           DType::kU8, DType::kBool}) {
    EXPECT_EQ(static_cast<Bytes>(c10::elementSize(scalar_type(type))), size_of(type));
  }
}

TEST(Tensor, NullIsAllowedForAnEmptyShapeOnly) {
  EXPECT_EQ(view(nullptr, {0, 4}, DType::kF32, DeviceKind::kCpu).numel(), 0);
  EXPECT_THROW(view(nullptr, {1, 4}, DType::kF32, DeviceKind::kCpu), InternalError);
}

TEST(Tensor, SetUpFixesThreadsAndDeterminismWithoutFillingEmptyTensors) {
  set_up_torch({.compute_threads = 1, .deterministic = true});
  EXPECT_EQ(at::get_num_threads(), 1);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());
  set_up_torch({.compute_threads = 2, .deterministic = false});
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
}

}  // namespace
}  // namespace protrain
