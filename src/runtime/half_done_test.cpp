// An update that began and did not end, and a step of which a part was applied, are never taken for a state: not tried
// again, not read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kMaxNorm = 0.05;

// Updates the first half of a piece, then fails, when told to.
class FailingKernels final : public UpdateKernels {
 public:
  explicit FailingKernels(UpdateKernels& inner) : inner_(inner) {}
  void round_gradient(Stream& stream, const float* sum, std::uint16_t* gradient, std::int64_t n) override {
    inner_.round_gradient(stream, sum, gradient, n);
  }
  void squared_norm(Stream& stream, const void* gradient, DType type, std::int64_t n, double* scratch,
                    double* result) override {
    inner_.squared_norm(stream, gradient, type, n, scratch, result);
  }
  void finish_norm(Stream& stream, const double* norms, std::int64_t tensors, const double* losses,
                   std::int64_t n_losses, double max_norm, StepControl* control) override {
    inner_.finish_norm(stream, norms, tensors, losses, n_losses, max_norm, control);
  }
  void adamw(Stream& stream, const AdamWStep& step, const StepControl* control, DType compute,
             const StateBytes& state) override {
    if (++calls != failing) return inner_.adamw(stream, step, control, compute, state);
    StateBytes half = state;
    half.n = state.n / 2;
    inner_.adamw(stream, step, control, compute, half);
    fail(ExitCode::kDoesNotFit, "boom");
  }
  int calls = 0;
  int failing = 0;  // from 1; 0: none

 private:
  UpdateKernels& inner_;
};

struct FailingRig : Rig {
  explicit FailingRig(const RigOptions& o) : Rig(o), device_kernels(*kernels), update_kernels(*host_kernels) {
    runner = std::make_unique<StepRunner>(*store, chunks, shape, profile, plan, bytes, *device, spied_blocks(),
                                          device_kernels, &update_kernels, AdamWOptions{}, arenas.all);
  }
  StepOutputs step(std::int64_t number, double max_norm, const RunOptions& run = {}) {
    return runner->step(train_request(number, options.accumulation), inputs_of(batch, number, max_norm), run);
  }
  FailingKernels device_kernels, update_kernels;
  const Batch batch{kTrainShape, options.accumulation, kSeed};
};

RigOptions options_of(Places places) {
  return {.compute = DType::kBf16,
          .tied = true,
          .layers = 2,
          .accumulation = 2,
          .order = Order::kLayer,
          .chunk_bytes = 1,
          .persist = places == Places::kCpu ? Persist::kNone : Persist::kAll,
          .modes = Modes::kMixed,
          .places = places};
}

const Task& update_number(const Rig& rig, Lane lane, int number) {
  for (const Task& task : rig.runner->last_schedule().tasks) {
    if (task.op == Op::kUpdate && task.lane == lane && --number == 0) return task;
  }
  throw InternalError("no such update");
}

void expect_lost(FailingRig& rig) {
  std::vector<std::byte> bytes(2);
  const auto refused = [](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "went on";
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), HasSubstr("go on from the last checkpoint"));
    }
  };
  rig.device_kernels.failing = rig.update_kernels.failing = 0;
  refused([&] { rig.step(1, kMaxNorm); });
  refused([&] { rig.evaluate(Batch(kEvalShape, kEvalMicroBatches, kSeed)); });
  refused([&] { rig.store->read(0, Part::kWeight, 0, 1, bytes.data()); });
  refused([&] { rig.store->write(0, Part::kWeight, 0, 1, bytes.data()); });
  refused([&] { rig.runner->drain(); });
}

// The call fails in the update number `number` of the lane, and says so in one line with the kind of failure kept.
template <typename Call>
void expect_fatal(FailingRig& rig, const Call& call) {
  try {
    call();
    FAIL() << "did not fail";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_THAT(error.what(), StartsWith("update chunk "));
    EXPECT_THAT(error.what(), HasSubstr(": boom"));
    EXPECT_THAT(error.what(), HasSubstr("go on from the last checkpoint"));
  }
  expect_lost(rig);
}

TEST(HalfDone, AnyPendingUpdateThatFailsHalfWayLosesTheState) {
  FailingRig counting(options_of(Places::kCpu));
  counting.step(0, kMaxNorm);
  counting.step(1, kMaxNorm);
  const int updates = counting.update_kernels.calls;
  ASSERT_GT(updates, 5);
  for (const bool drains : {false, true}) {
    for (int failing = 1; failing <= updates; ++failing) {
      SCOPED_TRACE(testing::Message() << "update " << failing << " drains " << drains);
      FailingRig rig(options_of(Places::kCpu));
      rig.step(0, kMaxNorm);
      ASSERT_EQ(rig.update_kernels.calls, 0);
      rig.update_kernels.failing = failing;
      expect_fatal(rig, [&] {
        if (drains) rig.runner->drain();
        rig.step(1, kMaxNorm);
      });
    }
  }
}

TEST(HalfDone, AnyUpdateOfTheStepsOwnThatFailsHalfWayLosesTheState) {
  // Of resident chunks; of chunks on the host, during backward; of both.
  for (const Places places : {Places::kResident, Places::kCpu, Places::kMixed}) {
    const double max_norm = places == Places::kResident ? kMaxNorm : 0;
    FailingRig counting(options_of(places));
    counting.step(0, max_norm);
    for (FailingKernels FailingRig::* const kernels : {&FailingRig::device_kernels, &FailingRig::update_kernels}) {
      const int updates = (counting.*kernels).calls;
      for (int failing = 1; failing <= updates; ++failing) {
        SCOPED_TRACE(testing::Message() << "places " << static_cast<int>(places) << " update " << failing);
        FailingRig rig(options_of(places));
        (rig.*kernels).failing = failing;
        expect_fatal(rig, [&] { rig.step(0, max_norm); });
      }
    }
    EXPECT_GT(counting.device_kernels.calls + counting.update_kernels.calls, 5);
  }
}

TEST(HalfDone, AFailureBeforeTheFirstUpdateLosesNothingAndOneAfterItDoes) {
  FailingRig watched(options_of(Places::kResident));
  watched.step(0, kMaxNorm);
  const Task* const first = &update_number(watched, Lane::kGpuUpdate, 1);
  const Task* const second = &update_number(watched, Lane::kGpuUpdate, 2);
  for (const Task* const failing : {first, second}) {
    FailingRig rig(options_of(Places::kResident));
    const auto before = all_state(rig);
    RunOptions run;
    run.before_task = [&](Id, const Task& task) {
      if (task.name == failing->name) fail(ExitCode::kData, "boom");
    };
    EXPECT_THROW(rig.step(0, kMaxNorm, run), Error);
    if (failing == second) {
      expect_lost(rig);
      continue;
    }
    EXPECT_EQ(all_state(rig), before);
    rig.step(0, kMaxNorm);
    EXPECT_EQ(all_state(rig), all_state(watched));
  }
}

TEST(HalfDone, AFailedCopyLeavesTheStateAsItWasOrLost) {
  // Gradients and results that do not come home while the resident chunks have had the step already; saved sets that
  // fail before any update.
  const RigOptions mixed = options_of(Places::kMixed);
  FailingRig watched(mixed);
  watched.step(0, kMaxNorm);
  std::map<std::string, int> ends;
  for (const char* lane : {"h2d", "d2h"}) {
    std::vector<const Task*> copies;
    for (const Task& task : watched.runner->last_schedule().tasks) {
      if (task.op == Op::kCopy && lane_name(task.lane) == lane) copies.push_back(&task);
    }
    for (std::size_t copy = 0; copy < copies.size(); ++copy) {
      SCOPED_TRACE(copies[copy]->name);
      RigOptions options = mixed;
      options.faults.lanes = {lane};
      options.faults.fail_copy = static_cast<std::int64_t>(copy) + 1;
      FailingRig rig(options);
      const auto before = all_state(rig);
      std::string message;
      try {
        rig.step(0, kMaxNorm);
        FAIL() << "did not fail";
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_THAT(message, HasSubstr("injected fault"));
      const bool lost = message.find("go on from the last checkpoint") != std::string::npos;
      ++ends[lost ? "lost" : "as it was"];
      if (copies[copy]->name == "download results") {
        EXPECT_TRUE(lost);
      }
      if (lost) {
        expect_lost(rig);
        continue;
      }
      EXPECT_EQ(all_state(rig), before);
      rig.step(0, kMaxNorm);
      EXPECT_EQ(all_state(rig), all_state(watched));
    }
  }
  EXPECT_GT(ends["lost"], 0);
  EXPECT_GT(ends["as it was"], 0);
}

}  // namespace
}  // namespace protrain::toy
