#include "plan/activation.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "base/error.h"

namespace protrain {

namespace {

// In the order of Activation. A deque: rows stay where they are when more come.
std::deque<ActivationTraits>& rows() {
  static std::deque<ActivationTraits> rows = {
      {.name = "keep"},
      {.name = "keep_light", .light = true},
      {.name = "swap", .light = true, .offload_saved = true, .offload_input = true},
      {.name = "recompute", .recompute = true},
      {.name = "recompute_host", .recompute = true, .offload_input = true},
  };
  return rows;
}

}  // namespace

const ActivationTraits& traits(Activation mode) {
  const auto row = static_cast<std::size_t>(mode);
  PROTRAIN_CHECK(row < rows().size(), "activation mode {} has no row", row);
  return rows()[row];
}

Activation register_activation(ActivationTraits row) {
  std::deque<ActivationTraits>& all = rows();
  PROTRAIN_CHECK(!row.name.empty() && std::ranges::find(all, row.name, &ActivationTraits::name) == all.end(),
                 "activation mode \"{}\" is there already", row.name);
  PROTRAIN_CHECK(!row.recompute || !(row.offload_saved || row.after_forward || row.before_backward),
                 "activation mode \"{}\": a saved set that is made again does not outlive its forward", row.name);
  PROTRAIN_CHECK(all.size() <= std::numeric_limits<std::underlying_type_t<Activation>>::max(), "{} activation modes",
                 all.size());
  all.push_back(std::move(row));
  return static_cast<Activation>(all.size() - 1);
}

int activation_count() { return static_cast<int>(rows().size()); }

}  // namespace protrain
