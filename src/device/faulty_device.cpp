#include "device/faulty_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.h"

namespace protrain {
namespace {

// Faults travel as events that a stream waits for: on the CPU device they happen in the worker when their turn comes,
// on CUDA and in host lanes in the issuing thread.
class Delay : public EventState {
 public:
  explicit Delay(double seconds) : seconds_(seconds) {}
  bool ready() const override { return false; }
  void wait() const override { std::this_thread::sleep_for(std::chrono::duration<double>(seconds_)); }

 private:
  double seconds_;
};

class Failure : public EventState {
 public:
  Failure(std::int64_t number, std::string lane) : number_(number), lane_(std::move(lane)) {}
  bool ready() const override { return false; }
  void wait() const override {
    fail(ExitCode::kInternal, "injected fault: copy {} failed, on lane {}", number_, lane_);
  }

 private:
  std::int64_t number_;
  std::string lane_;
};

struct Shared {
  DeviceFaults faults;
  std::atomic<std::int64_t> copies{0};
};

std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 14695981039346656037u;  // FNV-1a: the same on every machine, unlike std::hash
  for (const char letter : text) value = (value ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return value;
}

class FaultyStream : public Stream {
 public:
  FaultyStream(std::unique_ptr<Stream> inner, std::string lane, std::shared_ptr<Shared> shared)
      : inner_(std::move(inner)),
        lane_(std::move(lane)),
        shared_(std::move(shared)),
        random_(shared_->faults.seed ^ hash(lane_)) {}

  void copy(std::byte* to, const std::byte* from, Bytes bytes) override {
    delay();
    const std::int64_t number = ++shared_->copies;
    if (number == shared_->faults.fail_copy) inner_->wait(Event(std::make_shared<Failure>(number, lane_)));
    inner_->copy(to, from, bytes);
  }
  void zero(std::byte* to, Bytes bytes) override {
    delay();
    inner_->zero(to, bytes);
  }
  void wait(const Event& event) override {
    delay();
    inner_->wait(event);
  }
  Event record() override {
    delay();
    return inner_->record();
  }
  void call(const std::function<void()>& fn) override {
    delay();
    inner_->call(fn);
  }
  void mark(const std::function<void()>& fn) override {
    delay();
    inner_->mark(fn);
  }
  void synchronize() override { inner_->synchronize(); }
  void* native() const override { return inner_->native(); }

 private:
  void delay() {
    const double longest = shared_->faults.longest_delay_seconds;
    if (longest <= 0) return;
    const double share = static_cast<double>(random_() >> 11) * 0x1p-53;
    inner_->wait(Event(std::make_shared<Delay>(share * longest)));
  }

  std::unique_ptr<Stream> inner_;
  std::string lane_;
  std::shared_ptr<Shared> shared_;
  std::mt19937_64 random_;
};

class FaultyDevice : public Device {
 public:
  FaultyDevice(std::unique_ptr<Device> inner, const DeviceFaults& faults)
      : inner_(std::move(inner)), shared_(std::make_shared<Shared>()) {
    shared_->faults = faults;
  }

  DeviceKind kind() const override { return inner_->kind(); }
  std::string name() const override { return inner_->name(); }
  Bytes capacity() const override { return inner_->capacity(); }

  std::byte* arena(Tier tier, Bytes bytes) override {
    if (tier == Tier::kPinned && shared_->faults.refuse_pinned) {
      fail(ExitCode::kDoesNotFit, "injected fault: {} of pinned memory refused", format_bytes(bytes));
    }
    return inner_->arena(tier, bytes);
  }

  std::unique_ptr<Stream> stream(std::string_view lane) override { return with_faults(inner_->stream(lane), lane); }
  std::unique_ptr<Stream> host_stream(std::string_view lane) override {
    return with_faults(inner_->host_stream(lane), lane);
  }

  MemoryUse memory() const override { return inner_->memory(); }
  double seconds_between(const Event& first, const Event& second) const override {
    return inner_->seconds_between(first, second);
  }

 private:
  std::unique_ptr<Stream> with_faults(std::unique_ptr<Stream> stream, std::string_view lane) const {
    const auto& lanes = shared_->faults.lanes;
    if (!lanes.empty() && std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) return stream;
    return std::make_unique<FaultyStream>(std::move(stream), std::string(lane), shared_);
  }

  std::unique_ptr<Device> inner_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<Device> make_faulty_device(std::unique_ptr<Device> inner, const DeviceFaults& faults) {
  return std::make_unique<FaultyDevice>(std::move(inner), faults);
}

}  // namespace protrain
