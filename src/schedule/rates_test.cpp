#include "schedule/rates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "schedule/test_case.h"
#include "schedule/test_rates.h"

namespace protrain {
namespace {

TEST(Rates, OfAShapeThatWasNotTimedAreThoseOfAnotherByTheTokens) {
  const ModelSpec spec = test::make_model(2, false);
  RunShape shape = test::small_run(DType::kBf16, 4);
  std::mt19937 random(20261130);
  const Rates rates = test::random_rates(test::make_profile(spec, shape), random, true);
  RunShape larger = shape;
  for (auto* shapes : {&larger.train_shapes, &larger.eval_shapes}) {
    for (BatchShape& batch : *shapes) batch.rows *= 3;
  }
  const Profile wanted = test::make_profile(spec, larger);
  const Rates all = with_calls_of(rates, wanted);
  for (const Profile::Call& call : wanted.calls) {
    const Rates::Call& found = all.find(call.key);
    // Of the timed calls of its kind, one.
    EXPECT_TRUE(std::ranges::any_of(rates.calls, [&](const Rates::Call& timed) {
      CallKey key = call.key;
      key.shape = timed.key.shape;
      const double share = static_cast<double>(call.key.shape.tokens()) / static_cast<double>(timed.key.shape.tokens());
      return key == timed.key && std::abs(found.steady - share * timed.steady) < 1e-12 &&
             std::abs(found.rested - share * timed.rested) < 1e-12 && found.graph_alone == timed.graph_alone;
    })) << call.key.trace;
  }
}

}  // namespace
}  // namespace protrain
