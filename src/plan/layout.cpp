#include "plan/layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace protrain {

namespace {

constexpr std::size_t kTiers = 4;

}  // namespace

const Layout::Entry* find_entry(const Layout& layout, Region region, Id index) {
  const auto found = std::lower_bound(layout.entries.begin(), layout.entries.end(), std::pair(region, index),
                                      [](const Layout::Entry& entry, const std::pair<Region, Id>& wanted) {
                                        return std::pair(entry.region, entry.index) < wanted;
                                      });
  if (found == layout.entries.end() || found->region != region || found->index != index) return nullptr;
  return &*found;
}

Range Layout::find(Region region, Id index) const {
  const Entry* entry = find_entry(*this, region, index);
  PROTRAIN_CHECK(entry != nullptr, "the layout has no {} {}", region_name(region), index);
  return entry->range;
}

bool Layout::contains(Region region, Id index) const { return find_entry(*this, region, index) != nullptr; }

Bytes Layout::bytes(Tier tier) const {
  Bytes most = 0;
  for (const Entry& entry : entries) {
    if (entry.range.tier == tier) most = std::max(most, entry.range.offset + entry.range.bytes);
  }
  return most;
}

void assign_addresses(Layout& layout, std::vector<std::vector<Interval>> lives, PackEffort effort) {
  PROTRAIN_CHECK(lives.size() == layout.entries.size(), "{} lives of {} regions", lives.size(), layout.entries.size());
  std::array<Bytes, kTiers> end{};
  std::array<std::vector<std::size_t>, kTiers> lent;  // entries
  std::array<std::vector<Allocation>, kTiers> allocations;
  std::vector<bool> used;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    auto& [region, index, range, whole_run, at_peak] = layout.entries[i];
    const auto tier = static_cast<std::size_t>(range.tier);
    used.push_back(whole_run || !lives[i].empty());
    at_peak = whole_run;
    if (whole_run) {
      range.offset = end[tier];
      end[tier] += round_up(range.bytes, kAlignment);
    } else if (used.back()) {
      lent[tier].push_back(i);
      allocations[tier].push_back({range.bytes, std::move(lives[i])});
    }
  }
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    const Packing packing = pack(allocations[tier], effort);
    for (std::size_t i = 0; i < lent[tier].size(); ++i) {
      Layout::Entry& entry = layout.entries[lent[tier][i]];
      entry.range.offset = end[tier] + packing.offsets[i];
      entry.at_peak = std::ranges::any_of(allocations[tier][i].lives, [&](const Interval& life) {
        return life.born <= packing.fullest && packing.fullest < life.died;
      });
    }
    if (static_cast<Tier>(tier) == Tier::kDevice) layout.live_bound = end[tier] + packing.live_bound;
  }
  std::vector<Layout::Entry> kept;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) kept.push_back(layout.entries[i]);
  }
  layout.entries = std::move(kept);
}

Layout parts_layout(const std::vector<Chunk>& chunks, DType compute, std::span<const Part> parts) {
  Layout layout;
  Bytes end = 0;
  for (Id chunk = 0; chunk < static_cast<Id>(chunks.size()); ++chunk) {
    for (int i = 0; i < kParts; ++i) {
      const auto part = static_cast<Part>(i);
      const bool only_bf16 = part == Part::kResidual || part == Part::kAccumulator;
      if (std::ranges::find(parts, part) == parts.end() || (only_bf16 && compute == DType::kF32)) continue;
      const Bytes bytes = chunks[static_cast<std::size_t>(chunk)].elements * size_of(part_dtype(part, compute));
      layout.entries.push_back({Region::kState, chunk * kParts + i, {Tier::kDevice, end, bytes}, true, true});
      end += round_up(bytes, kAlignment);
    }
  }
  return layout;
}

}  // namespace protrain
