#include "search/chunk_set.h"

#include <algorithm>

#include "base/error.h"

namespace protrain {

ChunkSet::ChunkSet(const Figures& figures_in, Bytes bytes)
    : figures(figures_in),
      chunk_bytes(bytes),
      chunks(make_chunks(figures.spec, bytes, figures.shape.compute)),
      of(chunks.size()) {
  before.push_back(0);
  for (Id chunk = 0; chunk < static_cast<Id>(chunks.size()); ++chunk) {
    switch (chunks[chunk].kind) {
      case BlockKind::kEmbedding: embedding = chunk; break;
      case BlockKind::kHead: head = chunk; break;
      case BlockKind::kLayer:
        of[chunk].number = count();
        body.push_back(chunk);
        before.push_back(before.back() + chunks[chunk].elements);
        break;
    }
    of[chunk].sums = accumulates(figures.spec, figures.shape, chunks[chunk].parameters.front());
  }
  const auto uses = chunk_uses(figures.spec, chunks);
  for (Id block = 0; block < figures.blocks; ++block) {
    std::pair<int, int> range = {0, -1};
    for (const ChunkUse& use : uses[block]) {
      Of& one = of[use.chunk];
      if (one.first_block < 0) one.first_block = block;
      one.last_block = block;
      if (one.number < 0) continue;
      if (range.second < range.first) range.first = one.number;
      range.second = one.number;
    }
    numbers.push_back(range);
  }
  for (std::size_t block = 1; block < numbers.size(); ++block) {
    const auto& [low, high] = numbers[block - 1];
    const auto& [next_low, next_high] = numbers[block];
    if (high < low || next_high < next_low) continue;
    ahead = std::max({ahead, next_high - std::max(high + 1, next_low) + 1, std::min(high, next_low - 1) - low + 1});
  }
  for (int first = 0; first <= count(); ++first) {
    int most = 0;
    for (const auto& [low, high] : numbers) most = std::max(most, high - std::max(low, first) + 1);
    fewest.push_back(most);
  }
}

std::int64_t ChunkSet::slot_elements(int first, int slots) const {
  const int rotating = count() - first;
  slots = std::min(slots, rotating);
  if (slots <= 0) return 0;
  if (slots == rotating) return before[count()] - before[first];
  const auto [found, fresh] = slot_elements_.try_emplace({first, slots}, 0);
  if (!fresh) return found->second;
  for (int slot = 0; slot < slots; ++slot) {
    std::int64_t largest = 0;
    for (int number = first + slot; number < count(); number += slots) {
      largest = std::max(largest, chunks[body[number]].elements);
    }
    found->second += largest;
  }
  return found->second;
}

namespace {

// Of the kCpu chunks in execution order so many have their arrival looked at, evenly spread, beside the ends'.
constexpr int kArrivals = 5;

// Device bytes of gradients, by the visits at which they begin and end.
class Lent {
 public:
  Lent(const ChunkSet& set, PlaceSums& sums, Order order)
      : set_(set),
        sums_(sums),
        waits_(set.figures.shape.accumulation > 1 && order == Order::kMicroBatch),
        change_(static_cast<std::size_t>(set.figures.blocks) + 1, 0) {}

  void add(Id chunk) {
    const auto& [number, first_block, last_block, rounds] = set_.of[chunk];
    const std::int64_t elements = set_.chunks[chunk].elements;
    const Bytes sum = elements * (rounds ? size_of(DType::kF32) : set_.figures.element(Part::kGradient));
    const Bytes wire = elements * set_.figures.element(Part::kGradient);
    const bool host = sums_.place[chunk] == UpdatePlace::kCpu;
    // A sum that micro-batches add to lives since the first of them.
    const Id begun = waits_ ? set_.figures.blocks - 1 : last_block;
    if (!host) {
      if (!rounds) {
        live(begun, 0, wire);  // until the update, after backward
      } else {
        live(begun, std::max<Id>(first_block - 1, 0), sum);  // rounded after the next call
        live(first_block - 2, 0, wire);
      }
    } else if (rounds) {
      live(begun, std::max<Id>(first_block - 1, 0), sum);
    } else if (number < 0 || waits_) {
      live(begun, first_block, wire);  // leaves at once; other body chunks' gradients lie in slots
    }
    const bool last = first_block == 0;
    const bool slot = number >= 0 && host && (rounds || !waits_);
    sums_.lent_at_end += host ? (last && !slot ? wire : 0) : wire;
    if (last && rounds) sums_.lent_at_end += sum;
    if (waits_) sums_.lent_in_forward += sum;
  }

  void finish() {
    Bytes now = 0;
    sums_.lent.assign(static_cast<std::size_t>(set_.figures.blocks), 0);
    for (Id block = set_.figures.blocks - 1; block >= 0; --block) {
      now += change_[block + 1];
      sums_.lent[block] = now;
    }
  }

 private:
  // At the backwards of the blocks from `first` down to `last`.
  void live(Id first, Id last, Bytes bytes) {
    if (first < last) return;
    change_[first + 1] += bytes;
    change_[last] -= bytes;
  }

  const ChunkSet& set_;
  PlaceSums& sums_;
  const bool waits_;
  std::vector<Bytes> change_;  // by block + 1, going down
};

}  // namespace

PlaceSums::PlaceSums(const ChunkSet& set, std::vector<UpdatePlace> place_in, Order order, Tier state_tier)
    : place(std::move(place_in)) {
  const Figures& figures = set.figures;
  const Bytes weight = figures.element(Part::kWeight);
  Bytes states = figures.element(Part::kM) + figures.element(Part::kV);
  if (figures.shape.compute != DType::kF32) states += figures.element(Part::kResidual);
  Lent gradients(set, *this, order);
  // A sum in fp32 that micro-batches add to leaves from where it is.
  leaves_by_slots = figures.shape.compute == DType::kBf16 || figures.shape.accumulation == 1 || order == Order::kLayer;
  host_before.push_back(0);
  hosts_before.push_back(0);
  double updated = 0;  // seconds of the updates on the host so far
  std::vector<Arrival> all;
  std::vector<std::size_t> of_ends;
  for (Id chunk = 0; chunk < static_cast<Id>(set.chunks.size()); ++chunk) {
    const std::int64_t elements = set.chunks[chunk].elements;
    const auto units = static_cast<double>(elements);
    const bool host = place[chunk] == UpdatePlace::kCpu;
    const int number = set.of[chunk].number;
    gradients.add(chunk);
    const double norm = figures.rates.norm.of(units) + (set.of[chunk].sums ? figures.rates.round.of(units) : 0);
    norms += norm;
    const bool last = chunk == set.embedding;
    if (last) last_norm = norm;
    if (host) {
      const auto bytes = static_cast<double>(elements * weight);
      const double out = figures.d2h(1, static_cast<double>(elements * figures.element(Part::kGradient)));
      const double back = figures.h2d(1, bytes);
      const double update = figures.rates.cpu_update.of(units);
      any_host = true;
      pinned += elements * (weight + figures.element(Part::kGradient));
      (state_tier == Tier::kPinned ? pinned : pageable) += elements * states;
      updates_on_host += update;
      gradients_out += out;
      loads += back;
      load_bytes += bytes;
      ++load_count;
      updated += update;
      if (number < 0) of_ends.push_back(all.size());
      all.push_back({set.of[chunk].first_block, std::max(updated + back, figures.upload + loads)});
      if (last) last_on_host = out + update + back;
    } else {
      resident_device += elements * (weight + states);
      updates_on_device += figures.rates.gpu_update.of(units);
    }
    if (number < 0) {
      if (host) end_elements += elements;
      if (host) ++ends;
      continue;
    }
    if (!host) least_persist = number + 1;
    hosts += host ? 1 : 0;
    host_before.push_back(host_before.back() + (host ? elements : 0));
    hosts_before.push_back(hosts);
  }
  gradients.finish();
  for (const auto& [low, high] : set.numbers) {
    if (high >= low) least_gradient_slots = std::max(least_gradient_slots, hosts_before[high + 1] - hosts_before[low]);
  }
  for (const std::size_t i : of_ends) arrivals.push_back(all[i]);
  for (int i = 0; i < kArrivals && !all.empty(); ++i) {
    arrivals.push_back(all[(all.size() - 1) * static_cast<std::size_t>(i) / (kArrivals - 1)]);
  }
}

std::int64_t PlaceSums::gradient_slot_elements(const ChunkSet& set, int slots) const {
  if (!leaves_by_slots) return 0;
  if (slots >= hosts) return host_before.back();
  if (least_persist == set.count() - hosts) return set.slot_elements(least_persist, slots);  // the last ones
  std::int64_t elements = 0;
  for (int slot = 0; slot < slots; ++slot) {
    std::int64_t largest = 0;
    int number = 0;
    for (const Id chunk : set.body) {
      if (place[chunk] != UpdatePlace::kCpu) continue;
      if (number++ % slots == slot) largest = std::max(largest, set.chunks[chunk].elements);
    }
    elements += largest;
  }
  return elements;
}

}  // namespace protrain
