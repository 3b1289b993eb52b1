#include "schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "base/error.h"

namespace protrain {
namespace {

using ::testing::HasSubstr;

// Embedding, `layers` layers of two matrices and a bias, tied or untied head with a norm.
ModelSpec make_model(Id layers, bool tied) {
  ModelSpec spec;
  spec.hidden = 10;
  spec.vocabulary = 31;
  spec.tied = tied;
  const auto add = [&](std::vector<std::int64_t> shape) {
    ParameterSpec parameter;
    const auto id = static_cast<Id>(spec.parameters.size());
    parameter.name = fmt::format("p{}", id);
    parameter.shape = std::move(shape);
    parameter.group = id;
    spec.parameters.push_back(parameter);
    spec.blocks.back().parameters.push_back(id);
    return id;
  };
  spec.blocks.push_back({BlockKind::kEmbedding, -1, "embedding", {}});
  const Id table = add({31, 10});
  for (Id layer = 0; layer < layers; ++layer) {
    spec.blocks.push_back({BlockKind::kLayer, layer, "layer", {}});
    add({10, 10});
    add({70, 10});
    add({10});
  }
  spec.blocks.push_back({BlockKind::kHead, -1, "head", {}});
  add({10});
  if (tied) {
    spec.blocks.back().parameters.push_back(table);
  } else {
    add({31, 10});
  }
  return spec;
}

struct Case {
  ModelSpec spec;
  RunShape shape;
  Plan plan;
  std::vector<Chunk> chunks;
  Layout bytes;
  StepShape step;

  Case(ModelSpec model, DType compute, std::int64_t accumulation, Bytes chunk_bytes, Activation mode)
      : spec(std::move(model)) {
    shape.compute = compute;
    shape.accumulation = accumulation;
    shape.train_shapes = {{2, 8, 2, false}};
    shape.eval_shapes = {{3, 9, 3, false}};
    shape.eval_micro_batches = 2;
    plan.chunk_bytes = chunk_bytes;
    plan.activation.assign(spec.blocks.size(), mode);
    chunks = make_chunks(spec, chunk_bytes, compute);
    bytes = layout(spec, chunks, shape, plan);
    step.batch = shape.train_shapes[0];
    step.micro_batches = accumulation;
  }
  Schedule train() const { return expand(spec, chunks, shape, plan, bytes, step); }
  Schedule evaluate() const {
    StepShape other{Graph::kEvaluate, shape.eval_shapes[0], 2, 1};
    return expand(spec, chunks, shape, plan, bytes, other);
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Id layers : {0, 1, 3}) {
    for (const bool tied : {false, true}) {
      for (const DType compute : {DType::kF32, DType::kBf16}) {
        for (const std::int64_t accumulation : {1, 3}) {
          for (const Bytes chunk_bytes : {Bytes{1}, Bytes{6000}, kMiB}) {
            for (const Activation mode : {Activation::kKeep, Activation::kRecompute}) {
              cases.emplace_back(make_model(layers, tied), compute, accumulation, chunk_bytes, mode);
            }
          }
        }
      }
    }
  }
  return cases;
}

std::vector<std::string> names(const Schedule& schedule) {
  std::vector<std::string> names;
  names.reserve(schedule.tasks.size());
  for (const Task& task : schedule.tasks) names.push_back(task.name);
  return names;
}

TEST(Schedule, OfAStepWithRecomputeReadsLikeThis) {
  const Case one(make_model(1, true), DType::kBf16, 2, kMiB, Activation::kRecompute);
  EXPECT_THAT(
      names(one.train()),
      ::testing::ElementsAre("upload batch",                                                        //
                             "forward embedding micro-batch 0", "forward layer 0 micro-batch 0",    //
                             "backward head micro-batch 0", "recompute layer 0 micro-batch 0",      //
                             "backward layer 0 micro-batch 0", "backward embedding micro-batch 0",  //
                             "forward embedding micro-batch 1", "forward layer 0 micro-batch 1",    //
                             "backward head micro-batch 1", "round chunk 2", "norm chunk 2",        //
                             "recompute layer 0 micro-batch 1", "backward layer 0 micro-batch 1",   //
                             "round chunk 1", "norm chunk 1",                                       //
                             "backward embedding micro-batch 1", "round chunk 0", "norm chunk 0",   //
                             "finish norm", "download results", "update chunk 0", "update chunk 1", "update chunk 2"));
}

TEST(Schedule, OfAnEvaluationRunsForwardsOnly) {
  const Case one(make_model(2, false), DType::kF32, 1, kMiB, Activation::kKeep);
  const Schedule schedule = one.evaluate();
  int forwards = 0;
  for (const Task& task : schedule.tasks) {
    if (task.op == Op::kRunBlock) {
      EXPECT_EQ(task.what.pass, Pass::kForward);
      ++forwards;
    }
    for (const Access& access : task.access) {  // no state is written
      const bool state =
          access.range.tier == Tier::kDevice && access.range.offset < one.bytes.find(Region::kBlockInput, 1).offset;
      EXPECT_FALSE(state && access.writes) << task.name;
    }
  }
  EXPECT_EQ(forwards, 4 * 2);
}

TEST(Schedule, HasNoRaceAndNoForwardEdgeInAnyPlan) {
  for (const Case& one : all_cases()) {
    for (const Schedule& schedule : {one.train(), one.evaluate()}) {
      ASSERT_EQ(race(schedule), "");
      for (std::size_t id = 0; id < schedule.tasks.size(); ++id) {
        for (const Id earlier : schedule.tasks[id].after) ASSERT_LT(earlier, static_cast<Id>(id));
      }
    }
  }
}

TEST(Schedule, HasARaceWithoutAnyOneOfItsEdges) {
  std::size_t edges = 0;
  for (const Case& one : all_cases()) {
    for (Schedule schedule : {one.train(), one.evaluate()}) {
      for (Task& task : schedule.tasks) {
        const std::vector<Id> after = task.after;
        for (const Id edge : after) {
          task.after.erase(std::find(task.after.begin(), task.after.end(), edge));
          ASSERT_NE(race(schedule), "") << task.name << " without its edge from " << schedule.tasks[edge].name;
          task.after = after;
          ++edges;
        }
      }
    }
  }
  EXPECT_GT(edges, 500u);
}

TEST(Schedule, NamesEveryRangeOfABlockCallAmongItsAccesses) {
  for (const Case& one : all_cases()) {
    for (const Schedule& schedule : {one.train(), one.evaluate()}) {
      for (const Task& task : schedule.tasks) {
        if (task.op != Op::kRunBlock) continue;
        const auto expect = [&](const Range& range, bool writes) {
          if (range.bytes == 0) return;
          const bool found = std::any_of(task.access.begin(), task.access.end(), [&](const Access& access) {
            return access.range == range && access.writes == writes;
          });
          EXPECT_TRUE(found) << task.name;
        };
        expect(task.block.batch, false);
        expect(task.block.host_batch, false);
        expect(task.block.input, false);
        expect(task.block.output, true);
        expect(task.block.output_gradient, false);
        expect(task.block.input_gradient, true);
        const std::size_t weights = one.spec.blocks[task.what.block].parameters.size();
        const std::size_t parts = task.what.pass == Pass::kBackward ? 2 : 1;
        EXPECT_GE(task.access.size(), weights * parts + 3);
      }
    }
  }
}

// What every block call finds in its input is what the block before it left there in the same micro-batch.
TEST(Schedule, HandsEachBlockTheBytesOfItsNeighbour) {
  for (const Case& one : all_cases()) {
    for (const Schedule& schedule : {one.train(), one.evaluate()}) {
      std::map<Bytes, std::string> holds;  // device offset -> what was last written there
      for (const Task& task : schedule.tasks) {
        if (task.op != Op::kRunBlock) continue;
        const auto key = [&](std::string_view what, Id block) {
          return fmt::format("{} {} {}", what, block, task.what.micro_batch);
        };
        const auto& call = task.block;
        const bool head = task.what.block + 1 == static_cast<Id>(one.spec.blocks.size());
        if (call.input.bytes > 0) {
          EXPECT_EQ(holds[call.input.offset], key("activation", task.what.block)) << task.name;
        }
        if (call.output_gradient.bytes > 0) {
          EXPECT_EQ(holds[call.output_gradient.offset], key("gradient", task.what.block + 1)) << task.name;
        }
        if (call.output.bytes > 0 && head) {
          EXPECT_EQ(call.output.bytes, 8);
        } else if (call.output.bytes > 0) {
          holds[call.output.offset] = key("activation", task.what.block + 1);
        }
        if (call.input_gradient.bytes > 0) holds[call.input_gradient.offset] = key("gradient", task.what.block);
      }
    }
  }
}

TEST(Schedule, RefusesAStepThatItsLayoutWasNotMadeFor) {
  Case one(make_model(1, true), DType::kF32, 2, kMiB, Activation::kKeep);
  one.step.micro_batches = 3;
  EXPECT_THROW(one.train(), InternalError);
  one.step.micro_batches = 2;
  one.step.batch.row_tokens = 15;  // 30 tokens; evaluation's 27 are the largest planned
  EXPECT_THROW(one.train(), InternalError);
}

// --- race()

Task touching(Lane lane, std::vector<Access> access, std::vector<Id> after = {}) {
  static int count = 0;
  Task task;
  task.lane = lane;
  task.access = std::move(access);
  task.after = std::move(after);
  task.name = fmt::format("task {}", count++);
  return task;
}

TEST(Race, IsFoundBetweenLanesOnlyAndOnlyWhereOneWritesTheSameBytes) {
  const Range a{Tier::kDevice, 0, 100};
  const Range overlapping{Tier::kDevice, 99, 10};
  const Range beside{Tier::kDevice, 100, 10};
  const Range elsewhere{Tier::kPinned, 0, 100};
  const auto pair = [](Lane lane, const Access& first, const Access& second, std::vector<Id> after = {}) {
    return race({{touching(Lane::kCompute, {first}), touching(lane, {second}, std::move(after))}});
  };
  EXPECT_THAT(pair(Lane::kH2d, {a, true}, {overlapping, false}), HasSubstr("bytes 99 to 100"));
  EXPECT_NE(pair(Lane::kH2d, {a, false}, {overlapping, true}), "");
  EXPECT_NE(pair(Lane::kH2d, {a, true}, {a, true}), "");
  EXPECT_EQ(pair(Lane::kH2d, {a, false}, {a, false}), "");
  EXPECT_EQ(pair(Lane::kH2d, {a, true}, {beside, true}), "");
  EXPECT_EQ(pair(Lane::kH2d, {a, true}, {elsewhere, true}), "");
  EXPECT_EQ(pair(Lane::kCompute, {a, true}, {a, true}), "");
  EXPECT_EQ(pair(Lane::kH2d, {a, true}, {a, true}, {0}), "");
  EXPECT_THAT(pair(Lane::kH2d, {a, true}, {a, true}, {1}), HasSubstr("not before it"));
}

// Every pair of tasks against reachability by walking the edges.
bool has_race_by_brute_force(const Schedule& schedule) {
  const auto n = static_cast<Id>(schedule.tasks.size());
  std::vector<std::set<Id>> before(n);
  for (Id id = 0; id < n; ++id) {
    std::vector<Id> direct = schedule.tasks[id].after;
    for (Id other = 0; other < id; ++other) {
      if (schedule.tasks[other].lane == schedule.tasks[id].lane) direct.push_back(other);
    }
    for (const Id other : direct) {
      before[id].insert(other);
      before[id].insert(before[other].begin(), before[other].end());
    }
    for (Id other = 0; other < id; ++other) {
      if (before[id].count(other) != 0) continue;
      for (const Access& a : schedule.tasks[id].access) {
        for (const Access& b : schedule.tasks[other].access) {
          if ((a.writes || b.writes) && a.range.tier == b.range.tier &&
              a.range.offset < b.range.offset + b.range.bytes && b.range.offset < a.range.offset + a.range.bytes) {
            return true;
          }
        }
      }
    }
  }
  return false;
}

constexpr int kRounds = 2000;

TEST(Race, AgreesWithBruteForceOnRandomGraphs) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int races = 0;
  for (int round = 0; round < kRounds; ++round) {
    Schedule schedule;
    const int lanes = 1 + below(kLanes);
    const int edges = below(8);
    const int tasks = 2 + below(14);
    for (int id = 0; id < tasks; ++id) {
      std::vector<Access> access(static_cast<std::size_t>(below(3)));
      for (Access& one : access) one = {{static_cast<Tier>(below(2)), below(40), 1 + below(12)}, below(4) == 0};
      std::vector<Id> after;
      for (int i = 0; id > 0 && i < edges; ++i) after.push_back(below(id));
      schedule.tasks.push_back(touching(static_cast<Lane>(below(lanes)), access, after));
    }
    const bool expected = has_race_by_brute_force(schedule);
    races += expected ? 1 : 0;
    ASSERT_EQ(!race(schedule).empty(), expected);
  }
  EXPECT_GT(races, kRounds / 10);
  EXPECT_LT(races, kRounds * 9 / 10);
}

TEST(Race, IsCheckedFastEnoughForEveryPlanOfASearch) {
  const Case large(make_model(80, false), DType::kBf16, 8, kMiB, Activation::kRecompute);
  const Schedule schedule = large.train();
  ASSERT_GT(schedule.tasks.size(), 1900u);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(race(schedule), "");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("milliseconds", static_cast<int>(seconds.count() * 1e3));
  EXPECT_LT(seconds.count(), 1.0);  // a few ms in release; sanitizers and a busy machine get room
}

}  // namespace
}  // namespace protrain
