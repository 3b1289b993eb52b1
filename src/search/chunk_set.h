// The chunks that one chunk_bytes makes, and what places of their updates add up to. Internal to search/.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "search/figures.h"

namespace protrain {

// Body chunks are numbered in execution order, as in Plan. Not thread-safe (it remembers).
class ChunkSet {
 public:
  // Figures outlive it.
  ChunkSet(const Figures&, Bytes chunk_bytes);

  struct Of {
    int number = -1;  // of body chunks
    Id first_block = -1, last_block = -1;
    bool sums = false;  // accumulates(): its gradient is rounded before it leaves
  };

  const Figures& figures;
  const Bytes chunk_bytes;
  const std::vector<Chunk> chunks;
  std::vector<Of> of;                // by chunk
  std::vector<Id> body;              // chunks by number
  Id embedding = -1, head = -1;      // their own chunks; -1: none
  std::vector<std::int64_t> before;  // elements of the body chunks before a number; one more entry than `body`
  std::vector<int> fewest;           // the fewest slots when the chunks from this number on rotate; likewise
  // The most chunks that a block's neighbour touches and it does not: with so many slots beyond the fewest all that the
  // next block needs is loaded beside this one.
  int ahead = 0;
  std::vector<std::pair<int, int>> numbers;  // by block: first and last number it touches; {0, -1}: none

  int count() const { return static_cast<int>(body.size()); }
  // Elements of `slots` slots through which the body chunks from `first` on rotate: each is as large as the largest.
  std::int64_t slot_elements(int first, int slots) const;

 private:
  mutable std::map<std::pair<int, int>, std::int64_t> slot_elements_;
};

// What a place for each chunk adds up to. kResident ones among the body chunks have to be persistent.
struct PlaceSums {
  PlaceSums(const ChunkSet&, std::vector<UpdatePlace>, Order, Tier state_tier);
  // Gradient slots of so many elements in all.
  std::int64_t gradient_slot_elements(const ChunkSet&, int slots) const;

  std::vector<UpdatePlace> place;  // by chunk
  int least_persist = 0;           // what kResident needs
  int least_gradient_slots = 0;
  int hosts = 0;  // body chunks of place kCpu
  bool any_host = false;
  bool leaves_by_slots = true;            // gradients of body chunks on the host
  std::vector<std::int64_t> host_before;  // elements of kCpu body chunks before a number; one more entry than body
  std::vector<int> hosts_before;          // their count
  std::int64_t end_elements = 0;          // of embedding and head on the host
  int ends = 0;

  // Bytes.
  Bytes resident_device = 0;  // state of kResident chunks, for the whole run
  Bytes pinned = 0, pageable = 0;
  std::vector<Bytes> lent;    // gradients on the device while a block's last backward runs (kLayer: its first)
  Bytes lent_in_forward = 0;  // while the last micro-batch's forward runs
  Bytes lent_at_end = 0;      // when the embedding's gradient is rounded or leaves

  // Seconds.
  double updates_on_host = 0, updates_on_device = 0;
  double gradients_out = 0;
  double norms = 0;         // and roundings, of all
  double last_norm = 0;     // and rounding, of the embedding's chunk
  double last_on_host = 0;  // way out, update and way back of the embedding's chunk, if that is on the host
  double loads = 0;         // every kCpu chunk once
  double load_count = 0;    // of those
  double load_bytes = 0;
  // The earliest time at which a kCpu chunk can be there under the pending updates, with the first block that needs it;
  // for some chunks.
  struct Arrival {
    Id block = -1;
    double seconds = 0;
  };
  std::vector<Arrival> arrivals;
};

}  // namespace protrain
