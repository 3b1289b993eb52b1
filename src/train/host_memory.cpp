#include "train/host_memory.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace protrain {

HostMemory host_memory() {
  HostMemory use;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    const bool unfiled = word == "RssAnon:" || word == "RssShmem:";
    if (word != "VmRSS:" && word != "VmHWM:" && !unfiled) continue;
    Bytes kib = 0;
    status >> kib;
    if (unfiled) {
      use.unfiled += kib * kKiB;
    } else {
      (word == "VmRSS:" ? use.resident : use.peak) = kib * kKiB;
    }
  }
  return use;
}

Bytes settled_process_bytes() {
  malloc_trim(0);
  return host_memory().unfiled;
}

}  // namespace protrain
