#include "search/candidates.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

namespace protrain {

namespace {

constexpr int kModeSteps = 8;      // of the grid, from all layers in one mode to all in the next
constexpr int kResidentSteps = 5;  // of the grid

// The modes of a space that layers may be moved between, most bytes on the device first.
enum class Mode : std::uint8_t { kKeep, kLight, kAgain, kHost, kSwap };

int* count_of(ActivationCounts& counts, Mode mode) {
  switch (mode) {
    case Mode::kKeep: return nullptr;  // the rest
    case Mode::kLight: return &counts.keep_light;
    case Mode::kAgain: return &counts.recompute;
    case Mode::kHost: return &counts.recompute_host;
    case Mode::kSwap: return &counts.swap;
  }
  return nullptr;
}

std::vector<Mode> free_modes(const SearchSpace& knobs, bool with_swap) {
  std::vector<Mode> modes;
  if (knobs.activation) return modes;
  if (knobs.may_keep) modes.push_back(Mode::kKeep);
  if (knobs.may_keep && !knobs.n_keep_light) modes.push_back(Mode::kLight);
  if (knobs.may_recompute && !knobs.n_recompute) modes.push_back(Mode::kAgain);
  if (knobs.may_recompute && !knobs.n_recompute_host) modes.push_back(Mode::kHost);
  if (with_swap && knobs.may_keep && !knobs.n_swap) modes.push_back(Mode::kSwap);
  return modes;
}

int in_mode(const ActivationCounts& counts, Mode mode, int layers) {
  ActivationCounts copy = counts;
  if (const int* count = count_of(copy, mode)) return *count;
  return layers - counts.swap - counts.keep_light - counts.recompute - counts.recompute_host;
}

ActivationCounts moved(ActivationCounts counts, Mode from, Mode to, int layers) {
  if (int* count = count_of(counts, from)) *count -= layers;
  if (int* count = count_of(counts, to)) *count += layers;
  return counts;
}

auto key(const ActivationCounts& counts) {
  return std::tuple(counts.swap, counts.keep_light, counts.recompute, counts.recompute_host);
}

void append_once(std::vector<ActivationCounts>& list, const ActivationCounts& counts) {
  if (std::ranges::none_of(list, [&](const auto& one) { return key(one) == key(counts); })) list.push_back(counts);
}

}  // namespace

Candidates::Candidates(const Space& space, const MemoryLimits& limits) : space_(space), limits_(limits) {}

Kind Candidates::kind_of(const Point& point) const {
  if (space_.knobs.activation) return {point.order, 0, false};
  Mode most = Mode::kKeep;
  for (const Mode mode : {Mode::kLight, Mode::kAgain, Mode::kHost, Mode::kSwap}) {
    if (in_mode(point.counts, mode, space_.layers) > in_mode(point.counts, most, space_.layers)) most = mode;
  }
  return {point.order, static_cast<int>(most), point.counts.swap > 0};
}

Candidate Candidates::bounded(const Point& point) {
  ++count_;
  return {point, space_.time(point)};
}

Shortfall Candidates::missing(const Point& point, Bytes margin) {
  MemoryNeed need = space_.need(point);
  need.device += margin;
  return shortfall(need, limits_);
}

Bytes Candidates::host_left(const Point& point) const {
  const PlaceSums& places = space_.places(point);
  return limits_.host - limits_.process - space_.figures.fixed_pinned - places.pinned -
         space_.activations(point).pinned - places.pageable;
}

Bytes Candidates::room(const Point& point, Bytes margin) const {
  const PlaceSums& places = space_.places(point);
  const ActivationSums& activations = space_.activations(point);
  const Bytes host = host_left(point);
  if (host < 0) return -1;
  const Bytes device = limits_.device_is_host ? std::min(limits_.device, host) : limits_.device;
  return device - margin - device_without_body(space_.chunks(point), places, activations, point.slots.gradient);
}

std::optional<Point> Candidates::fit(Point point, More more, Bytes margin) {
  const ChunkSet& set = space_.chunks(point);
  const PlaceSums& places = space_.places(point);
  const Choices gradients = space_.gradients(point);
  const Choices persists = space_.persists(point);
  if (gradients.empty() || persists.empty()) return std::nullopt;
  point.slots.gradient = gradients.clamp(places.least_gradient_slots + more.gradients);
  const Bytes free = room(point, margin);
  const auto fits = [&](int persist) {
    point.slots.persist = persist;
    const Choices buffers = space_.buffers(point);
    if (buffers.empty()) return false;
    point.slots.buffer = buffers.clamp(set.fewest[static_cast<std::size_t>(persist)] + more.buffers);
    return body_weights(set, places, persist, point.slots.buffer) <= free;
  };
  int fitting = persists.least;
  if (space_.knobs.n_buffer) {
    // Slots that are fixed can be too few; with more persistent chunks they may do.
    while (fitting < persists.most && set.fewest[static_cast<std::size_t>(fitting)] > *space_.knobs.n_buffer) ++fitting;
  }
  if (!fits(fitting)) return std::nullopt;
  int most = persists.most + 1;
  while (most - fitting > 1) {
    const int middle = fitting + (most - fitting) / 2;
    (fits(middle) ? fitting : most) = middle;
  }
  fits(fitting);
  return point;
}

std::optional<Point> Candidates::fit_buffers(Point point, More more, Bytes margin) {
  const Choices gradients = space_.gradients(point);
  const Choices persists = space_.persists(point);
  if (gradients.empty() || persists.empty()) return std::nullopt;
  const ChunkSet& set = space_.chunks(point);
  const PlaceSums& places = space_.places(point);
  point.slots.gradient = gradients.clamp(places.least_gradient_slots + more.gradients);
  point.slots.persist = persists.least;
  const Choices buffers = space_.buffers(point);
  const Bytes free = room(point, margin);
  if (buffers.empty() || body_weights(set, places, persists.least, buffers.least) > free) return std::nullopt;
  int fitting = buffers.least;
  int most = buffers.most + 1;
  while (most - fitting > 1) {
    const int middle = fitting + (most - fitting) / 2;
    (body_weights(set, places, persists.least, middle) <= free ? fitting : most) = middle;
  }
  point.slots.buffer = fitting;
  return point;
}

std::optional<Point> Candidates::fit_residents(Point point, More more, Bytes margin) {
  const Choices residents = space_.residents(point.size);
  std::optional<Point> best;
  int fitting = residents.least - 1;
  int most = residents.most + 1;
  while (most - fitting > 1) {
    const int middle = fitting + (most - fitting) / 2;
    point.resident = middle;
    std::optional<Point> fitted = fit(point, more, margin);
    // Fewer on the device means more on the host: where that lacks, more residents are what is wanted.
    const bool host_lacks = !fitted && room(point, margin) == -1;
    if (fitted) best = fitted;
    (fitted || host_lacks ? fitting : most) = middle;
  }
  return best;
}

std::optional<Point> Candidates::shrink(const Point& point, Bytes margin) {
  const ChunkSet& set = space_.chunks(point);
  const More more = {std::max(0, point.slots.buffer - set.fewest[static_cast<std::size_t>(point.slots.persist)]),
                     std::max(0, point.slots.gradient - space_.places(point).least_gradient_slots)};
  if (more.buffers > 4) {
    if (auto fewer = fit_buffers(point, more, margin)) return fewer;
  }
  for (const More& slots : {more, kFewest}) {
    if (auto fewer = fit(point, slots, margin)) {
      fewer->slots.persist = std::min(fewer->slots.persist, point.slots.persist);
      const Choices buffers = space_.buffers(*fewer);
      if (!buffers.empty()) {
        fewer->slots.buffer = buffers.clamp(fewer->slots.buffer);
        return fewer;
      }
    }
    if (auto fewer = fit_residents(point, slots, margin)) return fewer;
  }
  return std::nullopt;
}

std::vector<ActivationCounts> Candidates::coarse_modes() const {
  const SearchSpace& knobs = space_.knobs;
  if (knobs.activation) return {{}};
  std::vector<ActivationCounts> result;
  std::vector<int> swaps = {knobs.n_swap.value_or(0)};
  if (!knobs.n_swap && knobs.may_keep && space_.layers > 0) {
    // So many as the way out hides behind the forwards of all layers.
    const ActivationSums none(space_.figures, std::vector(space_.figures.spec.blocks.size(), Activation::kKeepLight),
                              Order::kMicroBatch, 1);
    const ActivationSums all(space_.figures, std::vector(space_.figures.spec.blocks.size(), Activation::kSwap),
                             Order::kMicroBatch, 1);
    const double out = space_.figures.d2h(all.copies, all.copied);
    const double share = out > 0 ? std::min(1.0, none.forward.steady / out) : 1;
    const int hidden = static_cast<int>(share * space_.layers);
    swaps = {0, hidden / 2, hidden, std::min(space_.layers, 2 * hidden), space_.layers};
  }
  const std::vector<Mode> modes = free_modes(knobs, false);
  for (const int swap : swaps) {
    ActivationCounts base = {swap, knobs.n_keep_light.value_or(0), knobs.n_recompute.value_or(0),
                             knobs.n_recompute_host.value_or(0)};
    const int rest = space_.layers - base.swap - base.keep_light - base.recompute - base.recompute_host;
    if (rest < 0) continue;
    for (std::size_t from = 0; from < modes.size(); ++from) {
      // To the next mode, and past the light one.
      const std::size_t last = modes[from] == Mode::kKeep ? from + 2 : from + 1;
      for (std::size_t to = from; to <= std::min(last, modes.size() - 1); ++to) {
        for (int step = 0; step <= kModeSteps; ++step) {
          const ActivationCounts all = moved(base, Mode::kKeep, modes[from], rest);
          const ActivationCounts counts = moved(all, modes[from], modes[to], rest * step / kModeSteps);
          if (space_.allows(counts)) append_once(result, counts);
        }
      }
    }
    if (space_.allows(base)) append_once(result, base);
  }
  return result;
}

std::vector<int> Candidates::coarse_residents(int size) const {
  const Choices range = space_.residents(size);
  std::vector<int> result;
  if (range.empty()) return result;
  for (int step = 0; step <= kResidentSteps; ++step) {
    const int value = range.least + (range.most - range.least) * step / kResidentSteps;
    if (result.empty() || result.back() != value) result.push_back(value);
  }
  return result;
}

std::vector<Candidate> Candidates::grid() {
  std::vector<Candidate> result;
  const std::vector<ActivationCounts> modes = coarse_modes();
  Point point;
  point.distance = space_.distances.front();
  const auto add = [&](const std::optional<Point>& fitted) {
    if (fitted) result.push_back(bounded(*fitted));
  };
  const bool free_persist = !space_.knobs.n_persist && !space_.knobs.persistent_are_resident;
  for (point.size = 0; point.size < static_cast<int>(space_.sizes.size()); ++point.size) {
    const std::vector<int> residents = coarse_residents(point.size);
    const bool has_ends = space_.embeddings.size() * space_.heads.size() > 1;
    for (const bool last_ends : {false, true}) {
      if (last_ends && !has_ends) continue;
      point.embedding = last_ends ? space_.embeddings.back() : space_.embeddings.front();
      point.head = last_ends ? space_.heads.back() : space_.heads.front();
      for (const Order order : space_.orders) {
        point.order = order;
        for (const ActivationCounts& counts : modes) {
          point.counts = counts;
          for (const int resident : residents) {
            point.resident = resident;
            const auto fitted = fit(point, ahead(point), margin_);
            if (!fitted) {
              add(fit(point, kFewest, margin_));
              continue;
            }
            add(fitted);
            if (free_persist && !space_.knobs.n_buffer) add(fit_buffers(point, ahead(point), margin_));
          }
          add(fit_residents(point, ahead(point), margin_));
          add(fit_residents(point, kFewest, margin_));
        }
      }
    }
  }
  std::ranges::stable_sort(result, {}, &Candidate::rank);
  return result;
}

std::vector<ActivationCounts> Candidates::other_modes(const ActivationCounts& counts) const {
  std::vector<ActivationCounts> result;
  const std::vector<Mode> modes = free_modes(space_.knobs, true);
  for (const Mode from : modes) {
    const int there = in_mode(counts, from, space_.layers);
    for (const Mode to : modes) {
      if (from == to) continue;
      for (int step = 1; step <= there; step *= 2) {
        const ActivationCounts other = moved(counts, from, to, step);
        if (space_.allows(other)) append_once(result, other);
      }
    }
  }
  return result;
}

void Candidates::slots_around(const Point& point, std::vector<Point>& result) {
  const Choices persists = space_.persists(point);
  const auto add = [&](SlotKnobs slots) {
    if (slots.persist < persists.least || slots.persist > persists.most) return;
    Point other = point;
    other.slots = slots;
    const Choices buffers = space_.buffers(other);
    const Choices gradients = space_.gradients(other);
    if (buffers.empty() || gradients.empty()) return;
    other.slots.buffer = buffers.clamp(slots.buffer);
    other.slots.gradient = gradients.clamp(slots.gradient);
    result.push_back(other);
  };
  const auto& [persist, buffer, gradient] = point.slots;
  for (int step = 1; step <= space_.chunks(point).count(); step *= 2) {
    for (const int by : {-step, step}) {
      add({persist + by, buffer, gradient});
      add({persist + by, buffer - by, gradient});  // a persistent chunk for a slot
      add({persist, buffer + by, gradient});
      if (step <= 4) add({persist, buffer, gradient + by});
      if (step <= 2) add({persist - by, buffer, gradient + by});
    }
  }
  for (const int distance : space_.offloads(point.counts) ? space_.distances : std::vector<int>{}) {
    Point other = point;
    other.distance = distance;
    result.push_back(other);
  }
}

void Candidates::places_around(const Point& point, More more, std::vector<Point>& result) {
  const auto add = [&](const Point& other) {
    if (auto fitted = fit(other, more, margin_)) result.push_back(*fitted);
  };
  const auto add_all = [&](const Point& other) {
    add(other);
    if (auto fitted = fit_residents(other, more, margin_)) result.push_back(*fitted);
    if (more.buffers > 4) {
      if (auto fitted = fit_buffers(other, more, margin_)) result.push_back(*fitted);
    }
  };
  Point other = point;
  add_all(other);
  const Choices residents = space_.residents(point.size);
  for (int step = 1; step <= residents.most - residents.least; step *= 2) {
    for (const int by : {-step, step}) {
      other.resident = point.resident + by;
      if (other.resident >= residents.least && other.resident <= residents.most) add(other);
    }
  }
  other = point;
  for (const UpdatePlace embedding : space_.embeddings) {
    for (const UpdatePlace head : space_.heads) {
      if (embedding == point.embedding && head == point.head) continue;
      other.embedding = embedding;
      other.head = head;
      add_all(other);
    }
  }
  other = point;
  for (const Order order : space_.orders) {
    if (order == point.order) continue;
    other.order = order;
    add_all(other);
  }
  other = point;
  for (other.size = 0; other.size < static_cast<int>(space_.sizes.size()); ++other.size) {
    if (other.size == point.size) continue;
    const Choices range = space_.residents(other.size);
    if (range.empty()) continue;
    const int from = std::max(1, space_.chunks(point).count());
    other.resident = range.clamp(point.resident * space_.chunks(other).count() / from);
    add_all(other);
  }
}

std::vector<Candidate> Candidates::around(const Point& point) {
  std::vector<Point> points;
  const ChunkSet& set = space_.chunks(point);
  const More more = {std::max(0, point.slots.buffer - set.fewest[static_cast<std::size_t>(point.slots.persist)]),
                     std::max(0, point.slots.gradient - space_.places(point).least_gradient_slots)};
  const More loads_ahead = ahead(point);
  std::vector<More> slots = {more};
  if (more.buffers < loads_ahead.buffers || more.gradients < loads_ahead.gradients) slots.push_back(loads_ahead);
  slots_around(point, points);
  for (const More& one : slots) places_around(point, one, points);
  for (const ActivationCounts& counts : other_modes(point.counts)) {
    Point other = point;
    other.counts = counts;
    if (!space_.offloads(counts)) other.distance = space_.distances.front();
    points.push_back(other);
    for (const More& one : slots) {
      if (auto fitted = fit(other, one, margin_)) points.push_back(*fitted);
      if (auto fitted = fit_residents(other, one, margin_)) points.push_back(*fitted);
    }
  }
  std::vector<Candidate> result;
  for (const Point& one : points) {
    if (missing(one).fits()) result.push_back(bounded(one));
  }
  std::ranges::stable_sort(result, {}, &Candidate::rank);
  return result;
}

// The fewest, from where on the host's bound fits, and as many as the device's lets: what is resident takes device
// memory and frees host memory.
std::vector<int> Candidates::lean_residents(Point point) const {
  constexpr int kMore = 2;  // a layout takes a little more than its bound
  const Choices range = space_.residents(point.size);
  if (range.empty()) return {};
  // The first that is not as `few` says, which holds up to some number.
  const auto end_of = [&](const auto& few) {
    int yes = range.least - 1;
    int no = range.most + 1;
    while (no - yes > 1) {
      point.resident = yes + (no - yes) / 2;
      (few() ? yes : no) = point.resident;
    }
    return no;
  };
  const int enough = end_of([&] { return host_left(point) < 0; });
  const int beyond = end_of([&] { return fewest_slots(point) && space_.need(point).device <= limits_.device; });
  std::set<int> result = {range.least, range.most};
  for (int more = 0; more <= kMore; ++more) {
    result.insert(range.clamp(enough + more));
    result.insert(range.clamp(beyond - 1 - more));
  }
  return {result.begin(), result.end()};
}

// More persistent chunks than needed only where that lets slots that are fixed do.
bool Candidates::fewest_slots(Point& point) const {
  const Choices persists = space_.persists(point);
  const Choices gradients = space_.gradients(point);
  if (persists.empty() || gradients.empty()) return false;
  point.slots.gradient = gradients.least;
  for (point.slots.persist = persists.least; point.slots.persist <= persists.most; ++point.slots.persist) {
    const Choices buffers = space_.buffers(point);
    if (buffers.empty()) continue;
    point.slots.buffer = buffers.least;
    return true;
  }
  return false;
}

std::vector<Lean> Candidates::leanest() {
  std::vector<std::pair<Bytes, Lean>> lean;
  Point point;
  point.distance = *std::ranges::min_element(space_.distances);
  const auto add = [&] {
    for (const int resident : lean_residents(point)) {
      point.resident = resident;
      if (!fewest_slots(point)) continue;
      const Shortfall lacks = missing(point);
      ++count_;
      lean.push_back({space_.need(point).device, {{lacks.device, lacks.host}, point}});
    }
  };
  const std::vector<ActivationCounts> modes = coarse_modes();
  for (point.size = 0; point.size < static_cast<int>(space_.sizes.size()); ++point.size) {
    for (const Order order : space_.orders) {
      point.order = order;
      for (const UpdatePlace embedding : space_.embeddings) {
        for (const UpdatePlace head : space_.heads) {
          point.embedding = embedding;
          point.head = head;
          for (const ActivationCounts& counts : modes) {
            point.counts = counts;
            add();
          }
        }
      }
    }
  }
  std::ranges::stable_sort(lean, {}, [](const auto& one) { return std::pair(one.second.lacks, one.first); });
  std::vector<Lean> result;
  result.reserve(lean.size());
  for (const auto& [need, one] : lean) result.push_back(one);
  return result;
}

}  // namespace protrain
