#include "base/host_memory.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/cgroup.h"

namespace protrain {

HostMemory host_memory(const std::filesystem::path& root) {
  HostMemory use;
  std::ifstream status(root / "proc/self/status");
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

void restart_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

Bytes settled_process_bytes() {
  malloc_trim(0);
  return host_memory().unfiled;
}

Bytes available_memory(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string word; file >> word;) {
    if (word != "MemAvailable:") continue;
    Bytes kib = 0;
    file >> kib;
    return kib * kKiB + host_memory(root).unfiled;
  }
  return physical_memory();
}

Bytes plannable_host_memory(const std::filesystem::path& root) {
  const Bytes limit = std::min(host_memory_limit(), available_memory(root));
  return limit - limit / kHostReserve;
}

}  // namespace protrain
