#include <array>
#include <chrono>
#include <mutex>

#include "device/cuda/handle.h"
#include "device/device.h"
#include "device/host_mapping.h"
#include "device/host_stream.h"

namespace protrain {
namespace {

constexpr std::chrono::seconds kAnchorLife{10};  // a drift of 50 us at 5 millionths
constexpr int kAnchorTries = 8;

class CudaEventState : public EventState {
 public:
  CudaEventState(int device, cudaStream_t stream) : device_(device) {
    cudaEvent_t event = nullptr;
    // Blocking: a lane's thread that waits must leave its core to the update kernels.
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "cudaEventCreateWithFlags");
    event_ = CudaEventHandle(event);
    check_cuda(cudaEventRecord(event, stream), "cudaEventRecord");
  }

  bool ready() const override {
    const cudaError_t state = cudaEventQuery(event_.get());
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // no error: a later check on this thread must not report it
      return false;
    }
    check_cuda(state, "cudaEventQuery");
    return true;
  }

  void wait() const override {
    check_cuda(cudaSetDevice(device_), "cudaSetDevice");
    check_cuda(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
  }

  cudaEvent_t event() const { return event_.get(); }

 private:
  int device_;
  CudaEventHandle event_;
};

class CudaStream : public Stream {
 public:
  explicit CudaStream(int device) : device_(device) {
    use();
    cudaStream_t stream = nullptr;
    // Non-blocking: the legacy default stream must not order the lanes behind the schedule's back.
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    stream_ = CudaStreamHandle(stream);
  }

  void copy(std::byte* to, const std::byte* from, Bytes bytes) override {
    if (bytes == 0) return;
    use();
    check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_.get()),
               "cudaMemcpyAsync");
  }

  void zero(std::byte* to, Bytes bytes) override {
    if (bytes == 0) return;
    use();
    check_cuda(cudaMemsetAsync(to, 0, static_cast<std::size_t>(bytes), stream_.get()), "cudaMemsetAsync");
  }

  void wait(const Event& event) override {
    if (!event.state()) return;
    const auto* const cuda = dynamic_cast<const CudaEventState*>(event.state().get());
    if (cuda == nullptr) {
      event.wait();  // of a host lane, where it has passed; or a planted fault
      return;
    }
    use();
    check_cuda(cudaStreamWaitEvent(stream_.get(), cuda->event(), 0), "cudaStreamWaitEvent");
  }

  Event record() override {
    use();
    return Event(std::make_shared<CudaEventState>(device_, stream_.get()));
  }

  void call(const std::function<void()>& fn) override {
    use();
    fn();
  }

  void mark(const std::function<void()>&) override {}

  void synchronize() override {
    use();
    check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }

  void* native() const override { return stream_.get(); }

 private:
  // CUDA's current device belongs to the thread, and any thread may issue.
  void use() const { check_cuda(cudaSetDevice(device_), "cudaSetDevice"); }

  int device_;
  CudaStreamHandle stream_;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    // Host threads sleep while they wait; takes effect only if this process has not used the device yet.
    check_cuda(cudaInitDevice(index, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid), "cudaInitDevice");
    check_cuda(cudaSetDevice(index), "cudaSetDevice");
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    name_ = properties.name;
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return name_; }

  Bytes capacity() const override {
    const MemoryUse use = memory();
    return (use.total - use.in_use) / kHugePage * kHugePage;
  }

  std::byte* arena(Tier tier, Bytes bytes) override {
    const std::lock_guard lock(mutex_);
    check_cuda(cudaSetDevice(index_), "cudaSetDevice");
    PROTRAIN_CHECK(tier != Tier::kDisk, "the disk tier is files");
    if (tier == Tier::kDevice) return device_arena(bytes);
    HostMapping& mapping = host_arenas_[tier == Tier::kPinned ? 0 : 1];
    PROTRAIN_CHECK(mapping.data() == nullptr, "one arena a tier");
    HostMapping fresh(bytes);
    // Before pinning: the driver would touch page after page on one core.
    fresh.touch();
    if (tier == Tier::kPinned) pin(fresh);
    mapping = std::move(fresh);
    return mapping.data();
  }

  std::unique_ptr<Stream> stream(std::string_view) override { return std::make_unique<CudaStream>(index_); }

  MemoryUse memory() const override {
    check_cuda(cudaSetDevice(index_), "cudaSetDevice");
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    return {static_cast<Bytes>(total_bytes), static_cast<Bytes>(total_bytes - free_bytes)};
  }

  double seconds_between(const Event& first, const Event& second) const override {
    const auto* const from = dynamic_cast<const CudaEventState*>(first.state().get());
    const auto* const to = dynamic_cast<const CudaEventState*>(second.state().get());
    if (from != nullptr && to != nullptr) return elapsed(from->event(), to->event());
    const auto* const host_from = dynamic_cast<const HostTimedEvent*>(first.state().get());
    const auto* const host_to = dynamic_cast<const HostTimedEvent*>(second.state().get());
    PROTRAIN_CHECK((from != nullptr || host_from != nullptr) && (to != nullptr || host_to != nullptr),
                   "timed events of this device or of the host");
    if (host_from != nullptr && host_to != nullptr) return seconds(host_to->time() - host_from->time());
    return host_from != nullptr ? -since_host(host_from->time(), to->event())
                                : since_host(host_to->time(), from->event());
  }

 private:
  using Clock = HostTimedEvent::Clock;

  static double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }
  static double elapsed(cudaEvent_t from, cudaEvent_t to) {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, from, to), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

  // From the device's event to the host's time.
  double since_host(Clock::time_point time, cudaEvent_t event) const {
    const std::lock_guard lock(clock_mutex_);
    // The two clocks drift apart, and elapsed times are floats: an old anchor is worth little.
    if (!anchor_.get() || Clock::now() - anchor_time_ > kAnchorLife) set_anchor();
    return seconds(time - anchor_time_) + elapsed(event, anchor_.get());
  }

  // One moment on both clocks: an event on an idle stream, between two looks at the host's clock. The tightest of a
  // few.
  void set_anchor() const {
    check_cuda(cudaSetDevice(index_), "cudaSetDevice");
    if (!clock_stream_.get()) {
      cudaStream_t stream = nullptr;
      check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      clock_stream_ = CudaStreamHandle(stream);
    }
    auto tightest = Clock::duration::max();
    for (int i = 0; i < kAnchorTries; ++i) {
      cudaEvent_t raw = nullptr;
      check_cuda(cudaEventCreateWithFlags(&raw, cudaEventDefault), "cudaEventCreateWithFlags");
      CudaEventHandle event(raw);
      const Clock::time_point before = Clock::now();
      check_cuda(cudaEventRecord(raw, clock_stream_.get()), "cudaEventRecord");
      while (cudaEventQuery(raw) == cudaErrorNotReady) cudaGetLastError();  // as in ready()
      const Clock::duration window = Clock::now() - before;
      check_cuda(cudaEventSynchronize(raw), "cudaEventSynchronize");
      if (window >= tightest) continue;
      tightest = window;
      anchor_ = std::move(event);
      anchor_time_ = before + window / 2;
    }
  }

  std::byte* device_arena(Bytes bytes) {
    PROTRAIN_CHECK(device_arena_.get() == nullptr, "one arena a tier");
    PROTRAIN_CHECK(bytes > 0, "{} bytes", bytes);
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, static_cast<std::size_t>(round_up(bytes, kHugePage)));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      fail(ExitCode::kDoesNotFit, "the device arena needs {}, {} has {} free", format_bytes(bytes), name_,
           format_bytes(capacity()));
    }
    check_cuda(error, "cudaMalloc");
    device_arena_ = CudaMemory(memory);
    // Of itself cudaMalloc promises 256 bytes only.
    PROTRAIN_CHECK(reinterpret_cast<std::uintptr_t>(memory) % kAlignment == 0, "cudaMalloc gave {}", memory);
    return static_cast<std::byte*>(memory);
  }

  // In one registration, whatever the size: no copy may cross from one to another.
  void pin(HostMapping& mapping) {
    const cudaError_t error =
        cudaHostRegister(mapping.data(), static_cast<std::size_t>(mapping.bytes()), cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      cudaGetLastError();
      fail(ExitCode::kDoesNotFit, "the system refuses to pin {} of host memory ({}); is `ulimit -l` too low?",
           format_bytes(mapping.bytes()), cudaGetErrorString(error));
    }
    registration_ = CudaRegistration(mapping.data());
  }

  int index_;
  std::string name_;
  std::mutex mutex_;  // guards everything below
  CudaMemory device_arena_;
  std::array<HostMapping, 2> host_arenas_;  // pinned, pageable
  CudaRegistration registration_;           // ends before the memory it covers

  mutable std::mutex clock_mutex_;  // guards everything below
  mutable CudaStreamHandle clock_stream_;
  mutable CudaEventHandle anchor_;
  mutable Clock::time_point anchor_time_;
};

}  // namespace

bool cuda_compiled() { return true; }

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::unique_ptr<Device> make_cuda_device(int index) {
  const int count = cuda_device_count();
  if (count == 0) fail(ExitCode::kConfig, "device: cuda, but no GPU with a working driver is there; use device: cpu");
  if (index < 0 || index >= count) {
    fail(ExitCode::kConfig, "GPU {} was asked for, there are {} (0 to {})", index, count, count - 1);
  }
  return std::make_unique<CudaDevice>(index);
}

}  // namespace protrain
