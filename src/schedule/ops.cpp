// Lanes and kinds of tasks by name; more kinds than those built in.
#include <algorithm>
#include <deque>
#include <utility>

#include "base/error.h"
#include "schedule/schedule.h"

namespace protrain {

namespace {

static_assert(static_cast<int>(Op::kUpdate) + 1 == kOps && kOps <= kMostOps);

// In the order of Op. A deque: names stay where they are when more come.
std::deque<std::string>& names() {
  static std::deque<std::string> names = {"run block", "copy", "round", "norm", "finish norm", "update"};
  return names;
}

}  // namespace

std::string_view lane_name(Lane lane) {
  switch (lane) {
    case Lane::kCompute: return "compute";
    case Lane::kH2d: return "h2d";
    case Lane::kD2h: return "d2h";
    case Lane::kCpuUpdate: return "cpu_update";
    case Lane::kGpuUpdate: return "gpu_update";
    case Lane::kDiskRead: return "disk_read";
    case Lane::kDiskWrite: return "disk_write";
  }
  return "?";
}

std::string_view op_name(Op op) {
  const auto row = static_cast<std::size_t>(op);
  return row < names().size() ? std::string_view(names()[row]) : "?";
}

Op register_op(std::string name) {
  std::deque<std::string>& all = names();
  PROTRAIN_CHECK(!name.empty() && std::ranges::find(all, name) == all.end(), "task kind \"{}\" is there already", name);
  PROTRAIN_CHECK(all.size() < kMostOps, "task kind \"{}\": there is room for {}", name, kMostOps);
  all.push_back(std::move(name));
  return static_cast<Op>(all.size() - 1);
}

}  // namespace protrain
