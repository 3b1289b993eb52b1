// No plan changes a bit: every knob against every other, and random plans under random delays, beside the plain loop.
// PROTRAIN_TEST_FULL=1: the full product instead of the covering set, and 50 seeds of delays on each row of that.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <tuple>

#include "base/error.h"
#include "runtime/covering_set.h"
#include "runtime/toy_rig.h"

namespace protrain::toy {
namespace {

constexpr std::int64_t kSteps = 10;
constexpr std::int64_t kEvaluatedAfter = 3;  // steps; an evaluation alone
constexpr std::int64_t kSavedAfter = 6;      // an evaluation, then everything is read
constexpr double kMostWaste = 1.03;          // peak over the largest sum of live bytes

bool full() {
  const char* wanted = std::getenv("PROTRAIN_TEST_FULL");
  return wanted != nullptr && std::string(wanted) == "1";
}

struct Case {
  RigOptions options;
  bool clip = true;
};

std::string describe(const Case& c) { return fmt::format("{} clip {}", describe(c.options), c.clip); }

// A step now and then has fewer micro-batches than planned.
Batch batch_of(const RigOptions& options, std::int64_t step) {
  const std::int64_t count = step % 4 == 3 ? (options.accumulation + 1) / 2 : options.accumulation;
  return {kTrainShape, count, kSeed + static_cast<unsigned>(step)};
}
Batch evaluation_batch() { return {kEvalShape, kEvalMicroBatches, kSeed}; }

// Everything that a run shows.
struct Record {
  std::vector<double> losses, norms, evaluations;
  std::vector<std::byte> saved, last;
};

template <typename Train, typename Evaluate, typename Read>
Record record(const Case& c, const Train& train, const Evaluate& evaluate, const Read& read) {
  Record result;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = batch_of(c.options, step);
    const StepControl control = train(batch, inputs_of(batch, step, c.clip ? 0.05 : 0));
    PROTRAIN_CHECK(control.skip == 0 && control.gradient_norm > 0.01, "a step that shows nothing");
    PROTRAIN_CHECK(!c.clip || control.clip_scale < 1, "a step that clips nothing");
    result.losses.push_back(control.loss_sum);
    result.norms.push_back(control.gradient_norm);
    if (step == kEvaluatedAfter || step == kSavedAfter) result.evaluations.push_back(evaluate(evaluation_batch()));
    if (step == kSavedAfter) result.saved = read();
  }
  result.last = read();
  return result;
}

// What must come out, whatever the plan: a function of what is not neutral.
const Record& expected(const Case& c) {
  const RigOptions& o = c.options;
  using Key = std::tuple<DType, bool, Id, std::int64_t, Order, bool>;
  static std::map<Key, Record> known;
  const Order order = o.accumulation == 1 ? Order::kMicroBatch : o.order;  // the same then
  const Key key{o.compute, o.tied, o.layers, o.accumulation, order, c.clip};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const ModelSpec spec = make_spec(o.layers, o.tied);
  PlainLoop loop = plain_loop(spec, o);
  return known[key] = record(
             c,
             [&](const Batch& batch, const StepInputs& inputs) {
               return loop.step(plain_step(batch, inputs), AdamWOptions{});
             },
             [&](const Batch& batch) { return loop.evaluate(plain_step(batch, inputs_of(batch, 0))); },
             [&] { return all_state(loop, spec, o.compute); });
}

void compare_with_plain_loop(const Case& c, const Plan& plan) {
  const Record& wanted = expected(c);
  Rig rig(c.options, plan);
  std::int64_t step = 0;
  const Record found = record(
      c,
      [&](const Batch& batch, const StepInputs& inputs) {
        const StepControl control = rig.runner->step(rig.train_request(step++, batch.micro_batches), inputs).control;
        EXPECT_EQ(race(rig.runner->last_schedule()), "");
        return control;
      },
      [&](const Batch& batch) { return rig.evaluate(batch, static_cast<int>(step % 2)).control.loss_sum; },
      [&] { return all_state(rig); });
  ASSERT_EQ(found.losses, wanted.losses);
  ASSERT_EQ(found.norms, wanted.norms);
  ASSERT_EQ(found.evaluations, wanted.evaluations);
  ASSERT_TRUE(found.saved == wanted.saved) << "what was saved";
  ASSERT_TRUE(found.last == wanted.last) << "the final state";
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
    EXPECT_EQ(rig.bytes.bytes(tier), rig.high_water(tier)) << "tier " << static_cast<int>(tier);
  }
  EXPECT_LE(static_cast<double>(rig.bytes.bytes(Tier::kDevice)),
            kMostWaste * static_cast<double>(rig.bytes.live_bound));
}

// An exception does not show the trace.
void expect_no_bit_changed(const Case& c, const Plan& plan) {
  SCOPED_TRACE(describe(c));
  try {
    compare_with_plain_loop(c, plan);
  } catch (const std::exception& error) {
    FAIL() << error.what();
  }
}

// The matrix's factors, by position in a row.
Case case_of(const std::vector<int>& row) {
  constexpr Bytes kChunkBytes[] = {1, 25000, kMiB};  // a group; a layer (two in bf16); the whole model
  Case c;
  c.options.persist = static_cast<Persist>(row[0]);
  c.options.more_slots = 2 * row[1];
  c.options.modes = static_cast<Modes>(row[2]);
  c.options.places = static_cast<Places>(row[3]);
  c.clip = row[4] == 0;
  c.options.chunk_bytes = kChunkBytes[row[5]];
  c.options.accumulation = row[6] == 0 ? 1 : 4;
  c.options.order = row[6] == 2 ? Order::kLayer : Order::kMicroBatch;
  c.options.compute = row[7] == 0 ? DType::kF32 : DType::kBf16;
  c.options.tied = row[8] == 1;
  c.options.layers = 5;
  return c;
}
const std::vector<int> kLevels = {3, 2, 6, 2, 2, 3, 3, 2, 2};

void expect_row(const std::vector<int>& row, const DeviceFaults& faults) {
  Case c = case_of(row);
  c.options.faults = faults;
  const ModelSpec spec = make_spec(c.options.layers, c.options.tied);
  const Plan plan = make_plan(spec, c.options);
  if (c.options.places == Places::kResident) {
    // What streams cannot be updated where it is not.
    Plan wrong = plan;
    const bool streams = wrong.n_buffer > 0;
    std::fill(wrong.place.begin(), wrong.place.end(), UpdatePlace::kResident);
    wrong.gradient_slots = 0;
    const auto chunks = make_chunks(spec, wrong.chunk_bytes, c.options.compute);
    try {
      validate(spec, chunks, make_shape(c.options), wrong);
      EXPECT_FALSE(streams) << describe(c);
    } catch (const Error& error) {
      EXPECT_TRUE(streams) << error.what();
      EXPECT_EQ(error.code(), ExitCode::kConfig);
    }
  }
  expect_no_bit_changed(c, plan);
}

TEST(PlanMatrix, EveryPairOfKnobsChangesNoBit) {
  const auto rows = full() ? full_product(kLevels) : covering_set(kLevels, kSeed);
  fmt::print("{} rows of the matrix, seed {}\n", rows.size(), kSeed);
  for (const auto& row : rows) {
    expect_row(row, {});
    if (HasFatalFailure()) return;
  }
}

TEST(PlanMatrix, DelaysOnTheCoveringSetChangeNoBit) {
  if (!full()) GTEST_SKIP() << "PROTRAIN_TEST_FULL=1 runs it; random plans run under delays always";
  for (const auto& row : covering_set(kLevels, kSeed)) {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      DeviceFaults faults;
      faults.seed = seed;
      faults.longest_delay_seconds = 1e-4;
      expect_row(row, faults);
      if (HasFatalFailure()) return;
    }
  }
}

// A plan of which every knob is drawn, and the delays too.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {
    constexpr Bytes kChunkBytes[] = {1, 12000, 25000, 50000, kMiB};
    RigOptions& o = c.options;
    o.compute = pick(2) == 0 ? DType::kF32 : DType::kBf16;
    o.tied = pick(2) == 0;
    o.layers = 2 + pick(4);
    o.accumulation = pick(2) == 0 ? 1 : 4;
    o.order = pick(2) == 0 ? Order::kMicroBatch : Order::kLayer;
    o.chunk_bytes = kChunkBytes[pick(5)];
    o.offload_distance = 1 + pick(3);
    o.state_tier = pick(2) == 0 ? Tier::kPinned : Tier::kPageable;
    o.more_slots = pick(4);
    c.clip = pick(3) > 0;
    o.faults.seed = seed;
    o.faults.longest_delay_seconds = 1e-4;
    constexpr const char* kLate[] = {"compute", "h2d", "d2h", "gpu_update", "cpu_update"};
    const int late = pick(6);
    if (late < 5) o.faults.lanes = {kLate[late]};

    const ModelSpec spec = make_spec(o.layers, o.tied);
    plan = make_plan(spec, o);
    const std::vector<Chunk> chunks = make_chunks(spec, plan.chunk_bytes, o.compute);
    plan.n_persist = pick(plan.n_persist + 1);
    int number = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const bool streamed = chunks[i].kind == BlockKind::kLayer && number++ >= plan.n_persist;
      plan.place[i] = streamed || pick(2) == 0 ? UpdatePlace::kCpu : UpdatePlace::kResident;
    }
    for (Activation& mode : plan.activation) mode = static_cast<Activation>(pick(kActivations));
    const SlotNeed need = slot_need(spec, chunks, plan);
    plan.n_buffer = need.buffer == 0 ? 0 : need.buffer + pick(3);
    plan.gradient_slots = need.gradient == 0 ? 0 : need.gradient + pick(3);
  }

  Case c;
  Plan plan;

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  std::mt19937 random_;
};

TEST(PlanMatrix, RandomPlansUnderRandomDelaysChangeNoBit) {
  const unsigned first = 1;
  fmt::print("50 random plans, seeds {} to {}\n", first, first + 49);
  for (unsigned seed = first; seed < first + 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "draw " << seed);
    const Draw draw(seed);
    expect_no_bit_changed(draw.c, draw.plan);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace protrain::toy
