// The simulated link between host and device: one rate each way, shared by all streams. Thread-safe.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>

#include "base/units.h"

namespace protrain {

// One direction. Transfers queue up: each takes bytes / rate from the end of the one before.
class Link {
 public:
  explicit Link(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}  // 0: unthrottled
  bool throttled() const { return bytes_per_second_ > 0; }
  std::chrono::steady_clock::time_point occupy(Bytes);  // when a transfer that starts now will end

 private:
  double bytes_per_second_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_at_;
};

class Links {
 public:
  Links(double h2d_bytes_per_second, double d2h_bytes_per_second)
      : h2d_(h2d_bytes_per_second), d2h_(d2h_bytes_per_second) {}

  void set_device_arena(const std::byte* begin, Bytes);
  // Copies; lasts as long as the link says when exactly one end lies in the device arena.
  void transfer(std::byte* to, const std::byte* from, Bytes);

 private:
  bool on_device(const std::byte*) const;

  Link h2d_;
  Link d2h_;
  std::atomic<const std::byte*> begin_{nullptr};
  std::atomic<const std::byte*> end_{nullptr};
};

}  // namespace protrain
