// What the operators' tests share: where and in which dtype an operator runs, seeded inputs, comparison against fp64.
#pragma once
#ifndef AT_PER_OPERATOR_HEADERS
#define AT_PER_OPERATOR_HEADERS  // else TensorOperators.h brings in every operator
#endif
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace protrain::ops::test {

struct Target {
  at::DeviceType device = at::kCPU;
  at::ScalarType type = at::kFloat;
  double tolerance() const { return type == at::kFloat ? 1e-5 : 1.5e-2; }
  std::string name() const {
    return fmt::format("{} {}", device == at::kCPU ? "cpu" : "cuda", type == at::kFloat ? "fp32" : "bf16");
  }
};
inline const Target kCpuF32{at::kCPU, at::kFloat}, kCpuBf16{at::kCPU, at::kBFloat16};
inline const Target kCudaF32{at::kCUDA, at::kFloat}, kCudaBf16{at::kCUDA, at::kBFloat16};

// Seed of this process's tests: PROTRAIN_TEST_SEED, or a constant. Printed with every failure (see Random).
inline std::uint64_t seed() {
  const char* text = std::getenv("PROTRAIN_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20261129;
}

// Inputs drawn on the CPU in fp64, then rounded to the target.
class Random {
 public:
  explicit Random(Target target) : target_(target), generator_(at::detail::createCPUGenerator(seed())) {}

  at::Tensor normal(at::IntArrayRef shape, double scale = 1) { return typed(shape, target_.type, scale); }
  at::Tensor leaf(at::IntArrayRef shape, double scale = 1) { return normal(shape, scale).requires_grad_(); }
  at::Tensor typed(at::IntArrayRef shape, at::ScalarType type, double scale = 1) {
    return at::randn(shape, generator_, at::TensorOptions().dtype(at::kDouble)).mul_(scale).to(target_.device, type);
  }
  // A parameter whose gradient slot holds something from before: values to add to, or NaN to be overwritten when first.
  Parameter parameter(at::IntArrayRef shape, bool first, at::ScalarType gradient_type, double scale = 1) {
    const at::Tensor slot = typed(shape, gradient_type);
    if (first) slot.fill_(std::numeric_limits<double>::quiet_NaN());
    return {normal(shape, scale), slot, first};
  }
  const Target& target() const { return target_; }

 private:
  Target target_;
  at::Generator generator_;
};

inline at::Tensor wide(const at::Tensor& x) { return x.detach().to(at::kCPU, at::kDouble); }
inline at::Tensor wide_leaf(const at::Tensor& x) { return wide(x).clone().requires_grad_(); }

inline at::Tensor int_tensor(const std::vector<std::int32_t>& values, at::DeviceType device) {
  at::Tensor result = at::empty({static_cast<std::int64_t>(values.size())}, at::TensorOptions().dtype(at::kInt));
  std::copy(values.begin(), values.end(), result.mutable_data_ptr<std::int32_t>());
  return result.to(device);
}

// ||actual - expected|| <= tolerance ||expected||, and where that is zero, exactly zero.
inline void expect_near(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                        const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const at::Tensor want = wide(expected);
  const double error = wide(actual).sub(want).norm().item<double>(), size = want.norm().item<double>();
  EXPECT_LE(error, tolerance * size) << what << ": relative " << error / size << " (seed " << seed() << ")";
}

// The gradient that a slot should hold: what it held before, unless first, plus `gradient`.
class Slot {
 public:
  Slot(const Parameter& parameter, std::string what)
      : parameter_(parameter), before_(wide(parameter.gradient)), what_(std::move(what)) {}
  void expect(const at::Tensor& gradient, double tolerance) const {
    const at::Tensor want = parameter_.first ? wide(gradient) : wide(gradient).add(before_);
    expect_near(parameter_.gradient, want.view(parameter_.gradient.sizes()), tolerance, what_);
  }

 private:
  Parameter parameter_;
  at::Tensor before_;
  std::string what_;
};

inline torch::autograd::variable_list gradients(const std::vector<at::Tensor>& outputs,
                                                const std::vector<at::Tensor>& inputs,
                                                const std::vector<at::Tensor>& output_gradients) {
  return torch::autograd::grad(outputs, inputs, output_gradients);
}

}  // namespace protrain::ops::test
