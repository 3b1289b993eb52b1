#include "profile/stopwatch.h"

#include <algorithm>

#include "base/error.h"
#include "base/seconds_since.h"

namespace protrain::profile {
namespace {

constexpr int kMostPieces = 50;
constexpr Bytes kSmallShare = 64;   // the small copy is this part of the large one
constexpr double kShortest = 1e-9;  // a clock may see nothing pass; a rate is never 0

double time_piece(const Device& device, Stream& stream, const Work& work) {
  const Event before = stream.record();
  work(stream);
  const Event after = stream.record();
  after.wait();
  return device.seconds_between(before, after);
}

}  // namespace

double median(std::vector<double> values) {
  PROTRAIN_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double time_alone(const Device& device, Stream& stream, const Work& work, double seconds) {
  work(stream);
  stream.synchronize();
  std::vector<double> times;
  const auto begin = Clock::now();
  do {
    times.push_back(time_piece(device, stream, work));
  } while (static_cast<int>(times.size()) < kMostPieces && seconds_since(begin) < seconds);
  return std::max(median(std::move(times)), kShortest);
}

double time_sustained(const Device& device, Stream& stream, const Work& work, double settle, double window) {
  const auto begin = Clock::now();
  do {
    time_piece(device, stream, work);
  } while (seconds_since(begin) < settle);
  double sum = 0;
  int pieces = 0;
  do {
    sum += time_piece(device, stream, work);
    ++pieces;
  } while (seconds_since(begin) < settle + window);
  return std::max(sum / pieces, kShortest);
}

Rates::Linear fit(double small_units, double small_seconds, double large_units, double large_seconds) {
  const double rise = large_seconds - small_seconds;
  if (large_units <= small_units || rise <= 0) return {0, large_seconds / large_units};
  const double per_unit = rise / (large_units - small_units);
  const double seconds = small_seconds - small_units * per_unit;
  return seconds > 0 ? Rates::Linear{seconds, per_unit} : Rates::Linear{0, large_seconds / large_units};
}

Rates::Linear copy_time(const Device& device, Stream& stream, std::byte* to, const std::byte* from, Bytes large,
                        double seconds) {
  const Bytes small = std::max<Bytes>(large / kSmallShare, kAlignment);
  const auto time = [&](Bytes bytes) {
    return time_alone(device, stream, [&](Stream& on) { on.copy(to, from, bytes); }, seconds / 2);
  };
  const double of_small = time(small);
  return fit(static_cast<double>(small), of_small, static_cast<double>(large), time(large));
}

}  // namespace protrain::profile
