#include "device/cpu/link.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace protrain {

using Clock = std::chrono::steady_clock;

Clock::time_point Link::occupy(Bytes bytes) {
  const std::chrono::duration<double> length(static_cast<double>(bytes) / bytes_per_second_);
  const std::lock_guard lock(mutex_);
  free_at_ = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(length);
  return free_at_;
}

void Links::set_device_arena(const std::byte* begin, Bytes bytes) {
  end_ = begin + bytes;
  begin_ = begin;
}

bool Links::on_device(const std::byte* address) const {
  const std::less_equal<> at_most;
  const std::byte* const begin = begin_;
  return begin != nullptr && at_most(begin, address) && std::less<>()(address, end_.load());
}

void Links::transfer(std::byte* to, const std::byte* from, Bytes bytes) {
  Link* link = nullptr;
  if (on_device(to) != on_device(from)) link = on_device(to) ? &h2d_ : &d2h_;
  if (link == nullptr || !link->throttled()) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  const Clock::time_point end = link->occupy(bytes);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
  std::this_thread::sleep_until(end);
}

}  // namespace protrain
