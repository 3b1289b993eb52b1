#include "runtime/executor_lives.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace protrain {
namespace {

// Which task last gave back each byte of a tier.
class Freed {
 public:
  // Calls fn(task) for each stretch that meets [begin, end).
  template <typename Fn>
  void visit(Bytes begin, Bytes end, const Fn& fn) const {
    auto it = stretches_.upper_bound(begin);
    if (it != stretches_.begin() && std::prev(it)->second.end > begin) --it;
    for (; it != stretches_.end() && it->first < end; ++it) fn(it->second.task);
  }

  void set(Bytes begin, Bytes end, Id task) {
    cut(begin);
    cut(end);
    stretches_.erase(stretches_.lower_bound(begin), stretches_.lower_bound(end));
    stretches_[begin] = {end, task};
  }

 private:
  struct Stretch {
    Bytes end = 0;
    Id task = -1;
  };

  void cut(Bytes at) {
    const auto next = stretches_.lower_bound(at);
    if (next == stretches_.begin()) return;
    const auto before = std::prev(next);
    if (before->second.end <= at) return;
    stretches_.emplace(at, before->second);
    before->second.end = at;
  }

  std::map<Bytes, Stretch> stretches_;  // by first byte; disjoint
};

}  // namespace

Lives::Lives(const Schedule& schedule, const Arenas& arenas) : schedule_(schedule), arenas_(arenas) {
  const std::size_t count = schedule.tasks.size();
  waits_.resize(count);
  begins_.resize(count);
  ends_.resize(count);
  uses_.resize(count);
  std::array<std::map<Bytes, Life*>, std::tuple_size_v<Arenas>> open;  // by offset; disjoint
  std::array<Freed, std::tuple_size_v<Arenas>> freed;

  const auto wait = [&](Id task, Id earlier) {
    auto& own = waits_[task];
    if (schedule.tasks[earlier].lane == schedule.tasks[task].lane) return;
    if (std::find(own.begin(), own.end(), earlier) == own.end()) own.push_back(earlier);
  };
  const auto counts = [&](const Range& range) {
    return range.bytes > 0 && arenas_[static_cast<std::size_t>(range.tier)] != nullptr;
  };

  for (Id id = 0; id < static_cast<Id>(count); ++id) {
    const Task& task = schedule.tasks[id];
    for (const Range& range : task.acquires) {
      if (!counts(range)) continue;
      const auto tier = static_cast<std::size_t>(range.tier);
      freed[tier].visit(range.offset, range.offset + range.bytes, [&](Id earlier) { wait(id, earlier); });
      Life& life = lives_.emplace_back();
      life.range = range;
      life.first = id;
      life.user.fill(-1);
      const bool unique = open[tier].emplace(range.offset, &life).second;
      PROTRAIN_CHECK(unique, "{} acquires offset {} of tier {}, which is in use", task.name, range.offset, tier);
      begins_[id].push_back(&life);
    }
    for (const Access& access : task.access) {
      const Range& range = access.range;
      if (!counts(range)) continue;
      const auto& lives = open[static_cast<std::size_t>(range.tier)];
      auto it = lives.upper_bound(range.offset);
      if (it != lives.begin()) --it;
      for (; it != lives.end() && it->first < range.offset + range.bytes; ++it) {
        Life& life = *it->second;
        if (life.range.offset + life.range.bytes > range.offset) life.user[static_cast<std::size_t>(task.lane)] = id;
      }
    }
    for (const Range& range : task.releases) {
      if (!counts(range)) continue;
      const auto tier = static_cast<std::size_t>(range.tier);
      const auto found = open[tier].find(range.offset);
      PROTRAIN_CHECK(found != open[tier].end() && found->second->range == range,
                     "{} releases {} bytes at {} of tier {}, which no task has acquired", task.name, range.bytes,
                     range.offset, tier);
      Life& life = *found->second;
      open[tier].erase(found);
      life.last = id;
      wait(id, life.first);
      ends_[id].push_back(&life);
      freed[tier].set(range.offset, range.offset + range.bytes, id);
    }
  }
  for (const auto& lives : open) {
    PROTRAIN_CHECK(lives.empty(), "what {} acquires at {} is never released",
                   schedule.tasks[lives.begin()->second->first].name, lives.begin()->first);
  }

  for (Life& life : lives_) {
    if (!arenas_[static_cast<std::size_t>(life.range.tier)]->poisons()) continue;
    for (const Id user : life.user) {
      if (user < 0) continue;
      uses_[user].push_back(&life);
      ++life.users;
    }
  }
}

void Lives::begin(Id task, Stream& stream) {
  for (Life* life : begins_[task]) {
    arenas_[static_cast<std::size_t>(life->range.tier)]->acquire(life->range, schedule_.tasks[task].name, &stream);
    life->begun = true;
  }
}

void Lives::use(Id task, Stream& stream) {
  for (Life* life : uses_[task]) {
    const Arena* const arena = arenas_[static_cast<std::size_t>(life->range.tier)];
    stream.mark([life, arena] {
      if (--life->users == 0) arena->poison(life->range);
    });
  }
}

void Lives::end(Id task) {
  for (Life* life : ends_[task]) {
    arenas_[static_cast<std::size_t>(life->range.tier)]->release_books(life->range);
    life->ended = true;
  }
}

void Lives::end_all() {
  for (Life& life : lives_) {
    if (!life.begun) continue;
    Arena& arena = *arenas_[static_cast<std::size_t>(life.range.tier)];
    if (!life.ended) arena.release_books(life.range);
    life.ended = true;
    arena.poison(life.range);
  }
}

}  // namespace protrain
