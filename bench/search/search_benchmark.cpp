// How long the search takes: 12 published shapes, accumulation 1 and 8, on a 24 GB and an 80 GB card with 400 GB and
// 1 TB of host memory. Prints a line each and the medians; also for the published four knobs.
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "search/test_machine.h"

namespace {

using namespace protrain;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void run(bool published, std::int64_t accumulation, bool large) {
  std::vector<double> bound, all;
  std::vector<double> simulated;
  for (const test::ModelShape& shape : test::published_shapes()) {
    const bool old = shape.family == "gpt2" || shape.family == "opt";
    const test::Setting setting(shape, 4, old ? 1024 : 4096, accumulation,
                                large ? test::Machine::h200() : test::Machine::consumer());
    const SearchResult result = setting.search((large ? 79 : 23) * kGiB, (large ? 1000 : 390) * kGiB,
                                               published ? SearchSpace::published() : SearchSpace{});
    bound.push_back(result.bound_seconds);
    all.push_back(result.seconds);
    simulated.push_back(result.simulated);
    fmt::print(
        "{:12} x {} {:2} GB {}: space {:.2g}, bounded {:6} in {:6.1f} ms, simulated {:3}, all {:7.1f} ms; "
        "{}step {:.3f} s, {}; {}\n",
        shape.name, accumulation, large ? 80 : 24, published ? "published" : "whole", result.space, result.bounded,
        1e3 * result.bound_seconds, result.simulated, 1e3 * result.seconds,
        result.missing.fits() ? "" : "does not fit: ", result.prediction.step_seconds, result.binding,
        describe(setting.spec, result.memory));
  }
  fmt::print("median of 12, accumulation {}, {} GB, {} space: bound {:.1f} ms, all {:.1f} ms, simulated {:.0f}\n\n",
             accumulation, large ? 80 : 24, published ? "published" : "whole", 1e3 * median(bound), 1e3 * median(all),
             median(simulated));
}

}  // namespace

int main() {
  for (const bool published : {false, true}) {
    for (const std::int64_t accumulation : {1, 8}) {
      for (const bool large : {true, false}) run(published, accumulation, large);
    }
  }
}
