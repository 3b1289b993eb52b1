// Anonymous host memory for arenas: 2 MiB aligned, huge pages where the kernel grants them, zero at first. Owns the
// mapping; movable. Not thread-safe.
#pragma once
#include <cstddef>

#include "base/units.h"

namespace protrain {

inline constexpr Bytes kHugePage = 2 * kMiB;

class HostMapping {
 public:
  HostMapping() = default;
  explicit HostMapping(Bytes);  // Error(kDoesNotFit) when the kernel refuses
  ~HostMapping();
  HostMapping(HostMapping&&) noexcept;
  HostMapping& operator=(HostMapping&&) noexcept;

  std::byte* data() const { return data_; }  // null when default
  Bytes bytes() const { return bytes_; }
  void touch(int threads);  // makes every page resident

 private:
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

}  // namespace protrain
