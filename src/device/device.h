// The accelerator as the runtime sees it: one arena a tier, in-order streams, events. `cpu` simulates it in host RAM,
// `cuda` is the real one; decorators add throttling and faults. Holds no tensor and no LibTorch.
//
// Thread safety: Device's methods may be called from any thread; a Stream has one issuing thread at a time; an Event
// may be shared freely. Ownership: a Device outlives its streams; arenas live as long as the Device.
//
// Errors of a stream's work stay with the stream: later work is skipped (cpu) or fails (cuda), and synchronize(),
// call() and the events recorded after it, here and on streams that wait for them, rethrow the first one.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/units.h"

namespace protrain {

enum class Tier : std::uint8_t { kDevice, kPinned, kPageable, kDisk };
enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// A place inside a tier's one arena: a plan can name it without the hardware.
struct Range {
  Tier tier = Tier::kDevice;
  Bytes offset = 0;
  Bytes bytes = 0;
  bool operator==(const Range&) const = default;
};

class EventState {
 public:
  virtual ~EventState() = default;
  virtual bool ready() const = 0;
  virtual void wait() const = 0;  // rethrows the error of the work it stands for
};

// A point in a stream. A default Event is one that has already passed.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {}
  bool ready() const { return !state_ || state_->ready(); }
  void wait() const {
    if (state_) state_->wait();
  }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual void copy(std::byte* to, const std::byte* from, Bytes) = 0;  // memory is read and written when executed
  virtual void zero(std::byte* to, Bytes) = 0;
  virtual void wait(const Event&) = 0;  // later work waits, the host does not. Only for events already recorded.
  virtual Event record() = 0;
  // Runs fn on the CALLING thread with earlier work of this stream done (cpu) or enqueued (cuda): fn issues its work to
  // native(). A worker's own thread team would change bits.
  virtual void call(const std::function<void()>& fn) = 0;
  // Runs fn in the order of this stream's work, on any thread, also after errors; it does not throw. For what tests
  // keep beside the bytes (poison): cuda drops it, its memory is not the host's to mark.
  virtual void mark(const std::function<void()>& fn) { fn(); }
  virtual void synchronize() = 0;    // host wait for everything issued; rethrows errors
  virtual void* native() const = 0;  // cudaStream_t, or nullptr on cpu
};

// A lane of the host itself: everything runs at once on the calling thread (one at a time), wait() blocks it, recorded
// events have passed and carry the steady clock's time. Errors are thrown by the call that meets them. All devices
// accept its events.
std::unique_ptr<Stream> make_host_stream();

struct MemoryUse {
  Bytes total = 0;   // of the whole device, as the driver says
  Bytes in_use = 0;  // by anyone
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;
  virtual Bytes capacity() const = 0;  // bytes that an arena may take now
  // Once a tier, aligned to kAlignment (host: 2 MiB, zero); Error(kDoesNotFit) if refused. On cuda, kPinned has its
  // exact size: anonymous huge pages, touched by the cores of all allowed NUMA nodes in turn, then registered with the
  // device; kPageable is the same without registering. On cpu, host pages come when they are first touched.
  virtual std::byte* arena(Tier, Bytes) = 0;
  virtual std::unique_ptr<Stream> stream(std::string_view lane) = 0;
  // make_host_stream() for this lane, with this device's faults.
  virtual std::unique_ptr<Stream> host_stream(std::string_view /*lane*/) { return make_host_stream(); }
  virtual MemoryUse memory() const = 0;
  // Both ready. Events of host streams are placed on the device's clock.
  virtual double seconds_between(const Event& first, const Event& second) const = 0;
};

struct CpuDeviceOptions {
  Bytes capacity = 0;               // 0: the host's, as its cgroup limits it
  double h2d_bytes_per_second = 0;  // 0: unthrottled
  double d2h_bytes_per_second = 0;
};
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& = {});

bool cuda_compiled();                                 // this build has CUDA code
int cuda_device_count();                              // 0 without driver, GPU or CUDA code; never throws
std::unique_ptr<Device> make_cuda_device(int index);  // Error(kConfig) when there is none

}  // namespace protrain
