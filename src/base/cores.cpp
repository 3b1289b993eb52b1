#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "base/cgroup.h"

namespace protrain {
namespace {

namespace fs = std::filesystem;

// A machine may have more cores than the default mask holds.
constexpr int kMostCores = 1 << 20;

struct Mask {
  explicit Mask(int cores) : set(CPU_ALLOC(cores)), bytes(CPU_ALLOC_SIZE(cores)) {
    if (set != nullptr) CPU_ZERO_S(bytes, set);
  }
  ~Mask() { CPU_FREE(set); }
  Mask(const Mask&) = delete;
  Mask& operator=(const Mask&) = delete;
  cpu_set_t* set;
  std::size_t bytes;
};

std::vector<int> affinity() {
  std::vector<int> cores;
  for (int size = 1024; size <= kMostCores; size *= 2) {  // until the kernel is content
    const Mask mask(size);
    if (mask.set == nullptr) break;
    if (sched_getaffinity(0, mask.bytes, mask.set) != 0) continue;
    for (int core = 0; core < size; ++core) {
      if (CPU_ISSET_S(static_cast<std::size_t>(core), mask.bytes, mask.set)) cores.push_back(core);
    }
    return cores;
  }
  for (unsigned core = 0; core < std::max(1u, std::thread::hardware_concurrency()); ++core) {
    cores.push_back(static_cast<int>(core));
  }
  return cores;
}

// "0-3,8,10-11". What is not understood ends the list.
std::vector<int> parse_list(const std::string& text) {
  std::vector<int> numbers;
  const char* at = text.c_str();
  while (std::isdigit(static_cast<unsigned char>(*at)) != 0) {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    for (long n = first; n <= std::min<long>(last, kMostCores); ++n) numbers.push_back(static_cast<int>(n));
    at = *end == ',' ? end + 1 : end;
    if (at == end) break;
  }
  return numbers;
}

}  // namespace

int allowed_cores() {
  auto cores = static_cast<int>(affinity().size());
  if (const auto quota = cgroup_limits().cores) cores = std::min(cores, static_cast<int>(*quota));
  return std::max(cores, 1);
}

int background_cores(int processes) {
  const int own = allowed_cores() / std::max(processes, 1);
  return std::max(own - (own < 4 ? 1 : 2), 1);
}

std::vector<Node> nodes_of(const std::vector<int>& cores, const fs::path& root) {
  std::vector<Node> nodes;
  std::size_t found = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node") || name.size() == 4 ||
        !std::all_of(name.begin() + 4, name.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) {
      continue;
    }
    std::string text;
    std::getline(std::ifstream(entry.path() / "cpulist"), text);
    Node node;
    node.id = std::stoi(name.substr(4));
    for (const int core : parse_list(text)) {
      if (std::binary_search(cores.begin(), cores.end(), core)) node.cores.push_back(core);
    }
    found += node.cores.size();
    if (!node.cores.empty()) nodes.push_back(std::move(node));
  }
  if (found != cores.size()) return {Node{0, cores}};
  std::sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) { return a.id < b.id; });
  return nodes;
}

std::vector<Node> allowed_nodes() { return nodes_of(affinity()); }

bool run_on(const std::vector<int>& cores) {
  if (cores.empty()) return false;
  const Mask mask(*std::max_element(cores.begin(), cores.end()) + 1);
  if (mask.set == nullptr) return false;
  for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), mask.bytes, mask.set);
  return sched_setaffinity(0, mask.bytes, mask.set) == 0;
}

}  // namespace protrain
