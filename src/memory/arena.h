// One tier's memory, and an exact record of which ranges of it are in use. Reads no plan: what it counts is what was
// handed out.
//
// Thread safety: all methods, any thread; calls that concern overlapping ranges are ordered by the caller. The memory
// is the Device's and lives as long as it does.
#pragma once
#include <array>
#include <memory>
#include <string_view>

#include "device/device.h"

namespace protrain {

struct ArenaOptions {
  bool check = false;  // keep the live intervals; an overlap is an InternalError naming both. Always on in debug builds
  // CPU device only, else ignored: what is not in use holds NaN patterns (all bits set), the gap between a range's end
  // and the next multiple of kAlignment included, from the start on; under ASan touching it is an error.
  bool poison = false;
};

class Arena {
 public:
  // Device::arena(tier, bytes), once. 0 bytes: no memory is asked for.
  Arena(Device&, Tier, Bytes bytes, const ArenaOptions& = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Tier tier() const;
  Bytes bytes() const;
  std::byte* at(const Range&) const;  // of this tier, inside it

  // The range (it starts at a multiple of kAlignment; 0 bytes: nothing happens) is in use from here on / no longer.
  // Bookkeeping happens in the order of the calls; poison comes and goes in the order of the stream's work (null: at
  // once). `name` says whose it is, for messages, and outlives the range's use.
  void acquire(const Range&, std::string_view name, Stream* = nullptr);
  void release(const Range&, Stream* = nullptr);

  Bytes high_water() const;   // largest end offset handed out so far, or since the last restart
  void restart_high_water();  // nothing is in use
  Bytes in_use() const;       // sum of bytes now handed out

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// By tier; null where there are no bytes.
using Arenas = std::array<Arena*, 4>;

}  // namespace protrain
