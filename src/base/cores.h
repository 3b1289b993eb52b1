// The cores that this process may use, and its NUMA nodes. Reads the kernel's files on every call; thread-safe.
// Nothing of it looks at OMP_NUM_THREADS.
#pragma once
#include <filesystem>
#include <vector>

namespace protrain {

int allowed_cores();  // cores in the calling thread's affinity mask, capped by the cgroup's CPU quota; at least 1

// For a pool that works while a step is being issued: this process's part of allowed_cores(), less what the issuing
// threads need. The main thread and autograd's take turns on one core, the copy lanes and the data loader share
// another; a process with fewer than four cores sets aside one. At least 1. `processes`: that share these cores, one a
// device.
int background_cores(int processes = 1);

struct Node {
  int id = 0;
  std::vector<int> cores;  // ascending; those of the affinity mask
};
// Nodes with at least one allowed core, ascending; one with all of them where the system tells of no nodes.
std::vector<Node> allowed_nodes();
// The same for given cores. root: where sys/ is, for tests.
std::vector<Node> nodes_of(const std::vector<int>& cores, const std::filesystem::path& root = "/");

// Binds the calling thread to these cores. Placement is advice: false, and nothing else, where the system refuses.
bool run_on(const std::vector<int>& cores);

}  // namespace protrain
