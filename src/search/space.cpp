#include "search/space.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "plan/validate.h"

namespace protrain {

namespace {

constexpr Bytes kUsualChunk = 64 * kMiB;
// More chunks a layer than that only lengthen the schedule.
constexpr int kMostChunksALayer = 4;
constexpr std::array kDistances = {2, 1, 4};

Bytes layer_weights(const Figures& figures) {
  Bytes most = 0;
  for (const BlockSpec& block : figures.spec.blocks) {
    if (block.kind != BlockKind::kLayer) continue;
    std::int64_t elements = 0;
    for (const Id id : block.parameters) elements += round_up(figures.spec.parameters[id].elements(), kAlignment / 2);
    most = std::max(most, elements * figures.element(Part::kWeight));
  }
  return most;
}

bool same_cuts(const ChunkSet& a, const ChunkSet& b) {
  return std::ranges::equal(a.chunks, b.chunks, {}, &Chunk::parameters, &Chunk::parameters);
}

int count_layers(const ModelSpec& spec) {
  return static_cast<int>(std::ranges::count(spec.blocks, BlockKind::kLayer, &BlockSpec::kind));
}

// Blocks from one swapped layer to the next so that a layer's way out hides behind the forwards between them.
int hiding_interval(const Figures& figures) {
  for (Id block = 0; block < figures.blocks; ++block) {
    if (figures.spec.blocks[block].kind != BlockKind::kLayer) continue;
    const ModeFigures& swap = figures.modes[block][static_cast<std::size_t>(Activation::kSwap)];
    const double out = figures.d2h(swap.copies, static_cast<double>(swap.copied));
    const double layers = swap.forward.steady > 0 ? out / swap.forward.steady : 1;
    return std::max(1, static_cast<int>(std::min(layers + 0.999, 1e6)));
  }
  return 1;
}

}  // namespace

SearchSpace SearchSpace::published() {
  SearchSpace space;
  space.chunk_a_layer = true;
  space.persistent_are_resident = true;
  space.gradient_slots = 2;
  space.offload_distance = 2;
  space.order = Order::kMicroBatch;
  space.n_keep_light = 0;
  space.n_recompute_host = 0;
  return space;
}

Space::Space(const Figures& figures_in, const SearchSpace& knobs_in)
    : figures(figures_in), knobs(knobs_in), layers(count_layers(figures.spec)) {
  const Bytes layer = std::max<Bytes>(layer_weights(figures), 1);
  std::vector<Bytes> candidates = {layer, layer / 2, 2 * layer, kUsualChunk};
  if (knobs.chunk_a_layer) candidates = {layer};
  if (knobs.chunk_bytes) candidates = {*knobs.chunk_bytes};
  for (const Bytes bytes : candidates) {
    auto set = std::make_unique<ChunkSet>(figures, std::max<Bytes>(bytes, 1));
    const bool known = std::ranges::any_of(sizes, [&](const auto& other) { return same_cuts(*other, *set); });
    const bool many = set->count() > kMostChunksALayer * std::max(layers, 1);
    if (sizes.empty() || (!known && !many)) sizes.push_back(std::move(set));
  }
  if (knobs.order) {
    orders = {*knobs.order};
  } else if (const std::int64_t cut = figures.shape.accumulation;
             cut > 1 && cut <= most_accumulation(figures.spec, Order::kLayer)) {
    orders = {Order::kMicroBatch, Order::kLayer};
  } else {
    orders = {Order::kMicroBatch};
  }
  distances.assign(kDistances.begin(), kDistances.end());
  if (knobs.offload_distance) distances = {*knobs.offload_distance};
  const auto ends = [&](const std::optional<UpdatePlace>& fixed, bool there) {
    if (knobs.place || !there) return std::vector{UpdatePlace::kResident};
    if (fixed) return std::vector{*fixed};
    return std::vector{UpdatePlace::kResident, UpdatePlace::kCpu};
  };
  embeddings = ends(knobs.embedding, sizes.front()->embedding >= 0);
  heads = ends(knobs.head, sizes.front()->head >= 0);
  swap_interval = knobs.swap_interval.value_or(hiding_interval(figures));
  if (count() == 0) refuse();
}

void Space::refuse() const {
  const auto count_of = [](const auto& set) { return set->count(); };
  const int most = count_of(*std::ranges::max_element(sizes, {}, count_of));
  if (const int asked = knobs.n_persist.value_or(0); !knobs.chunk_bytes && asked > most) {
    fail(ExitCode::kConfig,
         "plan: n_persist {}, must be 0 to {}: so many body chunks there are at most while chunk_bytes is not set",
         asked, most);
  }
  Point point;
  const int body = sizes.front()->count();
  point.order = orders.front();
  point.distance = distances.front();
  point.embedding = embeddings.front();
  point.head = heads.front();
  point.counts = {knobs.n_swap.value_or(0), knobs.n_keep_light.value_or(0), knobs.n_recompute.value_or(0),
                  knobs.n_recompute_host.value_or(0)};
  const int persist = knobs.n_persist.value_or(body);
  Plan plan = resident_plan(figures.spec, figures.shape, sizes.front()->chunk_bytes);
  plan.n_persist = persist;
  plan.order = point.order;
  plan.offload_distance = point.distance;
  plan.state_tier = knobs.state_tier;
  plan.activation = knobs.activation ? *knobs.activation : interleave(figures.spec, point.counts, swap_interval);
  if (knobs.place) plan.place = *knobs.place;
  const int resident = knobs.n_resident.value_or(0);
  for (int number = 0; !knobs.place && number < body; ++number) {
    if (number >= resident) plan.place[static_cast<std::size_t>(sizes.front()->body[number])] = UpdatePlace::kCpu;
  }
  if (resident > body || resident < 0) {
    fail(ExitCode::kConfig, "plan: n_resident {}, must be 0 to {}: so many body chunks does chunk_bytes {} make",
         resident, body, plan.chunk_bytes);
  }
  plan.n_buffer = knobs.n_buffer.value_or(body);
  plan.gradient_slots = knobs.gradient_slots.value_or(body);
  validate(figures.spec, sizes.front()->chunks, figures.shape, plan);
  if (!knobs.may_keep && !knobs.may_recompute) {
    fail(ExitCode::kConfig, "plan: layers may neither keep what backward needs nor run again");
  }
  fail(ExitCode::kConfig,
       "plan: n_swap {}, n_keep_light {}, n_recompute {}, n_recompute_host {} do not make up {} layers as recompute "
       "asks for",
       point.counts.swap, point.counts.keep_light, point.counts.recompute, point.counts.recompute_host, layers);
}

Choices Space::residents(int size) const {
  const int body = sizes[static_cast<std::size_t>(size)]->count();
  if (knobs.place)
    return {0, static_cast<int>(knobs.place->size()) == static_cast<int>(sizes.front()->chunks.size()) ? 0 : -1};
  if (knobs.n_resident) {
    const int fixed = *knobs.n_resident;
    return fixed >= 0 && fixed <= body ? Choices{fixed, fixed} : Choices{};
  }
  return {0, knobs.n_persist ? std::min(body, std::max(*knobs.n_persist, 0)) : body};
}

Choices Space::persists(const Point& point) const {
  const int body = chunks(point).count();
  const int least = knobs.place ? places(point).least_persist : point.resident;
  if (knobs.n_persist) {
    const int fixed = *knobs.n_persist;
    return fixed >= least && fixed <= body ? Choices{fixed, fixed} : Choices{};
  }
  if (knobs.persistent_are_resident) return {point.resident, point.resident};
  return {least, body};
}

Choices Space::buffers(const Point& point) const {
  const ChunkSet& set = chunks(point);
  const int fewest = set.fewest[static_cast<std::size_t>(point.slots.persist)];
  if (knobs.n_buffer) return *knobs.n_buffer >= fewest ? Choices{*knobs.n_buffer, *knobs.n_buffer} : Choices{};
  return {fewest, set.count() - point.slots.persist};
}

Choices Space::gradients(const Point& point) const {
  const PlaceSums& sums = places(point);
  if (knobs.gradient_slots) {
    return *knobs.gradient_slots >= sums.least_gradient_slots ? Choices{*knobs.gradient_slots, *knobs.gradient_slots}
                                                              : Choices{};
  }
  return {sums.least_gradient_slots, sums.hosts};
}

bool Space::allows(const ActivationCounts& counts) const {
  if (knobs.activation) return counts.swap + counts.keep_light + counts.recompute + counts.recompute_host == 0;
  const auto fits = [](const std::optional<int>& fixed, int value) {
    return value >= 0 && (!fixed || *fixed == value);
  };
  const int sum = counts.swap + counts.keep_light + counts.recompute + counts.recompute_host;
  if (!fits(knobs.n_swap, counts.swap) || !fits(knobs.n_keep_light, counts.keep_light) ||
      !fits(knobs.n_recompute, counts.recompute) || !fits(knobs.n_recompute_host, counts.recompute_host)) {
    return false;
  }
  const int again = counts.recompute + counts.recompute_host;
  return sum <= layers && (knobs.may_keep || again == layers) && (knobs.may_recompute || again == 0);
}

bool Space::offloads(const ActivationCounts& counts) const {
  if (!knobs.activation) return counts.swap + counts.recompute_host > 0;
  return std::ranges::any_of(*knobs.activation, [](Activation mode) { return traits(mode).offload_input; });
}

// All counts that the space allows.
void Space::add_counts(std::vector<ActivationCounts>& result) const {
  if (knobs.activation) {
    result.push_back({});
    return;
  }
  const auto range = [this](const std::optional<int>& fixed, bool may) {
    if (fixed) return std::pair(*fixed, *fixed);
    return std::pair(0, may ? layers : 0);
  };
  const auto [swap_least, swap_most] = range(knobs.n_swap, knobs.may_keep);
  const auto [light_least, light_most] = range(knobs.n_keep_light, knobs.may_keep);
  const auto [again_least, again_most] = range(knobs.n_recompute, knobs.may_recompute);
  const auto [host_least, host_most] = range(knobs.n_recompute_host, knobs.may_recompute);
  for (int swap = swap_least; swap <= std::min(swap_most, layers); ++swap) {
    for (int light = light_least; light <= std::min(light_most, layers - swap); ++light) {
      for (int again = again_least; again <= std::min(again_most, layers - swap - light); ++again) {
        for (int host = host_least; host <= std::min(host_most, layers - swap - light - again); ++host) {
          const ActivationCounts counts = {swap, light, again, host};
          if (allows(counts)) result.push_back(counts);
        }
      }
    }
  }
}

// Choices of modes times those of the distance.
double Space::count_modes() const {
  const auto distances_of = static_cast<double>(distances.size());
  if (knobs.activation) return offloads({}) ? distances_of : 1;
  // Layers spread over the modes that are free, with and without those that leave the device.
  const auto ways = [this](bool away) {
    int rest = layers;
    int free = knobs.may_keep ? 1 : 0;
    const auto take = [&](const std::optional<int>& fixed, bool may, bool leaves) {
      if (fixed && (*fixed < 0 || (*fixed > 0 && (!may || (leaves && !away))))) return false;
      rest -= fixed.value_or(0);
      free += !fixed && may && (away || !leaves) ? 1 : 0;
      return true;
    };
    if (!take(knobs.n_swap, knobs.may_keep, true) || !take(knobs.n_keep_light, knobs.may_keep, false) ||
        !take(knobs.n_recompute, knobs.may_recompute, false) ||
        !take(knobs.n_recompute_host, knobs.may_recompute, true) || rest < 0) {
      return 0.0;
    }
    if (free == 0) return rest == 0 ? 1.0 : 0.0;
    double combinations = 1;
    for (int i = 1; i < free; ++i) combinations = combinations * (rest + i) / i;
    return combinations;
  };
  const double still = ways(false);
  return still + (ways(true) - still) * distances_of;
}

double Space::count() const {
  double chunks_and_slots = 0;
  for (int size = 0; size < static_cast<int>(sizes.size()); ++size) {
    const Choices resident = residents(size);
    for (int r = resident.least; r <= resident.most; ++r) {
      Point point;
      point.size = size;
      point.order = orders.front();
      point.resident = r;
      const double gradient = gradients(point).count();
      const Choices persist = persists(point);
      for (int p = persist.least; p <= persist.most; ++p) {
        point.slots.persist = p;
        chunks_and_slots += gradient * buffers(point).count();
      }
    }
  }
  return chunks_and_slots * count_modes() * static_cast<double>(orders.size() * embeddings.size() * heads.size());
}

std::vector<Point> Space::all() const {
  std::vector<ActivationCounts> counts;
  add_counts(counts);
  std::vector<Point> result;
  Point point;
  const auto slots = [&] {
    const Choices persist = persists(point);
    for (point.slots.persist = persist.least; point.slots.persist <= persist.most; ++point.slots.persist) {
      const Choices buffer = buffers(point);
      for (point.slots.buffer = buffer.least; point.slots.buffer <= buffer.most; ++point.slots.buffer) {
        const Choices gradient = gradients(point);
        for (point.slots.gradient = gradient.least; point.slots.gradient <= gradient.most; ++point.slots.gradient) {
          result.push_back(point);
        }
      }
    }
  };
  const auto places_of = [&] {
    const Choices resident = residents(point.size);
    for (const UpdatePlace embedding : embeddings) {
      for (const UpdatePlace head : heads) {
        point.embedding = embedding;
        point.head = head;
        for (point.resident = resident.least; point.resident <= resident.most; ++point.resident) slots();
      }
    }
  };
  for (const ActivationCounts& one : counts) {
    point.counts = one;
    for (const int distance : offloads(one) ? distances : std::vector{distances.front()}) {
      point.distance = distance;
      for (const Order order : orders) {
        point.order = order;
        for (point.size = 0; point.size < static_cast<int>(sizes.size()); ++point.size) places_of();
      }
    }
  }
  return result;
}

const PlaceSums& Space::places(const Point& point) const {
  auto& found = places_[{point.size, point.order, point.resident, point.embedding, point.head}];
  if (found) return *found;
  const ChunkSet& set = chunks(point);
  std::vector<UpdatePlace> place;
  if (knobs.place) {
    place = *knobs.place;
  } else {
    for (std::size_t chunk = 0; chunk < set.chunks.size(); ++chunk) {
      const UpdatePlace body = set.of[chunk].number < point.resident ? UpdatePlace::kResident : UpdatePlace::kCpu;
      switch (set.chunks[chunk].kind) {
        case BlockKind::kEmbedding: place.push_back(point.embedding); break;
        case BlockKind::kHead: place.push_back(point.head); break;
        case BlockKind::kLayer: place.push_back(body); break;
      }
    }
  }
  found = std::make_unique<PlaceSums>(set, std::move(place), point.order, knobs.state_tier);
  return *found;
}

const ActivationSums& Space::activations(const Point& point) const {
  const auto& [swap, light, again, host] = point.counts;
  auto& found = activations_[{point.order, point.distance, swap, light, again, host}];
  if (found) return *found;
  std::vector<Activation> modes =
      knobs.activation ? *knobs.activation : interleave(figures.spec, point.counts, swap_interval);
  found = std::make_unique<ActivationSums>(figures, std::move(modes), point.order, point.distance);
  return *found;
}

Plan Space::plan(const Point& point) const {
  Plan plan;
  plan.chunk_bytes = chunks(point).chunk_bytes;
  plan.n_persist = point.slots.persist;
  plan.n_buffer = point.slots.buffer;
  plan.gradient_slots = point.slots.gradient;
  plan.offload_distance = point.distance;
  plan.order = point.order;
  plan.activation = activations(point).modes;
  plan.place = places(point).place;
  plan.state_tier = knobs.state_tier;
  return plan;
}

MemoryNeed Space::need(const Point& point) const {
  const MemoryBound bound = memory_bound(chunks(point), places(point), activations(point), point.slots);
  MemoryNeed need;
  need.device = bound.device;
  need.pinned = bound.pinned;
  need.pageable = bound.pageable;
  return need;
}

TimeBound Space::time(const Point& point) const {
  return time_bound(chunks(point), places(point), activations(point), point.order, point.slots);
}

double Space::host_share(const Point& point) const {
  const PlaceSums& sums = places(point);
  std::int64_t all = 0;
  for (const Chunk& chunk : chunks(point).chunks) all += chunk.elements;
  return static_cast<double>(sums.host_before.back() + sums.end_elements) / static_cast<double>(all);
}

std::optional<Point> Space::simplest() const {
  Point point;
  point.size = static_cast<int>(sizes.size()) - 1;
  point.order = orders.front();
  point.distance = distances.front();
  point.embedding = embeddings.front();
  point.head = heads.front();
  point.resident = residents(point.size).most;
  if (!allows(point.counts) || residents(point.size).empty()) return std::nullopt;
  const Choices persist = persists(point);
  if (persist.empty()) return std::nullopt;
  point.slots.persist = persist.most;
  const Choices buffer = buffers(point), gradient = gradients(point);
  if (buffer.empty() || gradient.empty()) return std::nullopt;
  point.slots.buffer = buffer.least;
  point.slots.gradient = gradient.least;
  return point;
}

}  // namespace protrain
