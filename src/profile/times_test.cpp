// All that is timed, on the CPU device: the figures' bounds, and what timing leaves alone. On a GPU how long it takes.
#include "profile/times.h"

#include <ATen/core/Generator.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/host_memory.h"
#include "profile/call_times.h"
#include "profile/test_rig.h"

namespace protrain {
namespace {

constexpr BatchShape kDense{2, 24, 2, false};
constexpr BatchShape kPacked{2, 24, 9, true};
constexpr Bytes kBudget = 256 * kMiB;

// A small model on its device, recorded.
class Machine {
 public:
  Machine(const std::string& config, DType compute, const std::vector<BatchShape>& shapes, std::int64_t accumulation,
          DeviceKind kind = DeviceKind::kCpu)
      : arch_(parse_architecture(config, "config.json")),
        spec_(make_spec(arch_)),
        device_(kind == DeviceKind::kCuda ? make_cuda_device(0) : make_cpu_device()),
        book_(std::make_shared<TraceBook>(kind)),
        kernels_(kind == DeviceKind::kCuda ? make_cuda_kernels() : make_cpu_kernels(pool_)) {
    shape_.compute = compute;
    shape_.accumulation = accumulation;
    shape_.train_shapes = shapes;
    shape_.eval_shapes = {shapes.front()};
    const std::int64_t positions = shapes.back().row_tokens;
    auto tables = std::make_shared<model::RopeTables>(arch_, kind, positions);
    blocks_ = make_blocks(arch_, spec_,
                          {.compute = compute,
                           .device = kind,
                           .deterministic = false,
                           .positions = positions,
                           .traces = book_,
                           .tables = tables});
    record();
  }

  void record() { memory_ = record_memory(spec_, blocks_, *book_, shape_, *device_); }
  Rates measure(bool host = true, const TimingOptions& options = {}, Bytes budget = kBudget) {
    return measure_rates(spec_, blocks_, *book_, shape_, memory_, *device_, *kernels_,
                         host ? host_kernels_.get() : nullptr, budget, options);
  }
  Rates::Linear host_update(Bytes budget = kBudget) {
    return measure_host_update(spec_, shape_, *device_, *host_kernels_, budget);
  }
  // The calls alone, as on a GPU.
  std::vector<Rates::Call> call_times(Bytes budget, const profile::CallPace& pace) {
    book_->set_mode(TraceBook::Mode::kReplay);
    const profile::RigModel model{spec_, blocks_, *book_, shape_, memory_};
    const auto stream = device_->stream("compute");
    auto calls = profile::call_times(model, *device_, *stream, budget, pace, {}, [](const std::string&) {});
    book_->set_mode(TraceBook::Mode::kPlain);
    return calls;
  }
  std::vector<double> shares(std::vector<profile::RigKind>* kinds) {
    const profile::RigModel model{spec_, blocks_, *book_, shape_, memory_};
    *kinds = profile::rig_kinds(model);
    return profile::time_shares(model, *kinds);
  }
  void train_with(const std::vector<BatchShape>& shapes) {
    shape_.train_shapes = shapes;
    record();
  }
  const Profile& memory() const { return memory_; }
  const ModelSpec& spec() const { return spec_; }
  const TraceBook& book() const { return *book_; }

 private:
  const Architecture arch_;
  const ModelSpec spec_;
  const std::unique_ptr<Device> device_;
  const std::shared_ptr<TraceBook> book_;
  RunShape shape_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Profile memory_;
  ThreadPool pool_{2}, host_pool_{2};
  const std::unique_ptr<UpdateKernels> kernels_, host_kernels_ = make_cpu_kernels(host_pool_);
};

class Timing : public ::testing::Test {
 protected:
  void SetUp() override {
    install_allocator(DeviceKind::kCpu);
    set_up_torch({.compute_threads = 2, .deterministic = true});
  }
  const std::string gpt2_ = test::families()[0].second, llama_ = test::families()[3].second;
};

double passed(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// How much more is resident meanwhile, at most.
Bytes peak_of(const std::function<void()>& fn) {
  malloc_trim(0);
  restart_peak();
  const Bytes before = host_memory().resident;
  fn();
  return host_memory().peak - before;
}

TEST_F(Timing, EveryCallOfTheProfileHasATime) {
  for (const auto& [name, config] : test::families()) {
    for (const DType compute : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(name + (compute == DType::kBf16 ? " bf16" : " fp32"));
      Machine machine(config, compute, {kDense, kPacked}, compute == DType::kF32 ? 1 : 2);
      const Rates rates = machine.measure();
      EXPECT_TRUE(rates.measured);
      ASSERT_EQ(rates.calls.size(), machine.memory().calls.size());
      for (std::size_t i = 0; i < rates.calls.size(); ++i) {
        EXPECT_EQ(rates.calls[i].key, machine.memory().calls[i].key);
        EXPECT_GT(rates.calls[i].rested, 0);
        EXPECT_GE(rates.calls[i].steady, rates.calls[i].rested);
        EXPECT_GT(rates.calls[i].graph_alone, 0);
        EXPECT_LE(rates.calls[i].graph_alone, 1);
      }
    }
  }
}

TEST_F(Timing, RatesArePositiveAndNoLaneMakesAnotherFaster) {
  Machine machine(llama_, DType::kBf16, {kDense}, 1);
  const Rates rates = machine.measure();
  for (const Rates::Linear& rate :
       {rates.h2d, rates.d2h, rates.cpu_update, rates.gpu_update, rates.norm, rates.round}) {
    EXPECT_GE(rate.seconds, 0);
    EXPECT_GT(rate.per_unit, 0);
  }
  EXPECT_GT(rates.finish_norm, 0);
  EXPECT_EQ(rates.between_steps, 0);
  for (std::size_t a = 0; a < kLanes; ++a) {
    EXPECT_EQ(rates.slowdown[a][a], 1);
    for (std::size_t b = 0; b < kLanes; ++b) EXPECT_GE(rates.slowdown[a][b], 1);
  }
}

TEST_F(Timing, UnderTwoDutyCyclesEveryCallHasBothTimesWithinTheTimeGiven) {
  Machine machine(llama_, DType::kF32, {kDense, kPacked}, 2);
  const profile::CallPace pace = {.duty_cycles = true,
                                  .warm = 0.05,
                                  .settle = 0.03,
                                  .cool = 0.02,
                                  .steady = 0.1,
                                  .rested = 0.1,
                                  .heat = 2e-3,
                                  .rounds = 20};
  for (const Bytes budget : {kBudget, Bytes{0}}) {  // with a block that stays for load, and without
    reset_allocator_counts();
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Rates::Call> calls = machine.call_times(budget, pace);
    const double seconds = passed(begin);
    EXPECT_GE(seconds, 0.15);
    EXPECT_LT(seconds, 10);
    EXPECT_EQ(allocator_counts().mismatches, 0);
    ASSERT_EQ(calls.size(), machine.memory().calls.size());
    for (const Rates::Call& call : calls) {
      EXPECT_GT(call.rested, 0);
      EXPECT_GE(call.steady, call.rested);
    }
  }
}

// A machine that is busy with something else meanwhile is asked again: the shortest times count.
TEST_F(Timing, MoreTokensTakeLonger) {
  constexpr BatchShape kShort{1, 32, 1, false}, kLong{16, 64, 16, false};
  Machine machine(llama_, DType::kF32, {kShort, kLong}, 1);
  std::vector<Rates::Call> shortest = machine.measure().calls;
  const auto too_short = [&] {
    std::vector<std::string> found;
    for (const Rates::Call& call : shortest) {
      if (!(call.key.shape == kShort) || !call.key.training) continue;
      if (call.key.trace == machine.spec().blocks.front().trace) continue;  // a look-up is all overhead
      CallKey key = call.key;
      key.shape = kLong;
      const auto same = std::ranges::find(shortest, key, &Rates::Call::key);
      if (same == shortest.end() || same->steady <= 1.5 * call.steady) {
        found.push_back(fmt::format("{} pass {}", call.key.trace, static_cast<int>(call.key.pass)));
      }
    }
    return found;
  };
  for (int attempt = 0; attempt < 20 && !too_short().empty(); ++attempt) {
    const Rates again = machine.measure();
    ASSERT_EQ(again.calls.size(), shortest.size());
    for (std::size_t i = 0; i < shortest.size(); ++i) {
      ASSERT_EQ(again.calls[i].key, shortest[i].key);
      shortest[i].steady = std::min(shortest[i].steady, again.calls[i].steady);
    }
  }
  EXPECT_TRUE(too_short().empty()) << fmt::format("{}", fmt::join(too_short(), ", "));
}

// A layer that is little but its MLP: without the last of three products it takes two thirds of the time. A machine
// that is busy with something else meanwhile is asked again.
TEST_F(Timing, AKeptForwardIsShorterWithoutItsResult) {
  Machine machine(R"({"model_type": "llama", "vocab_size": 503, "hidden_size": 128, "intermediate_size": 2048,
                      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1})",
                  DType::kF32, {{4, 64, 4, false}}, 1);
  const profile::CallPace pace = {.steady = 0.5, .rounds = 7};
  double least = 1, most = 1;  // of both kinds of kept forwards
  for (int attempt = 0; attempt < 20 && (least < 0.4 || most > 0.95); ++attempt) {
    least = 1;
    most = 0;
    for (const Rates::Call& call : machine.call_times(kBudget, pace)) {
      if (call.key.trace == machine.spec().blocks[1].trace && call.key.pass == Pass::kForwardKeep) {
        least = std::min(least, call.graph_alone);
        most = std::max(most, call.graph_alone);
      } else {
        EXPECT_EQ(call.graph_alone, 1) << call.key.trace << " pass " << static_cast<int>(call.key.pass);
      }
    }
  }
  EXPECT_GE(least, 0.4);
  EXPECT_LE(most, 0.95);
}

TEST_F(Timing, RunsCallsAtFixedAddressesAsARunDoes) {
  Machine machine(llama_, DType::kBf16, {kPacked}, 2);
  reset_allocator_counts();
  machine.measure();
  EXPECT_GT(allocator_counts().replayed, 0);
  EXPECT_EQ(allocator_counts().mismatches, 0);
  EXPECT_EQ(machine.book().mode(), TraceBook::Mode::kPlain);
  machine.record();  // the traces are as they were, or this would say so
}

TEST_F(Timing, TouchesNoGenerator) {
  const auto generator = at::globalContext().defaultGenerator(at::kCPU);
  Machine machine(gpt2_, DType::kF32, {kDense}, 1);
  const at::Tensor before = generator.get_state();
  machine.measure();
  EXPECT_TRUE(before.equal(generator.get_state()));
}

TEST_F(Timing, LeavesNoMemoryBehind) {
  Machine machine(llama_, DType::kF32, {kDense}, 1);
  machine.measure();  // threads and libraries take theirs once
  const Bytes before = settled_process_bytes();
  for (int i = 0; i < 5; ++i) machine.measure();
  EXPECT_LT(settled_process_bytes() - before, 2 * kMiB);
}

TEST_F(Timing, OfATinyModelIsDoneAtOnce) {
  Machine machine(llama_, DType::kF32, {kDense, kPacked}, 2);
  machine.measure();
  const auto begin = std::chrono::steady_clock::now();
  machine.measure();
  EXPECT_LT(passed(begin), 2);
}

TEST_F(Timing, WithoutHostKernelsUpdatesOfTheDeviceStandForTheHosts) {
  Machine machine(llama_, DType::kF32, {kDense}, 1);
  const Rates rates = machine.measure(false);
  EXPECT_EQ(rates.cpu_update.per_unit, rates.gpu_update.per_unit);
  const auto compute = static_cast<std::size_t>(Lane::kCompute), gpu = static_cast<std::size_t>(Lane::kGpuUpdate),
             cpu = static_cast<std::size_t>(Lane::kCpuUpdate);
  EXPECT_EQ(rates.slowdown[compute][cpu], rates.slowdown[compute][gpu]);
  EXPECT_EQ(rates.slowdown[cpu][compute], rates.slowdown[gpu][compute]);
}

TEST_F(Timing, TheHostsUpdateKeepsToItsBudget) {
  const std::string wide = R"({"model_type": "llama", "vocab_size": 503, "hidden_size": 512, "intermediate_size": 2048,
                               "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})";
  Machine machine(wide, DType::kBf16, {kDense}, 1);
  machine.host_update();  // threads and libraries take theirs once
  EXPECT_GT(peak_of([&] { machine.host_update(); }), 16 * kMiB);
  EXPECT_LT(peak_of([&] { machine.host_update(8 * kMiB); }), 10 * kMiB);
  for (const Bytes budget : {Bytes{0}, kMiB}) {
    EXPECT_LT(peak_of([&] { EXPECT_GT(machine.host_update(budget).per_unit, 0); }), 4 * kMiB);
  }
  TimingOptions options;
  options.host_budget = 0;
  EXPECT_GT(machine.measure(true, options).cpu_update.per_unit, 0);
}

TEST_F(Timing, TheHostsUpdateCanBeTimedAgain) {
  Machine machine(llama_, DType::kBf16, {kDense}, 1);
  const Bytes before = settled_process_bytes();
  const Rates::Linear again = machine.host_update();
  EXPECT_GE(again.seconds, 0);
  EXPECT_GT(again.per_unit, 0);
  EXPECT_LT(again.per_unit, 1e-6);
  EXPECT_LT(settled_process_bytes() - before, 4 * kMiB);
}

TEST_F(Timing, TellsOfEachStage) {
  Machine machine(llama_, DType::kF32, {kDense}, 1);
  std::vector<std::string> lines;
  TimingOptions options;
  options.progress = [&](const std::string& line) { lines.push_back(line); };
  machine.measure(true, options);
  EXPECT_EQ(lines.size(), 4U);
}

// Micro-batches that are tried one after another: what does not depend on them is measured once.
TEST_F(Timing, WithRatesOfOtherShapesOnlyTheCallsThatAreMissingAreTimed) {
  Machine machine(llama_, DType::kF32, {kDense}, 2);
  const Rates first = machine.measure();
  machine.train_with({kDense, kPacked});
  TimingOptions options;
  options.earlier = first;
  std::vector<std::string> lines;
  options.progress = [&](const std::string& line) { lines.push_back(line); };
  const Rates second = machine.measure(true, options);
  ASSERT_EQ(second.calls.size(), machine.memory().calls.size());
  ASSERT_GT(second.calls.size(), first.calls.size());
  for (std::size_t i = 0; i < second.calls.size(); ++i) {
    const Rates::Call& call = second.calls[i];
    EXPECT_EQ(call.key, machine.memory().calls[i].key);
    const auto before = std::ranges::find(first.calls, call.key, &Rates::Call::key);
    EXPECT_EQ(before != first.calls.end(), call.key.shape == kDense);
    if (before == first.calls.end()) continue;
    EXPECT_EQ(call.steady, before->steady);
    EXPECT_EQ(call.rested, before->rested);
    EXPECT_EQ(call.graph_alone, before->graph_alone);
  }
  EXPECT_EQ(second.slowdown, first.slowdown);
  const auto same = [](const Rates::Linear& a, const Rates::Linear& b) {
    return a.seconds == b.seconds && a.per_unit == b.per_unit;
  };
  EXPECT_TRUE(same(second.h2d, first.h2d) && same(second.cpu_update, first.cpu_update) &&
              same(second.norm, first.norm));
  EXPECT_EQ(lines, std::vector<std::string>{"timing calls of 3 kinds of blocks and shapes"});

  lines.clear();
  options.earlier = second;  // nothing is missing
  EXPECT_EQ(machine.measure(true, options).calls.size(), second.calls.size());
  EXPECT_EQ(lines.size(), 0U);
}

TEST_F(Timing, MostOfTheTimeGoesToLayersAtTheLongestShape) {
  constexpr BatchShape kLong{4, 64, 4, false}, kShort{4, 8, 4, false};
  Machine machine(llama_, DType::kF32, {kLong, kShort}, 1);
  std::vector<profile::RigKind> kinds;
  const std::vector<double> shares = machine.shares(&kinds);
  ASSERT_EQ(kinds.size(), 6U);  // embedding, layer and head at each
  double sum = 0, of_layer = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    sum += shares[i];
    const bool layer = machine.spec().blocks[static_cast<std::size_t>(kinds[i].block)].kind == BlockKind::kLayer;
    if (layer && kinds[i].shape == kLong) of_layer = shares[i];
    if (layer && kinds[i].shape == kShort) {
      EXPECT_LT(shares[i], 0.15);
    }
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_GT(of_layer, 0.7);
}

// Calls of 50 ms: what is issued ahead of the device is time too.
TEST(CudaTiming, KeepsToItsSeconds) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  install_allocator(DeviceKind::kCuda);
  set_up_torch({.compute_threads = 2, .deterministic = false});
  std::vector<BatchShape> shapes;
  for (std::int64_t row = 256; row <= 4096; row *= 2) shapes.push_back({8, row, 8, false});
  Machine machine(R"({"model_type": "llama", "vocab_size": 503, "hidden_size": 4096, "intermediate_size": 11008,
                      "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 32})",
                  DType::kBf16, shapes, 1, DeviceKind::kCuda);
  const TimingOptions options;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GT(machine.measure(true, options, 40 * kGiB).cpu_update.per_unit, 0);
  EXPECT_LT(passed(begin), 1.1 * options.seconds);  // a piece may outlast its window
}

}  // namespace
}  // namespace protrain
