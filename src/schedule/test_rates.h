// Rates of machines that do not exist, for tests of what is made from rates.
#pragma once
#include <random>
#include <string>

#include "plan/profile.h"
#include "schedule/rates.h"

namespace protrain::test {

inline double between(std::mt19937& random, double least, double most) {
  return std::uniform_real_distribution(least, most)(random);
}

// Every call of the profile, links, updates: times of one order of magnitude, so that any of them may be what a step
// waits for. `slows`: lanes slow each other down.
inline Rates random_rates(const Profile& profile, std::mt19937& random, bool slows) {
  Rates rates;
  rates.source = "drawn";
  for (const Profile::Call& call : profile.calls) {
    const double work = (call.key.pass == Pass::kBackward ? 2.0 : 1.0) * static_cast<double>(call.key.shape.tokens());
    const double steady = 1e-4 * work * between(random, 0.5, 2);
    rates.calls.push_back({call.key, steady, steady * between(random, 0.8, 1)});
    if (call.key.pass == Pass::kForwardKeep) rates.calls.back().graph_alone = between(random, 0.5, 1);
  }
  // A layer of test::make_model has 810 elements, its forward takes about 2 ms.
  const auto linear = [&](double seconds_a_layer) {
    return Rates::Linear{between(random, 0, 1e-4), seconds_a_layer / 810 * between(random, 0.2, 3)};
  };
  rates.h2d = linear(5e-4);
  rates.d2h = linear(5e-4);
  rates.cpu_update = linear(3e-3);
  rates.gpu_update = linear(2e-4);
  rates.norm = linear(1e-4);
  rates.round = linear(1e-4);
  rates.finish_norm = between(random, 0, 1e-4);
  rates.between_steps = between(random, 0, 1e-3);
  for (std::size_t a = 0; slows && a < kLanes; ++a) {
    for (std::size_t b = 0; b < kLanes; ++b) {
      if (a != b) rates.slowdown[a][b] = between(random, 1, 1.3);
    }
  }
  return rates;
}

}  // namespace protrain::test
