#include "memory/arena.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "base/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace protrain {
namespace {

#ifdef NDEBUG
constexpr bool kAlwaysCheck = false;
#else
constexpr bool kAlwaysCheck = true;
#endif

// A NaN in bf16, fp32 and fp64, a token that no vocabulary has.
constexpr int kPoison = 0xff;

constexpr std::string_view kTierNames[] = {"device", "pinned", "pageable", "disk"};

}  // namespace

struct Arena::State {
  struct Live {
    Bytes end = 0;
    std::string_view name;
  };

  Tier tier = Tier::kDevice;
  Bytes bytes = 0;
  bool check = false;
  bool poison = false;
  std::byte* data = nullptr;

  std::mutex mutex;            // guards everything below
  std::map<Bytes, Live> live;  // by offset; empty unless `check`
  Bytes high_water = 0;
  Bytes in_use = 0;

  std::string_view tier_name() const { return kTierNames[static_cast<std::size_t>(tier)]; }

  void check_inside(const Range& range) const {
    PROTRAIN_CHECK(range.tier == tier && range.offset >= 0 && range.bytes >= 0 && range.bytes <= bytes - range.offset,
                   "[{}, {}) of tier {} is not inside the {} arena of {} bytes", range.offset,
                   range.offset + range.bytes, static_cast<int>(range.tier), tier_name(), bytes);
  }

  void add(const Range& range, std::string_view name) {
    const Bytes end = range.offset + range.bytes;
    const std::lock_guard lock(mutex);
    if (check) {
      const auto behind = live.lower_bound(end);
      if (behind != live.begin()) {
        const auto& [other_begin, other] = *std::prev(behind);
        PROTRAIN_CHECK(other.end <= range.offset, "{} arena: [{}, {}) of {} overlaps [{}, {}) of {}, which is in use",
                       tier_name(), range.offset, end, name, other_begin, other.end, other.name);
      }
      live[range.offset] = {end, name};
    }
    high_water = std::max(high_water, end);
    in_use += range.bytes;
  }

  void remove(const Range& range) {
    const std::lock_guard lock(mutex);
    if (check) {
      const auto found = live.find(range.offset);
      PROTRAIN_CHECK(found != live.end() && found->second.end == range.offset + range.bytes,
                     "{} arena: [{}, {}) is given back, but was not handed out", tier_name(), range.offset,
                     range.offset + range.bytes);
      live.erase(found);
    }
    in_use -= range.bytes;
  }

  // Up to where the next range may start.
  Bytes end_with_gap(const Range& range) const {
    return std::min(round_up(range.offset + range.bytes, kAlignment), round_up(bytes, kAlignment));
  }
  void fill(const Range& range) const {
    const auto size = static_cast<std::size_t>(end_with_gap(range) - range.offset);
    ASAN_UNPOISON_MEMORY_REGION(data + range.offset, size);
    std::memset(data + range.offset, kPoison, size);
    ASAN_POISON_MEMORY_REGION(data + range.offset, size);
  }
};

Arena::Arena(Device& device, Tier tier, Bytes bytes, const ArenaOptions& options) : state_(std::make_unique<State>()) {
  PROTRAIN_CHECK(bytes >= 0, "{} bytes", bytes);
  state_->tier = tier;
  state_->bytes = bytes;
  state_->check = options.check || kAlwaysCheck;
  state_->poison = options.poison && device.kind() == DeviceKind::kCpu && bytes > 0;
  if (bytes > 0) state_->data = device.arena(tier, bytes);
  if (state_->poison) state_->fill({tier, 0, bytes});
}

Arena::~Arena() {
  // The addresses outlive us.
  if (state_->poison) {
    ASAN_UNPOISON_MEMORY_REGION(state_->data, static_cast<std::size_t>(round_up(state_->bytes, kAlignment)));
  }
}

Tier Arena::tier() const { return state_->tier; }
Bytes Arena::bytes() const { return state_->bytes; }

std::byte* Arena::at(const Range& range) const {
  state_->check_inside(range);
  return state_->data + range.offset;
}

void Arena::acquire(const Range& range, std::string_view name, Stream* stream) {
  state_->check_inside(range);
  PROTRAIN_CHECK(range.offset % kAlignment == 0, "{} starts at {}", name, range.offset);
  if (range.bytes == 0) return;
  state_->add(range, name);
  if (!state_->poison) return;
  std::byte* const begin = at(range);
  const auto clean = [begin, size = static_cast<std::size_t>(range.bytes)] {
    ASAN_UNPOISON_MEMORY_REGION(begin, size);
  };
  if (stream != nullptr) {
    stream->mark(clean);
  } else {
    clean();
  }
}

void Arena::release(const Range& range, Stream* stream) {
  state_->check_inside(range);
  if (range.bytes == 0) return;
  state_->remove(range);
  if (!state_->poison) return;
  if (stream != nullptr) {
    stream->mark([state = state_.get(), range] { state->fill(range); });
  } else {
    state_->fill(range);
  }
}

Bytes Arena::high_water() const {
  const std::lock_guard lock(state_->mutex);
  return state_->high_water;
}

void Arena::restart_high_water() {
  const std::lock_guard lock(state_->mutex);
  PROTRAIN_CHECK(state_->in_use == 0, "{} bytes of the {} arena are in use", state_->in_use, state_->tier_name());
  state_->high_water = 0;
}

Bytes Arena::in_use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->in_use;
}

}  // namespace protrain
