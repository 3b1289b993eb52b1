// The CUDA kernels against the CPU's, bit for bit.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "device/device.h"
#include "optimizer/kernels.h"
#include "optimizer/test_state.h"

namespace protrain {
namespace {

constexpr std::int64_t kParameters = 16 << 20;

class CudaOptimizer : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_compiled()) GTEST_SKIP() << "this build has no CUDA";
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device here";
    device_ = make_cuda_device(0);
    arena_ = device_->arena(Tier::kDevice, 512 * kMiB);
    stream_ = device_->stream("compute");
    cuda_ = make_cuda_kernels();
  }

  // A range of the device's arena holding a copy of [data, data + bytes), `shift` bytes past an aligned address.
  std::byte* upload(const void* data, Bytes bytes, Bytes shift = 0) {
    std::byte* const place = arena_ + used_ + shift;
    used_ += round_up(bytes + shift, kAlignment);
    stream_->copy(place, static_cast<const std::byte*>(data), bytes);
    stream_->synchronize();
    return place;
  }
  void download(void* to, const void* from, Bytes bytes) {
    stream_->copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
    stream_->synchronize();
  }
  template <class T>
  T download(const T* from) {
    T value;
    download(&value, from, sizeof value);
    return value;
  }

  StateBytes upload(const StateBytes& host, DType compute, std::int64_t shift) {
    const Bytes width = size_of(compute);
    StateBytes state;
    state.weight = upload(host.weight, host.n * width, shift * width);
    if (host.residual) state.residual = reinterpret_cast<std::int16_t*>(upload(host.residual, host.n * 2, shift * 2));
    state.m = reinterpret_cast<float*>(upload(host.m, host.n * 4, shift * 4));
    state.v = reinterpret_cast<float*>(upload(host.v, host.n * 4, shift * 4));
    state.gradient = upload(host.gradient, host.n * width, shift * width);
    state.n = host.n;
    return state;
  }
  void download(const StateBytes& host, const StateBytes& state, DType compute) {
    download(host.weight, state.weight, host.n * size_of(compute));
    if (host.residual) download(host.residual, state.residual, host.n * 2);
    download(host.m, state.m, host.n * 4);
    download(host.v, state.v, host.n * 4);
  }

  // `updates` updates of n random parameters on both sides, compared after the last.
  void compare_updates(DType compute, std::int64_t n, std::int64_t shift, std::uint64_t seed, int updates) {
    SCOPED_TRACE(fmt::format("n {} shift {} seed {}", n, shift, seed));
    used_ = 0;
    test::TestState expected(compute, n);
    expected.fill(seed, 16);
    test::TestState got = expected;
    const StateBytes state = upload(got.bytes(), compute, shift);
    const StepControl control{.clip_scale = 0.7f};
    const auto* const device_control = reinterpret_cast<const StepControl*>(upload(&control, sizeof control));
    for (int t = 1; t <= updates; ++t) {
      const AdamWStep step = make_adamw_step({}, 1e-3 * t, 0.1, t);
      cuda_->adamw(*stream_, step, device_control, compute, state);
      cpu_->adamw(*host_stream_, step, &control, compute, expected.bytes());
      got.fill_gradient(seed + static_cast<std::uint64_t>(t), 16);
      expected.fill_gradient(seed + static_cast<std::uint64_t>(t), 16);
      stream_->synchronize();
      stream_->copy(static_cast<std::byte*>(const_cast<void*>(state.gradient)),
                    static_cast<const std::byte*>(got.bytes().gradient), n * size_of(compute));
    }
    download(got.bytes(), state, compute);
    EXPECT_TRUE(got == expected);
  }

  ThreadPool pool_{allowed_cores()};
  std::unique_ptr<UpdateKernels> cpu_ = make_cpu_kernels(pool_);
  std::unique_ptr<Stream> host_stream_ = make_host_stream();
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<UpdateKernels> cuda_;
  std::byte* arena_ = nullptr;
  Bytes used_ = 0;
};

TEST_F(CudaOptimizer, SixteenMillionParametersOverFiveUpdatesEqualTheCpus) {
  compare_updates(DType::kBf16, kParameters, 0, 1, 5);
  compare_updates(DType::kF32, kParameters, 0, 2, 5);
}

TEST_F(CudaOptimizer, EveryLengthAndStartEqualsTheCpus) {
  for (const DType compute : {DType::kBf16, DType::kF32}) {
    for (std::int64_t n = 0; n <= 70; ++n) compare_updates(compute, n, n % 3, static_cast<std::uint64_t>(n), 1);
  }
}

TEST_F(CudaOptimizer, ASkippedUpdateChangesNothing) {
  test::TestState got(DType::kBf16, 1000);
  got.fill(1, 16);
  const test::TestState before = got;
  const StateBytes state = upload(got.bytes(), DType::kBf16, 0);
  const StepControl control{.skip = 1};
  cuda_->adamw(*stream_, make_adamw_step({}, 1, 0.1, 1),
               reinterpret_cast<const StepControl*>(upload(&control, sizeof control)), DType::kBf16, state);
  download(got.bytes(), state, DType::kBf16);
  EXPECT_TRUE(got == before);
}

TEST_F(CudaOptimizer, RoundedGradientsEqualTheCpus) {
  std::mt19937_64 random(7);
  std::vector<std::uint32_t> from(kParameters + 3);
  for (auto& bits : from) bits = static_cast<std::uint32_t>(random());
  for (const std::int64_t shift : {0, 1}) {
    used_ = 0;
    std::vector<std::uint16_t> expected(from.size()), got(from.size());
    cpu_->round_gradient(*host_stream_, reinterpret_cast<const float*>(from.data()), expected.data(), std::ssize(from));
    const auto* const source = reinterpret_cast<const float*>(upload(from.data(), std::ssize(from) * 4, shift * 4));
    auto* const target = reinterpret_cast<std::uint16_t*>(upload(got.data(), std::ssize(got) * 2));
    cuda_->round_gradient(*stream_, source, target, std::ssize(from));
    download(got.data(), target, std::ssize(got) * 2);
    EXPECT_EQ(got, expected);
  }
}

TEST_F(CudaOptimizer, NormsEqualTheCpus) {
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{257}, std::int64_t{4096},
                               std::int64_t{70'001}, kParameters + 1}) {
    for (const DType type : {DType::kBf16, DType::kF32}) {
      for (const std::int64_t shift : {0, 1}) {
        SCOPED_TRACE(fmt::format("n {} {} shift {}", n, safetensors_name(type), shift));
        used_ = 0;
        test::TestState data(type, n);
        data.fill_gradient(static_cast<std::uint64_t>(n), 0);
        const void* const host = data.bytes().gradient;
        std::vector<double> scratch(static_cast<std::size_t>(norm_tiles(n)) + 1);
        double expected = -1;
        cpu_->squared_norm(*host_stream_, host, type, n, scratch.data(), &expected);
        const std::byte* const device = upload(host, n * size_of(type), shift * size_of(type));
        auto* const device_scratch = reinterpret_cast<double*>(upload(scratch.data(), std::ssize(scratch) * 8));
        auto* const result = reinterpret_cast<double*>(upload(&expected, 8));
        cuda_->squared_norm(*stream_, device, type, n, device_scratch, result);
        EXPECT_EQ(download(result), expected);
      }
    }
  }
}

TEST_F(CudaOptimizer, TheStepControlEqualsTheCpus) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> uniform(0, 10);
  for (const double poison : {0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const double max_norm : {0.0, 1.0, 1e6}) {
      used_ = 0;
      std::vector<double> squares(700), losses(300);
      for (double& x : squares) x = uniform(random);
      for (double& x : losses) x = uniform(random);
      squares[500] += poison;
      StepControl expected;
      cpu_->finish_norm(*host_stream_, squares.data(), 700, losses.data(), 300, max_norm, &expected);
      auto* const control = reinterpret_cast<StepControl*>(upload(&expected, sizeof expected));
      const auto* const device_squares = reinterpret_cast<const double*>(upload(squares.data(), 700 * 8));
      const auto* const device_losses = reinterpret_cast<const double*>(upload(losses.data(), 300 * 8));
      stream_->zero(reinterpret_cast<std::byte*>(control), sizeof expected);
      cuda_->finish_norm(*stream_, device_squares, 700, device_losses, 300, max_norm, control);
      const StepControl got = download(control);
      EXPECT_EQ(0, std::memcmp(&got, &expected, sizeof got)) << "poison " << poison << " max_norm " << max_norm;
    }
  }
}

}  // namespace
}  // namespace protrain
