#include <algorithm>

#include "base/error.h"
#include "plan/plan.h"

namespace protrain {

namespace {

const Layout::Entry* search(const Layout& layout, Region region, Id index) {
  const auto found = std::lower_bound(layout.entries.begin(), layout.entries.end(), std::pair(region, index),
                                      [](const Layout::Entry& entry, const std::pair<Region, Id>& wanted) {
                                        return std::pair(entry.region, entry.index) < wanted;
                                      });
  if (found == layout.entries.end() || found->region != region || found->index != index) return nullptr;
  return &*found;
}

}  // namespace

Range Layout::find(Region region, Id index) const {
  const Entry* entry = search(*this, region, index);
  PROTRAIN_CHECK(entry != nullptr, "the layout has no {} {}", region_name(region), index);
  return entry->range;
}

bool Layout::contains(Region region, Id index) const { return search(*this, region, index) != nullptr; }

Bytes Layout::bytes(Tier tier) const {
  Bytes most = 0;
  for (const Entry& entry : entries) {
    if (entry.range.tier == tier) most = std::max(most, entry.range.offset + entry.range.bytes);
  }
  return most;
}

}  // namespace protrain
