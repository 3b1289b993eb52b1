#include <array>
#include <fstream>
#include <mutex>

#include "base/cgroup.h"
#include "base/error.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"
#include "device/host_mapping.h"
#include "device/host_stream.h"

namespace protrain {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

// Simulates an accelerator in host memory: an arena with a capacity, streams as threads, a link with a rate each way.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : capacity_(options.capacity > 0 ? options.capacity : host_memory_limit()),
        links_(std::make_shared<Links>(options.h2d_bytes_per_second, options.d2h_bytes_per_second)) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return processor_name(); }

  Bytes capacity() const override {
    const std::lock_guard lock(mutex_);
    return capacity_ - device_bytes_;
  }

  std::byte* arena(Tier tier, Bytes bytes) override {
    const std::lock_guard lock(mutex_);
    PROTRAIN_CHECK(tier != Tier::kDisk, "the disk tier is files");
    HostMapping& mapping = arenas_[static_cast<std::size_t>(tier)];
    PROTRAIN_CHECK(mapping.data() == nullptr, "one arena a tier");
    if (tier == Tier::kDevice && bytes > capacity_) {
      fail(ExitCode::kDoesNotFit, "the device arena needs {}, the device has {}", format_bytes(bytes),
           format_bytes(capacity_));
    }
    mapping = HostMapping(bytes);
    if (tier == Tier::kDevice) {
      device_bytes_ = bytes;
      links_->set_device_arena(mapping.data(), bytes);
    }
    return mapping.data();
  }

  std::unique_ptr<Stream> stream(std::string_view lane) override {
    return std::make_unique<CpuStream>(std::string(lane), links_);
  }

  MemoryUse memory() const override {
    const std::lock_guard lock(mutex_);
    return {capacity_, device_bytes_};
  }

  double seconds_between(const Event& first, const Event& second) const override {
    const auto* const from = dynamic_cast<const HostTimedEvent*>(first.state().get());
    const auto* const to = dynamic_cast<const HostTimedEvent*>(second.state().get());
    PROTRAIN_CHECK(from != nullptr && to != nullptr, "timed events of this device or of the host");
    return std::chrono::duration<double>(to->time() - from->time()).count();
  }

 private:
  const Bytes capacity_;
  std::shared_ptr<Links> links_;
  mutable std::mutex mutex_;  // guards everything below
  std::array<HostMapping, 3> arenas_;
  Bytes device_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace protrain
