// Machines as files (hardware/*.json): what a plan needs to know of hardware that is not there. Plain data;
// thread-safe.
#pragma once
#include <string>

#include "base/units.h"

namespace protrain {

// Rates in units a second; each is what one process reaches, under steady load, not what a data sheet says.
struct Hardware {
  std::string name;
  Bytes device_memory = 0;               // for arena and everything outside it
  Bytes outside = 0;                     // of that: context, modules, libraries
  Bytes host_memory = 0;                 // for the process; train leaves a part of kHostReserve to the system
  double bf16_flops = 0, f32_flops = 0;  // matrix products of a transformer layer's sizes
  double attention_flops = 0;            // fused attention, forward; backward takes 2.5 times its FLOPs at 0.8 the rate
  double device_bytes = 0;               // device memory, what element-wise operators move
  double steady_slowdown = 1;            // time under steady load / time when rested (power limit)
  double h2d_bytes = 0, d2h_bytes = 0;   // one copy alone, pinned memory
  double duplex = 1;                     // time of a copy while the other direction works / alone
  double host_bytes = 0;                 // host memory, what the update's threads reach together
  double update_under_copies = 1;        // time of an update of the host while copies run / alone
  double disk_read_bytes = 0, disk_write_bytes = 0;
  int gpus = 1;
};

// Error(kConfig) naming file, key, value. Unknown keys are refused.
Hardware parse_hardware(const std::string& json, const std::string& file);

}  // namespace protrain
