// Which points of a large space are worth a look: a grid of families with as much on the device as fits, and what lies
// around a point. Internal to search/.
#pragma once
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "search/space.h"

namespace protrain {

struct Candidate {
  Point point;
  TimeBound time;
  // Of plans that are equal but for it, the one whose other lanes have less to do.
  double rank() const { return time.likely + kPressure * time.pressure; }
  static constexpr double kPressure = 1e-3;
};

// The order, the mode of most layers, and whether some swap: what the closed form does not see differs most between
// kinds.
using Kind = std::tuple<Order, int, bool>;

// What lacks: of the device, then of the host.
using Lack = std::pair<Bytes, Bytes>;

struct Lean {
  Lack lacks;  // by its bound: at least
  Point point;
};

// Not thread-safe. Space outlives it.
class Candidates {
 public:
  Candidates(const Space&, const MemoryLimits&);

  // Best rank first.
  std::vector<Candidate> grid();
  std::vector<Candidate> around(const Point&);
  // The least of every family, those that lack least by their bounds first: each order, chunk size and choice of modes
  // with the fewest slots, the shortest distance and as few on the device as the host has room for, or as many as the
  // device has. Where none of them fits, no plan does.
  std::vector<Lean> leanest();
  // With fewer persistent chunks or slots, so that its bound leaves `margin` free; nothing where that cannot be.
  std::optional<Point> shrink(const Point&, Bytes margin);

  Kind kind_of(const Point&) const;
  Candidate bounded(const Point&);
  Shortfall missing(const Point&, Bytes margin = 0);
  // What a layout takes beyond its bound, as seen last: fits leave it free.
  void set_margin(Bytes bytes) { margin_ = bytes; }
  std::int64_t count() const { return count_; }
  // Some layers changed from one mode to another.
  std::vector<ActivationCounts> other_modes(const ActivationCounts&) const;

 private:
  // Slots beyond the fewest.
  struct More {
    int buffers, gradients;
  };
  static constexpr More kFewest = {0, 0};
  // So that all of the next block is loaded beside a block's calls, and all gradients of the last one leave.
  More ahead(const Point& point) const {
    const int chunks = space_.chunks(point).ahead;
    return {chunks, chunks};
  }
  // As many persistent chunks as fit / as many slots, with the fewest persistent chunks.
  std::optional<Point> fit(Point, More, Bytes margin);
  std::optional<Point> fit_buffers(Point, More, Bytes margin);
  // All persistent chunks resident, as many as fit.
  std::optional<Point> fit_residents(Point, More, Bytes margin);
  Bytes host_left(const Point&) const;           // by its bound; negative: it lacks
  Bytes room(const Point&, Bytes margin) const;  // of the device, for weights of the body
  std::vector<ActivationCounts> coarse_modes() const;
  std::vector<int> lean_residents(Point) const;
  bool fewest_slots(Point&) const;  // false: there are none
  std::vector<int> coarse_residents(int size) const;
  void slots_around(const Point&, std::vector<Point>&);
  void places_around(const Point&, More, std::vector<Point>&);

  const Space& space_;
  const MemoryLimits& limits_;
  Bytes margin_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace protrain
