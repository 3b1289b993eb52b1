// Cuts parameters into pieces that many cores prepare (read, convert, check) and one thread takes in order, so that
// files are read and written forward in large steps while the conversion does not hold up the disk. One caller a
// PieceTeam.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "arch/spec.h"
#include "base/thread_pool.h"
#include "checkpoint/folder_names.h"

namespace protrain {

struct Piece {
  Id parameter = -1;
  std::int64_t first = 0;
  std::int64_t count = 0;  // elements
};

inline std::vector<Piece> cut_pieces(const ModelSpec& spec, std::span<const Id> parameters) {
  std::vector<Piece> pieces;
  for (const Id id : parameters) {
    const std::int64_t elements = spec.parameters[static_cast<std::size_t>(id)].elements();
    for (std::int64_t first = 0; first < elements; first += kPieceElements) {
      pieces.push_back({id, first, std::min(kPieceElements, elements - first)});
    }
  }
  return pieces;
}

class PieceTeam {
 public:
  // prepare(piece, slot) may run on any thread, for different slots at a time; take(piece, slot) on the caller's, in
  // order.
  template <typename Prepare, typename Take>
  void run(std::span<const Piece> pieces, Prepare prepare, Take take) {
    while (!pieces.empty()) {
      const auto batch = pieces.first(std::min(pieces.size(), slots()));
      pool_.parallel_for(static_cast<std::int64_t>(batch.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t slot = begin; slot < end; ++slot) prepare(batch[slot], static_cast<std::size_t>(slot));
      });
      for (std::size_t slot = 0; slot < batch.size(); ++slot) take(batch[slot], slot);
      pieces = pieces.subspan(batch.size());
    }
  }
  ThreadPool& pool() { return pool_; }  // idle while a piece is taken
  std::size_t slots() const { return static_cast<std::size_t>(pool_.threads()); }

 private:
  static constexpr int kMostThreads = 8;  // a slot holds up to 32 MiB; more threads than this outrun any disk
  ThreadPool pool_{std::min(allowed_cores(), kMostThreads)};
};

}  // namespace protrain
