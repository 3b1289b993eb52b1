#include "search/bound.h"

#include <gtest/gtest.h>

#include "plan/budget.h"
#include "schedule/test_case.h"
#include "schedule/test_rates.h"

namespace protrain {
namespace {

struct Bounds {
  MemoryBound memory;
  TimeBound time;
};

Bounds bounds_of(const test::Case& one, const Rates& rates, bool clip) {
  PredictOptions options;
  options.clip = clip;
  const Figures figures(one.spec, one.shape, one.profile, rates, options);
  const ChunkSet set(figures, one.plan.chunk_bytes);
  const PlaceSums places(set, one.plan.place, one.plan.order, one.plan.state_tier);
  const ActivationSums activations(figures, one.plan.activation, one.plan.order, one.plan.offload_distance);
  const SlotKnobs slots = {one.plan.n_persist, one.plan.n_buffer, one.plan.gradient_slots};
  return {memory_bound(set, places, activations, slots), time_bound(set, places, activations, one.plan.order, slots)};
}

// Plans over all pairs of knobs and random ones, on machines drawn anew for each.
void for_random_plans(unsigned seed, int plans, const std::function<void(test::Case&, std::mt19937&)>& check) {
  std::mt19937 random(seed);
  std::vector<test::Knobs> draws = test::pairwise_cover();
  while (static_cast<int>(draws.size()) < plans) draws.push_back(test::random_knobs(random));
  for (const test::Knobs& knobs : draws) {
    test::Case one = test::make_case(knobs);
    SCOPED_TRACE(fmt::format("seed {}, knobs {}", seed, one.text));
    check(one, random);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Bound, IsNeverAboveTheSimulation) {
  double tightness = 0;
  double likely = 0;
  int count = 0;
  for_random_plans(17, 500, [&](test::Case& one, std::mt19937& random) {
    const Rates rates = test::random_rates(one.profile, random, random() % 2 == 0);
    PredictOptions options;
    options.clip = random() % 4 != 0;
    const Bounds bounds = bounds_of(one, rates, options.clip);
    const double seconds =
        predict(one.spec, one.chunks, one.shape, one.profile, one.plan, one.bytes, rates, options).step_seconds;
    EXPECT_LE(bounds.time.least, seconds * (1 + 1e-9)) << "clip " << options.clip;
    tightness += bounds.time.least / seconds;
    likely += bounds.time.likely / seconds;
    ++count;
  });
  // A bound that says nothing would pass, too.
  EXPECT_GT(tightness / count, 0.7);
  EXPECT_LE(tightness, likely);
  RecordProperty("mean_least", fmt::format("{:.3f}", tightness / count));
  fmt::print("bound / simulation: {:.3f} on average, likely time {:.3f}\n", tightness / count, likely / count);
}

TEST(Bound, OfMemoryIsNeverAboveTheLayout) {
  double tightness = 0;
  int count = 0;
  for_random_plans(29, 500, [&](test::Case& one, std::mt19937& random) {
    if (random() % 3 == 0) {
      one.plan.state_tier = Tier::kPinned;
      one.bytes = layout(one.spec, one.chunks, one.shape, one.profile, one.plan);
    }
    const Rates rates = test::random_rates(one.profile, random, false);
    const MemoryBound bound = bounds_of(one, rates, true).memory;
    const MemoryNeed need(one.bytes);
    EXPECT_LE(bound.device, need.device);
    EXPECT_LE(bound.device, one.bytes.live_bound);
    EXPECT_LE(bound.pinned, need.pinned);
    EXPECT_LE(bound.pageable, need.pageable);
    tightness += static_cast<double>(bound.device) / static_cast<double>(need.device);
    ++count;
  });
  EXPECT_GT(tightness / count, 0.9);
  fmt::print("device bound / layout: {:.3f} on average\n", tightness / count);
}

TEST(Bound, FallsAsMoreChunksStayOnTheDevice) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    test::Case one(test::make_model(8, false), test::small_run(DType::kBf16, round % 2 == 0 ? 1 : 4),
                   resident_plan(test::make_model(8, false), test::small_run(DType::kBf16, 1), 2600));
    const Rates rates = test::random_rates(one.profile, random, round % 3 == 0);
    std::fill(one.plan.place.begin(), one.plan.place.end(), UpdatePlace::kCpu);
    double before = 0;
    for (int persist = one.plan.n_persist; persist >= 0; --persist) {
      one.plan.n_persist = persist;
      const SlotNeed need = slot_need(one.spec, one.chunks, one.plan);
      one.plan.n_buffer = std::max(2, need.buffer);
      one.plan.gradient_slots = need.gradient;
      const double least = bounds_of(one, rates, true).time.likely;
      EXPECT_GE(least, before * (1 - 1e-9)) << persist << " persistent, round " << round;
      before = least;
    }
  }
}

}  // namespace
}  // namespace protrain
