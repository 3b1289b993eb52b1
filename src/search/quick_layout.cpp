#include "search/quick_layout.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "schedule/expansion.h"

namespace protrain {

namespace {

constexpr std::size_t kTiers = 4;
constexpr int kPasses = 6, kPassesOfMany = 2;
constexpr std::size_t kMany = 1500;
constexpr Bytes kGoodEnough = 200;  // 1 / so much above the bound

// As layout() walks them: one graph of each kind, micro-batches that differ.
std::vector<StepShape> graphs(const RunShape& shape, const Plan& plan) {
  const auto walked = [&](std::int64_t planned) {
    return plan.order == Order::kLayer ? planned : std::min<std::int64_t>(planned, 3);
  };
  std::vector<StepShape> result;
  const auto add = [&](Graph graph, const std::vector<BatchShape>& shapes, std::int64_t micro_batches) {
    if (shapes.empty()) return;
    StepShape step;
    step.graph = graph;
    step.batch = shapes.front();
    step.micro_batches = walked(micro_batches);
    result.push_back(step);
  };
  add(Graph::kTrain, shape.train_shapes, shape.accumulation);
  add(Graph::kEvaluate, shape.eval_shapes, shape.eval_micro_batches);
  return result;
}

struct Lent {
  std::size_t entry = 0;
  Bytes bytes = 0;  // aligned
  std::vector<Interval> lives;
  Bytes offset = 0;
};

class Placing {
 public:
  explicit Placing(std::vector<Lent>& lent) : lent_(lent), words_((lent.size() + 63) / 64) {
    together_.assign(lent.size() * words_, 0);
    sweep();
  }

  Bytes run() {
    std::vector<std::size_t> order(lent_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto span = [this](std::size_t i) { return lent_[i].lives.back().died - lent_[i].lives.front().born; };
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return span(a) != span(b) ? span(a) > span(b) : lent_[a].bytes > lent_[b].bytes;
    });
    Bytes total = place(order);
    std::vector<Lent> best = lent_;
    Bytes least = total;
    const int passes = lent_.size() > kMany ? kPassesOfMany : kPasses;
    for (int pass = 1; pass < passes && least > bound_ + bound_ / kGoodEnough; ++pass) {
      if (pass == 1) {
        std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return lent_[a].bytes > lent_[b].bytes; });
      } else {
        // What sticks out comes first.
        std::ranges::stable_partition(
            order, [&](std::size_t i) { return lent_[i].offset + lent_[i].bytes > bound_ + bound_ / kGoodEnough; });
      }
      total = place(order);
      if (total >= least) continue;
      least = total;
      best = lent_;
    }
    lent_ = std::move(best);
    return bound_;
  }

 private:
  void sweep() {
    struct Change {
      std::int32_t time;
      bool birth;
      std::size_t who;
    };
    std::vector<Change> changes;
    for (std::size_t i = 0; i < lent_.size(); ++i) {
      for (const Interval& life : lent_[i].lives) {
        changes.push_back({life.born, true, i});
        changes.push_back({life.died, false, i});
      }
    }
    std::ranges::sort(changes, [](const Change& a, const Change& b) {
      return a.time != b.time ? a.time < b.time : a.birth < b.birth;  // what dies leaves before what is born
    });
    std::vector<std::uint64_t> live(words_, 0);
    Bytes now = 0;
    for (const auto& [time, birth, who] : changes) {
      now += birth ? lent_[who].bytes : -lent_[who].bytes;
      bound_ = std::max(bound_, now);
      if (birth) {
        for (std::size_t word = 0; word < words_; ++word) together_[who * words_ + word] |= live[word];
      }
      live[who / 64] ^= std::uint64_t{1} << (who % 64);
    }
  }
  bool meet(std::size_t a, std::size_t b) const {
    const auto bit = [this](std::size_t row, std::size_t i) {
      return ((together_[row * words_ + i / 64] >> (i % 64)) & 1) != 0;
    };
    return bit(a, b) || bit(b, a);
  }

  // Each into the lowest gap that takes it.
  Bytes place(const std::vector<std::size_t>& order) {
    std::vector<std::size_t> placed;  // by offset
    placed.reserve(order.size());
    Bytes total = 0;
    for (const std::size_t i : order) {
      Bytes offset = 0;
      for (const std::size_t j : placed) {
        if (lent_[j].offset >= offset + lent_[i].bytes) break;
        if (lent_[j].offset + lent_[j].bytes > offset && meet(i, j)) {
          offset = lent_[j].offset + lent_[j].bytes;
        }
      }
      lent_[i].offset = offset;
      total = std::max(total, offset + lent_[i].bytes);
      placed.insert(std::ranges::upper_bound(placed, offset, {}, [this](std::size_t j) { return lent_[j].offset; }), i);
    }
    return total;
  }

  std::vector<Lent>& lent_;
  const std::size_t words_;
  std::vector<std::uint64_t> together_;  // by newcomer: who was there
  Bytes bound_ = 0;
};

}  // namespace

Layout quick_layout(const ModelSpec& spec, const std::vector<Chunk>& chunks, const RunShape& shape,
                    const Profile& profile, const Plan& plan) {
  const Facts facts(spec, chunks, shape, profile, plan);
  Layout layout = regions(facts);
  std::vector<std::vector<Interval>> lives(layout.entries.size());
  Id clock = 0;
  for (const StepShape& step : graphs(shape, plan)) {
    Expansion expansion(facts, layout, step);
    add_graph(expansion);
    for (const Life& life : expansion.sketch.lives()) {
      lives[life.entry].push_back({clock + life.first, clock + life.last + 1});
    }
    clock += expansion.sketch.size();
  }
  std::array<Bytes, kTiers> end{};
  std::array<std::vector<Lent>, kTiers> lent;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    Range& range = layout.entries[i].range;
    const auto tier = static_cast<std::size_t>(range.tier);
    const Bytes bytes = round_up(range.bytes, kAlignment);
    if (layout.entries[i].whole_run) {
      range.offset = end[tier];
      end[tier] += bytes;
    } else if (!lives[i].empty()) {
      lent[tier].push_back({i, bytes, std::move(lives[i]), 0});
    } else {
      range.bytes = -1;  // never lives
    }
  }
  for (std::size_t tier = 0; tier < kTiers; ++tier) {
    const Bytes bound = Placing(lent[tier]).run();
    if (static_cast<Tier>(tier) == Tier::kDevice) layout.live_bound = end[tier] + bound;
    for (const Lent& one : lent[tier]) layout.entries[one.entry].range.offset = end[tier] + one.offset;
  }
  std::erase_if(layout.entries, [](const Layout::Entry& entry) { return entry.range.bytes < 0; });
  return layout;
}

}  // namespace protrain
