// LibTorch's allocations on the CPU, of the thread that makes the log and while it lives, in order. For tests; one at a
// time. (Worker threads of LibTorch ask for scratch of their own; what this thread asks for does not depend on them.)
#pragma once
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/units.h"

namespace protrain::ops::test {

class AllocationLog {
 public:
  // Allocation number `id` (from 0, in order) of `bytes` begins; bytes < 0: ends.
  struct Event {
    std::int64_t id = 0;
    Bytes bytes = 0;
    bool operator==(const Event&) const = default;
  };

  AllocationLog() : before_(c10::GetCPUAllocator()) {
    {
      const std::lock_guard lock(hook().mutex);
      hook().log = this;
      hook().below = before_;
      hook().thread = std::this_thread::get_id();
    }
    c10::SetCPUAllocator(&hook(), kPriority);
  }
  ~AllocationLog() {
    c10::SetCPUAllocator(before_, kPriority);
    const std::lock_guard lock(hook().mutex);
    hook().log = nullptr;
  }
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;

  const std::vector<Event>& events() const { return events_; }
  Bytes live() const { return live_; }  // bytes asked for and still there
  Bytes peak() const { return peak_; }

 private:
  static constexpr std::uint8_t kPriority = 255;

  // The allocator that LibTorch sees; it outlives every tensor. Memory is known by its address alone, as LibTorch's raw
  // interface wants it.
  struct Hook final : c10::Allocator {
    c10::DataPtr allocate(std::size_t bytes) override {
      c10::DataPtr memory = below->allocate(bytes);
      void* const data = memory.get();
      if (data == nullptr) return memory;
      const std::lock_guard lock(mutex);
      served[data] = std::move(memory);
      if (log != nullptr && std::this_thread::get_id() == thread) log->begin(data, static_cast<Bytes>(bytes));
      return {data, data, &Hook::release, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &Hook::release; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override { below->copy_data(to, from, bytes); }
    static void release(void* data) {
      if (data == nullptr) return;
      const std::lock_guard lock(hook().mutex);
      if (hook().log != nullptr) hook().log->end(data);
      hook().served.erase(data);
    }
    std::mutex mutex;
    std::map<const void*, c10::DataPtr> served;
    c10::Allocator* below = nullptr;
    AllocationLog* log = nullptr;
    std::thread::id thread;
  };
  static Hook& hook() {
    static Hook* const hook = new Hook;
    return *hook;
  }

  void begin(const void* memory, Bytes bytes) {
    alive_[memory] = {next_, bytes};
    events_.push_back({next_++, bytes});
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void end(const void* memory) {
    const auto at = alive_.find(memory);
    if (at == alive_.end()) return;  // from another log's time, or another thread's
    events_.push_back({at->second.id, -at->second.bytes});
    live_ -= at->second.bytes;
    alive_.erase(at);
  }

  c10::Allocator* const before_;
  std::map<const void*, Event> alive_;
  std::vector<Event> events_;
  std::int64_t next_ = 0;
  Bytes live_ = 0, peak_ = 0;
};

}  // namespace protrain::ops::test
