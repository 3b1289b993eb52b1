// A device whose streams are late, whose n-th copy fails, or that refuses pinned memory: for tests of what runs on
// devices. Results must not depend on delays; failures must end in one exception. Thread-safe as Device is.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace protrain {

struct DeviceFaults {
  std::uint64_t seed = 1;
  // Streams that faults apply to; empty: all. Initialised for designated initialisers, which g++ warns about otherwise.
  std::vector<std::string> lanes = {};  // NOLINT(readability-redundant-member-init)
  double longest_delay_seconds = 0;  // each operation starts late by a random time up to this, in its lane's own order
  std::int64_t fail_copy = 0;        // this copy (from 1, over all chosen lanes) fails with Error(kInternal); 0: none
  bool refuse_pinned = false;        // arena(kPinned) throws Error(kDoesNotFit)
};

std::unique_ptr<Device> make_faulty_device(std::unique_ptr<Device> inner, const DeviceFaults&);

}  // namespace protrain
