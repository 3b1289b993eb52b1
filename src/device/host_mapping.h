// Anonymous host memory for arenas: 2 MiB aligned, huge pages where the kernel grants them, zero at first. Owns the
// mapping; movable. Not thread-safe.
#pragma once
#include <cstddef>
#include <vector>

#include "base/cores.h"
#include "base/units.h"

namespace protrain {

inline constexpr Bytes kHugePage = 2 * kMiB;

class HostMapping {
 public:
  HostMapping() = default;
  // Error(kDoesNotFit) when the kernel refuses, or when this process may not have that much: it would be killed later.
  explicit HostMapping(Bytes);
  ~HostMapping();
  HostMapping(HostMapping&&) noexcept;
  HostMapping& operator=(HostMapping&&) noexcept;

  std::byte* data() const { return data_; }  // null when default
  Bytes bytes() const { return bytes_; }
  // Makes every page resident, with a thread on each allowed core. See Note [Pages and nodes].
  void touch();
  void touch(const std::vector<Node>&);

 private:
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

}  // namespace protrain
