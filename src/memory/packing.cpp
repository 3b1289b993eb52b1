#include "memory/packing.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"

namespace protrain {
namespace {

// Placing n allocations looks at n^2 / 2 pairs; all attempts together look at so many. About 0.2 s.
constexpr double kPairBudget = 1e8;
constexpr int kMaxAttempts = 20000;
constexpr int kMovesToFront = 16;
// Attempts of PackEffort::kQuick, of many allocations fewer.
constexpr int kQuickAttempts = 6, kQuickAttemptsOfMany = 2;
constexpr std::size_t kMany = 1500;
// A step that is worse by x of the bound is gone on from with this chance, falling to none at kWorseLimit.
constexpr double kWorseChance = 0.3, kWorseLimit = 0.03;
// Attempts stop that near to the bound: 1 / 256 of it; 1 / 50 where that is at most two units.
constexpr Bytes kGoodEnough = 256, kGoodEnoughSmall = 50;
constexpr Bytes kSmallSlack = 2 * kAlignment;

// What takes room and when, and which two are never to overlap.
struct Problem {
  std::vector<std::size_t> ids;  // of the allocations that take room at some time
  std::vector<Bytes> bytes;      // aligned
  std::vector<std::int32_t> born, died;
  std::vector<std::int64_t> lived;  // sum of lives
  std::size_t words = 0;            // a row of `together`
  std::vector<std::uint64_t> together;
  Bytes bound = 0;
  std::int32_t fullest = 0;

  std::size_t size() const { return ids.size(); }
  std::uint64_t* row(std::size_t i) { return together.data() + i * words; }
  const std::uint64_t* row(std::size_t i) const { return together.data() + i * words; }
};

bool bit(const std::uint64_t* row, std::size_t i) { return ((row[i / 64] >> (i % 64)) & 1) != 0; }

void add_allocations(std::span<const Allocation> allocations, Problem& problem) {
  for (std::size_t id = 0; id < allocations.size(); ++id) {
    const auto& [bytes, lives] = allocations[id];
    PROTRAIN_CHECK(bytes >= 0 && !lives.empty(), "an allocation of {} bytes with {} lives", bytes, lives.size());
    std::int64_t lived = 0;
    for (std::size_t i = 0; i < lives.size(); ++i) {
      PROTRAIN_CHECK(lives[i].born <= lives[i].died && (i == 0 || lives[i - 1].died <= lives[i].born),
                     "{} bytes live from {} to {}, after a life to {}", bytes, lives[i].born, lives[i].died,
                     i == 0 ? lives[i].born : lives[i - 1].died);
      lived += lives[i].died - lives[i].born;
    }
    if (bytes == 0 || lived == 0) continue;  // takes no room; offset 0
    problem.ids.push_back(id);
    problem.bytes.push_back(round_up(bytes, kAlignment));
    problem.born.push_back(lives.front().born);
    problem.died.push_back(lives.back().died);
    problem.lived.push_back(lived);
  }
}

// Sweeps the clock: at one time, what dies leaves before what is born comes. Who is there at a birth lives together
// with the newcomer.
void sweep(std::span<const Allocation> allocations, Problem& problem) {
  struct Change {
    std::int32_t time;
    bool birth;
    std::size_t who;
  };
  std::vector<Change> changes;
  for (std::size_t i = 0; i < problem.size(); ++i) {
    for (const Interval& life : allocations[problem.ids[i]].lives) {
      if (life.born == life.died) continue;
      changes.push_back({life.born, true, i});
      changes.push_back({life.died, false, i});
    }
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return a.time != b.time ? a.time < b.time : a.birth < b.birth; });
  problem.words = (problem.size() + 63) / 64;
  problem.together.assign(problem.size() * problem.words, 0);
  std::vector<std::uint64_t> live(problem.words, 0);
  Bytes sum = 0;
  for (const auto& [time, birth, who] : changes) {
    if (birth) {
      std::uint64_t* row = problem.row(who);
      for (std::size_t word = 0; word < problem.words; ++word) row[word] |= live[word];
    }
    live[who / 64] ^= std::uint64_t{1} << (who % 64);
    sum += birth ? problem.bytes[who] : -problem.bytes[who];
    if (sum <= problem.bound) continue;
    problem.bound = sum;
    problem.fullest = time;
  }
  for (std::size_t i = 0; i < problem.size(); ++i) {
    for (std::size_t word = 0; word < problem.words; ++word) {
      for (std::uint64_t rest = problem.row(i)[word]; rest != 0; rest &= rest - 1) {
        const std::size_t j = word * 64 + static_cast<std::size_t>(__builtin_ctzll(rest));
        problem.row(j)[i / 64] |= std::uint64_t{1} << (i % 64);
      }
    }
  }
}

using Order = std::vector<std::size_t>;
enum class Rule : std::uint8_t { kSmallestGap, kLowestGap };

struct Placing {
  std::vector<Bytes> offsets;
  Bytes total = 0;
};

// Places in the given order, each into a gap between the ones already placed that live with it, else on top of them.
Placing place(const Problem& problem, const Order& order, Rule rule) {
  Placing placing;
  placing.offsets.assign(problem.size(), 0);
  std::vector<std::size_t> placed;  // by offset
  placed.reserve(problem.size());
  for (const std::size_t i : order) {
    const std::uint64_t* row = problem.row(i);
    const Bytes bytes = problem.bytes[i];
    Bytes top = 0;  // end of the neighbours seen so far
    Bytes best = -1;
    Bytes best_gap = 0;
    for (const std::size_t j : placed) {
      if (!bit(row, j)) continue;
      const Bytes gap = placing.offsets[j] - top;
      if (gap >= bytes && (best < 0 || gap < best_gap)) {
        best = top;
        best_gap = gap;
        if (rule == Rule::kLowestGap) break;
      }
      top = std::max(top, placing.offsets[j] + problem.bytes[j]);
    }
    const Bytes offset = best >= 0 ? best : top;
    placing.offsets[i] = offset;
    placing.total = std::max(placing.total, offset + bytes);
    const auto above = std::upper_bound(placed.begin(), placed.end(), offset,
                                        [&](Bytes value, std::size_t j) { return value < placing.offsets[j]; });
    placed.insert(above, i);
  }
  return placing;
}

// No order wins always: the usual ones are tried, then the best is mended by taking what sits on top earlier. Ties go
// to the index, so the result is a function of the input alone.
class Search {
 public:
  Search(const Problem& problem, PackEffort effort) : problem_(problem), quick_(effort == PackEffort::kQuick) {
    if (quick_) {
      attempts_ = problem.size() > kMany ? kQuickAttemptsOfMany : kQuickAttempts;
      return;
    }
    const double pairs = 0.5 * static_cast<double>(problem.size()) * static_cast<double>(problem.size());
    attempts_ = static_cast<int>(std::min<double>(kPairBudget / std::max(pairs, 1.0), kMaxAttempts));
  }

  Placing run() {
    const auto& bytes = problem_.bytes;
    by([&](auto a, auto b) { return span(a) != span(b) ? span(a) > span(b) : bytes[a] > bytes[b]; });
    by([&](auto a, auto b) { return bytes[a] != bytes[b] ? bytes[a] > bytes[b] : span(a) > span(b); });
    if (!quick_) other_orders();
    refine();
    return std::move(best_);
  }

 private:
  std::int64_t span(std::size_t i) const { return std::int64_t{problem_.died[i]} - problem_.born[i]; }
  double area(std::size_t i) const {
    return static_cast<double>(problem_.bytes[i]) * static_cast<double>(problem_.lived[i]);
  }

  void other_orders() {
    const auto& bytes = problem_.bytes;
    by([&](auto a, auto b) {
      return problem_.lived[a] != problem_.lived[b] ? problem_.lived[a] > problem_.lived[b] : bytes[a] > bytes[b];
    });
    by([&](auto a, auto b) { return area(a) > area(b); });
    by([&](auto a, auto b) {
      return problem_.born[a] != problem_.born[b] ? problem_.born[a] < problem_.born[b] : span(a) > span(b);
    });
    by([&](auto a, auto b) {
      return problem_.died[a] != problem_.died[b] ? problem_.died[a] > problem_.died[b] : span(a) > span(b);
    });
  }

  Bytes near_enough() const {
    return std::max(problem_.bound / kGoodEnough, std::min(problem_.bound / kGoodEnoughSmall, kSmallSlack));
  }
  bool done(Bytes slack) const { return !best_.offsets.empty() && best_.total <= problem_.bound + slack; }

  template <typename Less>
  void by(Less less) {
    if (done(quick_ ? near_enough() : 0)) return;
    Order order(problem_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), less);
    if (!quick_) attempt(order, Rule::kSmallestGap);
    if (!done(0)) attempt(order, Rule::kLowestGap);
  }

  Placing attempt(const Order& order, Rule rule) {
    --attempts_;
    Placing placing = place(problem_, order, rule);
    if (best_.offsets.empty() || placing.total < best_.total) {
      best_ = placing;
      order_ = order;
      rule_ = rule;
    }
    return placing;
  }

  // Takes what sticks out earlier: first all of it to the front, then one by one (and now and then another) to places
  // drawn by a fixed generator, going on from what was not worse, and sometimes from what was a little worse.
  void refine() {
    const auto sticks_out = [this](const Placing& placing, std::size_t i) {
      const Bytes limit = std::min(placing.total - 1, problem_.bound + problem_.bound / kGoodEnough);
      return placing.offsets[i] + problem_.bytes[i] > limit;
    };
    const auto goes_on = [&] { return attempts_ > 0 && !done(near_enough()); };
    Order order = order_;
    Placing last = best_;
    for (int i = 0; i < kMovesToFront && goes_on(); ++i) {
      std::stable_partition(order.begin(), order.end(), [&](std::size_t one) { return sticks_out(last, one); });
      last = attempt(order, rule_);
    }
    order = order_;
    last = best_;
    std::minstd_rand random;
    while (goes_on()) {
      Order candidate = order;
      for (std::size_t at = 1; at < candidate.size(); ++at) {
        if (!sticks_out(last, candidate[at]) && random() % candidate.size() != 0) continue;
        const std::size_t to = random() % at;
        std::rotate(candidate.begin() + static_cast<std::ptrdiff_t>(to),
                    candidate.begin() + static_cast<std::ptrdiff_t>(at),
                    candidate.begin() + static_cast<std::ptrdiff_t>(at) + 1);
      }
      const Rule rule = random() % 4 == 0 ? Rule::kLowestGap : Rule::kSmallestGap;
      Placing placing = attempt(candidate, rule);
      const auto worse = static_cast<double>(placing.total - last.total) / static_cast<double>(problem_.bound);
      const double chance = worse <= 0 ? 1 : kWorseChance * (1 - worse / kWorseLimit);
      if (static_cast<double>(random() % 1000) >= 1000 * chance) continue;
      order = std::move(candidate);
      last = std::move(placing);
    }
  }

  const Problem& problem_;
  const bool quick_;
  int attempts_ = 0;
  Placing best_;
  Order order_;
  Rule rule_ = Rule::kSmallestGap;
};

}  // namespace

Packing pack(std::span<const Allocation> allocations, PackEffort effort) {
  Problem problem;
  add_allocations(allocations, problem);
  sweep(allocations, problem);
  const Placing placing = Search(problem, effort).run();
  Packing packing;
  packing.offsets.assign(allocations.size(), 0);
  for (std::size_t i = 0; i < problem.size(); ++i) packing.offsets[problem.ids[i]] = placing.offsets[i];
  packing.total = placing.total;
  packing.live_bound = problem.bound;
  packing.fullest = problem.fullest;
  return packing;
}

}  // namespace protrain
