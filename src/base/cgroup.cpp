#include "base/cgroup.h"

#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace protrain {
namespace {

namespace fs = std::filesystem;

// First two words of a small file; absent file or words give empty strings.
std::pair<std::string, std::string> words(const fs::path& path) {
  std::pair<std::string, std::string> result;
  std::ifstream file(path);
  file >> result.first >> result.second;
  return result;
}

// "max", "-1" and nothing at all are no limit.
std::optional<double> number(const std::string& word) {
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (word.empty() || *end != '\0' || !(value > 0)) return std::nullopt;
  return value;
}

template <typename T>
void lower(std::optional<T>& limit, std::optional<T> candidate) {
  if (candidate && (!limit || *candidate < *limit)) limit = candidate;
}

// v1 says "unlimited" by a number near 2^63.
std::optional<Bytes> bytes(const std::string& word) {
  const auto value = number(word);
  if (!value || *value > 1e18) return std::nullopt;
  return static_cast<Bytes>(*value);
}

void read_v2(const fs::path& folder, CgroupLimits& limits) {
  const auto [quota, period] = words(folder / "cpu.max");
  if (const auto q = number(quota), p = number(period); q && p) lower<double>(limits.cores, *q / *p);
  lower(limits.memory, bytes(words(folder / "memory.max").first));
  lower(limits.memory, bytes(words(folder / "memory.high").first));  // beyond it a process crawls
}

void read_v1(const fs::path& folder, CgroupLimits& limits) {
  const auto quota = number(words(folder / "cpu.cfs_quota_us").first);
  const auto period = number(words(folder / "cpu.cfs_period_us").first);
  if (quota && period) lower<double>(limits.cores, *quota / *period);
  lower(limits.memory, bytes(words(folder / "memory.limit_in_bytes").first));
  // What ancestors allow that a container cannot see.
  std::ifstream statistics(folder / "memory.stat");
  for (std::string name, value; statistics >> name >> value;) {
    if (name == "hierarchical_memory_limit") lower(limits.memory, bytes(value));
  }
}

// The group's folder and all its ancestors up to the mount. Inside a container the path may be the host's and absent
// here; the mount's own files are then the container's.
std::vector<fs::path> ancestry(const fs::path& mount, const std::string& group) {
  std::vector<fs::path> folders{mount};
  fs::path folder = mount;
  for (const fs::path& part : fs::path(group).relative_path()) {
    if (part == "..") return {mount};
    folder /= part;
    folders.push_back(folder);
  }
  return folders;
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      for (const fs::path& folder : ancestry(mount, group)) read_v2(folder, limits);
      for (const fs::path& folder : ancestry(mount / "unified", group)) read_v2(folder, limits);  // beside v1
    } else {
      // Controllers mounted together have one folder, named by all of them, with links by the single names.
      for (const fs::path& folder : ancestry(mount / controllers, group)) read_v1(folder, limits);
    }
  }
  return limits;
}

Bytes physical_memory() {
  struct sysinfo info{};
  if (sysinfo(&info) != 0) return 0;
  return static_cast<Bytes>(info.totalram) * static_cast<Bytes>(info.mem_unit);
}

Bytes host_memory_limit() {
  Bytes limit = std::min(physical_memory(), cgroup_limits().memory.value_or(physical_memory()));
  std::int64_t mapped = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;  // pages
  std::ifstream("/proc/self/statm") >> mapped >> resident >> shared >> text >> library >> data;
  const auto lower_by = [&](int resource, std::int64_t counted) {
    struct rlimit bound{};
    if (getrlimit(resource, &bound) != 0 || bound.rlim_cur == RLIM_INFINITY) return;
    const auto unused = static_cast<Bytes>((counted - resident) * sysconf(_SC_PAGESIZE));
    limit = std::min(limit, std::max<Bytes>(0, static_cast<Bytes>(bound.rlim_cur) - unused));
  };
  lower_by(RLIMIT_AS, mapped);
  lower_by(RLIMIT_DATA, data);
  return limit;
}

}  // namespace protrain
