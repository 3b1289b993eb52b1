#include "device/host_stream.h"

#include <cstring>

namespace protrain {
namespace {

class HostEvent final : public HostTimedEvent {
 public:
  bool ready() const override { return true; }
  void wait() const override {}
  Clock::time_point time() const override { return time_; }

 private:
  const Clock::time_point time_ = Clock::now();
};

class HostStream final : public Stream {
 public:
  void copy(std::byte* to, const std::byte* from, Bytes bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void zero(std::byte* to, Bytes bytes) override {
    if (bytes > 0) std::memset(to, 0, static_cast<std::size_t>(bytes));
  }
  void wait(const Event& event) override { event.wait(); }
  Event record() override { return Event(std::make_shared<HostEvent>()); }
  void call(const std::function<void()>& fn) override { fn(); }
  void synchronize() override {}
  void* native() const override { return nullptr; }
};

}  // namespace

std::unique_ptr<Stream> make_host_stream() { return std::make_unique<HostStream>(); }

}  // namespace protrain
