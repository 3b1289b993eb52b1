#include "memory/packing.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace protrain {
namespace {

// Sweeps the clock: at one time, what dies leaves before what is born comes.
Bytes largest_live_sum(std::span<const Allocation> allocations, const std::vector<Bytes>& aligned) {
  struct Change {
    std::int32_t time;
    Bytes bytes;
  };
  std::vector<Change> changes;
  changes.reserve(2 * allocations.size());
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    if (allocations[i].born == allocations[i].died) continue;
    changes.push_back({allocations[i].born, aligned[i]});
    changes.push_back({allocations[i].died, -aligned[i]});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.time != b.time ? a.time < b.time : a.bytes < b.bytes; });
  Bytes live = 0;
  Bytes most = 0;
  for (const Change& change : changes) {
    live += change.bytes;
    most = std::max(most, live);
  }
  return most;
}

using Order = std::vector<std::size_t>;

// Places allocations in the given order, each into the smallest gap between the ones already placed that live with it
// (best fit), else on top of them.
Packing place(std::span<const Allocation> allocations, const std::vector<Bytes>& aligned, const Order& order) {
  Packing packing;
  packing.offsets.assign(allocations.size(), 0);
  Order placed;  // by offset
  placed.reserve(allocations.size());
  for (const std::size_t i : order) {
    const Allocation& allocation = allocations[i];
    const Bytes bytes = aligned[i];
    if (bytes == 0 || allocation.born == allocation.died) continue;  // takes no room; offset 0
    Bytes top = 0;                                                   // end of the neighbours seen so far
    Bytes best = -1;
    Bytes best_gap = 0;
    for (const std::size_t j : placed) {
      if (allocations[j].died <= allocation.born || allocation.died <= allocations[j].born) continue;
      const Bytes gap = packing.offsets[j] - top;
      if (gap >= bytes && (best < 0 || gap < best_gap)) {
        best = top;
        best_gap = gap;
      }
      top = std::max(top, packing.offsets[j] + aligned[j]);
    }
    const Bytes offset = best >= 0 ? best : top;
    packing.offsets[i] = offset;
    packing.total = std::max(packing.total, offset + bytes);
    const auto above = std::upper_bound(placed.begin(), placed.end(), offset,
                                        [&](Bytes value, std::size_t j) { return value < packing.offsets[j]; });
    placed.insert(above, i);
  }
  return packing;
}

}  // namespace

Packing pack(std::span<const Allocation> allocations) {
  std::vector<Bytes> aligned;
  aligned.reserve(allocations.size());
  for (const Allocation& allocation : allocations) {
    PROTRAIN_CHECK(allocation.bytes >= 0 && allocation.born <= allocation.died, "{} bytes live from {} to {}",
                   allocation.bytes, allocation.born, allocation.died);
    aligned.push_back(round_up(allocation.bytes, kAlignment));
  }
  const Bytes bound = largest_live_sum(allocations, aligned);

  const auto lifetime = [&](std::size_t i) {
    return static_cast<std::int64_t>(allocations[i].died) - allocations[i].born;
  };
  const auto born = [&](std::size_t i) { return static_cast<std::int64_t>(allocations[i].born); };
  const auto area = [&](std::size_t i) { return static_cast<double>(aligned[i]) * static_cast<double>(lifetime(i)); };
  // No order wins always, each is cheap: try them until one reaches the bound, else keep the best. Ties go to the
  // index, so the result is a function of the input alone.
  Order order(allocations.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Packing best;
  const auto attempt = [&](auto less) {
    if (!best.offsets.empty() && best.total == bound) return;
    Order candidate = order;
    std::stable_sort(candidate.begin(), candidate.end(), less);
    Packing packing = place(allocations, aligned, candidate);
    if (best.offsets.empty() || packing.total < best.total) best = std::move(packing);
  };
  attempt([&](std::size_t a, std::size_t b) {
    return aligned[a] != aligned[b] ? aligned[a] > aligned[b] : lifetime(a) > lifetime(b);
  });
  attempt([&](std::size_t a, std::size_t b) {
    return lifetime(a) != lifetime(b) ? lifetime(a) > lifetime(b) : aligned[a] > aligned[b];
  });
  attempt([&](std::size_t a, std::size_t b) { return area(a) > area(b); });
  attempt(
      [&](std::size_t a, std::size_t b) { return born(a) != born(b) ? born(a) < born(b) : lifetime(a) > lifetime(b); });
  best.live_bound = bound;
  return best;
}

}  // namespace protrain
