// One graph in the making: what it is of, and the tasks so far. Each part of a graph is a few functions that add its
// tasks. Internal to schedule/.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "schedule/facts.h"
#include "schedule/sketch.h"
#include "schedule/visits.h"

namespace protrain {

class Expansion {
 public:
  // All outlive it.
  Expansion(const Facts&, const Layout&, const StepShape&);

  // A part of a region; nothing where the layout has no such region, which is so for regions of 0 bytes only.
  std::optional<Touch> touch(Region, Id index, Bytes offset, Bytes bytes, bool writes, bool fresh = false) const;
  std::optional<Touch> touch(const RegionKey& key, Bytes offset, Bytes bytes, bool writes, bool fresh = false) const {
    return touch(key.region, key.index, offset, bytes, writes, fresh);
  }
  // Likewise, of a region that must be there (InternalError).
  Touch part(Region, Id index, Bytes offset, Bytes bytes, bool writes, bool fresh = false) const;
  Touch part(const RegionKey& key, Bytes offset, Bytes bytes, bool writes, bool fresh = false) const {
    return part(key.region, key.index, offset, bytes, writes, fresh);
  }
  Range range(const std::optional<Touch>&) const;
  Touch whole(Region, Id index, bool writes) const;
  Touch batch(Region, std::int64_t first, std::int64_t count, bool writes) const;
  Touch loss(Id micro_batch, std::int64_t count, bool writes) const;
  Touch state(Id chunk, Part, bool writes) const;

  void copy(Lane, Id chunk, const Touch& from, const Touch& to, std::string name);

  const Facts& facts;
  const Layout& layout;
  const StepShape& step;
  const Bytes activation_bytes;
  Sketch sketch;
  std::vector<bool> gradient_begun;   // by chunk: a backward of this graph has written it
  std::vector<bool> pending_updated;  // by chunk: its pending update is in the graph
};

std::string block_name(const ModelSpec&, Id block);

// --- upload and block calls (block_calls.cpp)
void add_upload(Expansion&);
void add_evaluation(Expansion&, const Visit&);
void add_forward(Expansion&, const Visit&);
void add_backward(Expansion&, const Visit&);
void add_copy_out(Expansion&, Id block, Id micro_batch);
void add_copy_in(Expansion&, Id block, Id micro_batch);

// --- weights on their way to the device (loads.cpp)
// Something that stands before visit number `position` so that visit number `need` finds it. By kind: a copy out makes
// room, so it comes first.
struct Transfer {
  enum class Kind : std::uint8_t { kCopyOut, kLoad, kCopyIn };
  std::int64_t position = 0, need = 0;
  Kind kind = Kind::kLoad;
  Id chunk = -1;                   // kLoad
  Id block = -1, micro_batch = 0;  // the others
};
// Loads of all visits, in the order of need and of position. `contents`: by body slot, the chunk it holds; as it is at
// the end afterwards.
std::vector<Transfer> plan_loads(const Expansion&, const std::vector<Visit>&, std::vector<Id>& contents);
// Copies of saved sets and inputs.
std::vector<Transfer> plan_copies(const Expansion&, const std::vector<Visit>&);
// To the chunk's slot or home; before it the update, if it is pending.
void add_load(Expansion&, Id chunk);

// --- gradients and updates (gradients.cpp)
// The chunk's gradient is complete. Without clip a kCpu chunk is updated too.
void add_finished_gradient(Expansion&, Id chunk);
// Norms and losses, or the losses alone, to a StepControl, and its way to the host.
void add_control(Expansion&, bool losses_alone);
void add_resident_updates(Expansion&);
void add_host_update(Expansion&, Id chunk, bool pending);

// All tasks of the graph; returns Schedule::slots_after (graphs.cpp).
std::vector<Id> add_graph(Expansion&);

}  // namespace protrain
