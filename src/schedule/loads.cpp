// When weights, saved sets and inputs cross the link.
#include <algorithm>

#include "base/error.h"
#include "schedule/expansion.h"

namespace protrain {

namespace {

bool is_pending(const Expansion& expansion, Id chunk) {
  const auto& pending = expansion.step.pending;
  return std::binary_search(pending.begin(), pending.end(), chunk);
}

}  // namespace

std::vector<Transfer> plan_loads(const Expansion& expansion, const std::vector<Visit>& visits,
                                 std::vector<Id>& contents) {
  const Facts& facts = expansion.facts;
  for (Id& chunk : contents) {
    if (chunk >= 0 && is_pending(expansion, chunk)) chunk = -1;  // its weight is the one before the update
  }
  std::vector<std::int64_t> free(contents.size(), 0);   // by slot: the position from which it may be written
  std::vector<bool> homes(facts.chunks.size(), false);  // by chunk: not streamed, to be uploaded, not planned yet
  for (const Id chunk : expansion.step.pending) homes[chunk] = facts.slots.weight[chunk] < 0;
  std::vector<Transfer> loads;
  std::int64_t earliest = 0;  // the lane is in order: no load stands before one that is needed first
  const auto load = [&](Id chunk, std::int64_t position, std::int64_t need) {
    earliest = std::max(earliest, position);
    loads.push_back({earliest, need, Transfer::Kind::kLoad, chunk, -1, 0});
  };
  for (std::int64_t number = 0; number < static_cast<std::int64_t>(visits.size()); ++number) {
    if (!visits[number].present) continue;
    for (const ChunkUse& use : facts.uses[visits[number].block]) {
      const Id slot = facts.slots.weight[use.chunk];
      if (slot < 0) {
        if (homes[use.chunk]) load(use.chunk, 0, number);
        homes[use.chunk] = false;
        continue;
      }
      if (contents[slot] != use.chunk) {
        load(use.chunk, free[slot], number);
        contents[slot] = use.chunk;
      }
      free[slot] = number + 1;
    }
  }
  return loads;
}

std::vector<Transfer> plan_copies(const Expansion& expansion, const std::vector<Visit>& visits) {
  const Facts& facts = expansion.facts;
  const std::int64_t distance = facts.plan.offload_distance;
  std::vector<Transfer> copies;
  std::vector<std::vector<std::int64_t>> forward(facts.blocks);  // by block and micro-batch: its visit's number
  for (std::int64_t number = 0; number < static_cast<std::int64_t>(visits.size()); ++number) {
    const auto& [block, micro_batch, backward, present] = visits[number];
    const ActivationTraits& mode = facts.mode(block);
    if (!mode.offload_saved && !mode.offload_input) continue;
    auto& began = forward[block];
    if (began.size() <= static_cast<std::size_t>(micro_batch)) began.resize(micro_batch + 1, -1);
    if (!backward) {
      began[micro_batch] = number;
      continue;
    }
    if (!present) continue;
    // Near the turn there is no time in between: out and at once back.
    const std::int64_t out = std::min(began[micro_batch] + 1 + distance, number);
    const std::int64_t in = std::max(number - distance, out);
    copies.push_back({out, began[micro_batch], Transfer::Kind::kCopyOut, -1, block, micro_batch});
    copies.push_back({in, number, Transfer::Kind::kCopyIn, -1, block, micro_batch});
  }
  return copies;
}

void add_load(Expansion& expansion, Id chunk) {
  const Facts& facts = expansion.facts;
  if (is_pending(expansion, chunk) && !expansion.pending_updated[chunk]) add_host_update(expansion, chunk, true);
  const Bytes bytes = facts.chunks[chunk].elements * facts.element(Part::kWeight);
  expansion.copy(Lane::kH2d, chunk, expansion.state(chunk, Part::kWeight, false),
                 expansion.part(weight_region(facts.plan, facts.slots, chunk), 0, bytes, true),
                 fmt::format("load chunk {}", chunk));
}

}  // namespace protrain
