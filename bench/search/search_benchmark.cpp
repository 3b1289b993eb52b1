// How long the search takes: 12 published shapes, accumulation 1 and 8, on a 24 GB and an 80 GB card with 400 GB and
// 1 TB of host memory. Prints a line each and the medians; also for the published four knobs. With the word `parts` it
// compares the whole space's plans with the best of spaces that it contains.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <vector>

#include "search/test_machine.h"

namespace {

using namespace protrain;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

test::Setting setting_of(const test::ModelShape& shape, std::int64_t accumulation, bool large) {
  const bool old = shape.family == "gpt2" || shape.family == "opt";
  return {shape, 4, old ? 1024 : 4096, accumulation, large ? test::Machine::h200() : test::Machine::consumer()};
}

void compare_parts(std::int64_t accumulation, bool large) {
  const Bytes device = (large ? 79 : 23) * kGiB;
  const Bytes host = (large ? 1000 : 390) * kGiB;
  SearchLimits how;
  how.caution = 0;
  for (const test::ModelShape& shape : test::published_shapes()) {
    const test::Setting setting = setting_of(shape, accumulation, large);
    const std::clock_t start = std::clock();
    const SearchResult whole = setting.search(device, host, {}, how);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    const auto part = setting.best_restricted(device, host, how);
    fmt::print("{:12} x {} {:2} GB: {}{:.3f} s, best part {} {:.3f} s: {:+.2f} %; {:.0f} ms, simulated {}; {}\n",
               shape.name, accumulation, large ? 80 : 24,
               whole.missing.fits() ? "" : "does not fit: ", whole.prediction.step_seconds, part.which, part.seconds,
               100 * (whole.prediction.step_seconds / part.seconds - 1), 1e3 * seconds, whole.simulated,
               describe(setting.spec, whole.memory));
    std::fflush(stdout);
  }
}

void run(bool published, std::int64_t accumulation, bool large) {
  std::vector<double> bound, all;
  std::vector<double> simulated;
  for (const test::ModelShape& shape : test::published_shapes()) {
    const test::Setting setting = setting_of(shape, accumulation, large);
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

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "parts") {
    for (const std::int64_t accumulation : {1, 8}) {
      for (const bool large : {true, false}) compare_parts(accumulation, large);
    }
    return 0;
  }
  for (const bool published : {false, true}) {
    for (const std::int64_t accumulation : {1, 8}) {
      for (const bool large : {true, false}) run(published, accumulation, large);
    }
  }
}
