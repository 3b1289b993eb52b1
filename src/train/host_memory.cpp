#include "train/host_memory.h"

#include <fstream>
#include <string>

namespace protrain {

HostMemory host_memory() {
  HostMemory use;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmRSS:" && word != "VmHWM:") continue;
    Bytes kib = 0;
    status >> kib;
    (word == "VmRSS:" ? use.resident : use.peak) = kib * kKiB;
  }
  return use;
}

}  // namespace protrain
