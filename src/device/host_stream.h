// Events that the host's steady clock has timed: those of host streams and of the CPU device.
#pragma once
#include <chrono>

#include "device/device.h"

namespace protrain {

class HostTimedEvent : public EventState {
 public:
  using Clock = std::chrono::steady_clock;
  virtual Clock::time_point time() const = 0;  // when it passed; InternalError before
};

}  // namespace protrain
