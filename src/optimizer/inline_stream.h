// A Stream for tests and benchmarks: runs everything at once on the calling thread.
#pragma once
#include <cstring>

#include "device/device.h"

namespace protrain::test {

class InlineStream final : public Stream {
 public:
  void copy(std::byte* to, const std::byte* from, Bytes bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void zero(std::byte* to, Bytes bytes) override { std::memset(to, 0, static_cast<std::size_t>(bytes)); }
  void wait(const Event& event) override { event.wait(); }
  Event record() override { return {}; }
  void call(const std::function<void()>& fn) override { fn(); }
  void synchronize() override {}
  void* native() const override { return nullptr; }
};

}  // namespace protrain::test
