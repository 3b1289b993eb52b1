#include "plan/plan.h"

#include <algorithm>

#include "base/error.h"

namespace protrain {

namespace {

// fp32 parts set the pace: 128 elements would do for them, 256 is what the 2-byte parts need.
constexpr std::int64_t kElementAlignment = kAlignment / 2;

// Parameters that stay together, with their length when each starts at a multiple of kElementAlignment.
struct Group {
  std::vector<Id> parameters;
  std::int64_t elements = 0;
};

// The block that uses each parameter first owns it: a tied matrix belongs to the embedding.
std::vector<std::vector<Group>> groups_by_block(const ModelSpec& spec) {
  const auto count = static_cast<Id>(spec.parameters.size());
  std::vector<Id> owner(count, -1);
  for (Id block = 0; block < static_cast<Id>(spec.blocks.size()); ++block) {
    for (const Id parameter : spec.blocks[block].parameters) {
      PROTRAIN_CHECK(parameter >= 0 && parameter < count, "block {} names parameter {}", block, parameter);
      if (owner[parameter] < 0) owner[parameter] = block;
    }
  }
  std::vector<std::vector<Group>> groups(spec.blocks.size());
  std::vector<std::int64_t> group_of(count, -1);  // position in its block's list, by first member
  for (Id parameter = 0; parameter < count; ++parameter) {
    PROTRAIN_CHECK(owner[parameter] >= 0, "no block uses {}", spec.parameters[parameter].name);
    const Id first = spec.parameters[parameter].group < 0 ? parameter : spec.parameters[parameter].group;
    PROTRAIN_CHECK(first <= parameter && owner[first] == owner[parameter],
                   "{} is grouped with a parameter of another block", spec.parameters[parameter].name);
    auto& list = groups[owner[parameter]];
    if (first == parameter) {
      group_of[parameter] = static_cast<std::int64_t>(list.size());
      list.emplace_back();
    }
    PROTRAIN_CHECK(group_of[first] >= 0, "{} does not lead its group", spec.parameters[first].name);
    Group& group = list[group_of[first]];
    group.parameters.push_back(parameter);
    group.elements += round_up(spec.parameters[parameter].elements(), kElementAlignment);
  }
  return groups;
}

std::int64_t sum_elements(const std::vector<Group>& groups) {
  std::int64_t sum = 0;
  for (const Group& group : groups) sum += group.elements;
  return sum;
}

void append(const ModelSpec& spec, const Group& group, Chunk& chunk) {
  for (const Id parameter : group.parameters) {
    chunk.parameters.push_back(parameter);
    chunk.offsets.push_back(chunk.elements);
    chunk.elements += round_up(spec.parameters[parameter].elements(), kElementAlignment);
  }
}

}  // namespace

std::vector<Chunk> make_chunks(const ModelSpec& spec, Bytes chunk_bytes, DType compute) {
  const auto blocks = groups_by_block(spec);
  std::int64_t capacity = chunk_bytes / size_of(compute);
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    if (spec.blocks[block].kind != BlockKind::kLayer) continue;
    for (const Group& group : blocks[block]) capacity = std::max(capacity, group.elements);
  }

  std::vector<Chunk> chunks;
  bool open = false;  // the last chunk is a body chunk that may take more
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    const BlockKind kind = spec.blocks[block].kind;
    if (kind != BlockKind::kLayer) {
      open = false;
      if (blocks[block].empty()) continue;
      chunks.push_back({kind, {}, {}, 0});
      for (const Group& group : blocks[block]) append(spec, group, chunks.back());
      continue;
    }
    // A block that fits a chunk of its own is not cut only because the last chunk is half full.
    const std::int64_t whole = sum_elements(blocks[block]);
    if (open && whole <= capacity && chunks.back().elements + whole > capacity) open = false;
    for (const Group& group : blocks[block]) {
      if (!open || chunks.back().elements + group.elements > capacity) {
        chunks.push_back({kind, {}, {}, 0});
        open = true;
      }
      append(spec, group, chunks.back());
    }
  }
  return chunks;
}

std::vector<Place> places(const ModelSpec& spec, const std::vector<Chunk>& chunks) {
  std::vector<Place> result(spec.parameters.size());
  for (Id chunk = 0; chunk < static_cast<Id>(chunks.size()); ++chunk) {
    for (std::size_t i = 0; i < chunks[chunk].parameters.size(); ++i) {
      result.at(chunks[chunk].parameters[i]) = {chunk, chunks[chunk].offsets[i]};
    }
  }
  return result;
}

std::vector<std::vector<ChunkUse>> chunk_uses(const ModelSpec& spec, const std::vector<Chunk>& chunks) {
  const std::vector<Place> where = places(spec, chunks);
  std::vector<std::vector<ChunkUse>> uses(spec.blocks.size());
  for (std::size_t block = 0; block < spec.blocks.size(); ++block) {
    auto& own = uses[block];
    for (const Id parameter : spec.blocks[block].parameters) {
      const Place& place = where.at(parameter);
      const std::int64_t end = place.offset + spec.parameters[parameter].elements();
      const auto use =
          std::find_if(own.begin(), own.end(), [&](const ChunkUse& one) { return one.chunk == place.chunk; });
      if (use == own.end()) {
        own.push_back({place.chunk, place.offset, end - place.offset});
        continue;
      }
      const std::int64_t last = std::max(use->offset + use->elements, end);
      use->offset = std::min(use->offset, place.offset);
      use->elements = last - use->offset;
    }
    std::sort(own.begin(), own.end(), [](const ChunkUse& a, const ChunkUse& b) { return a.chunk < b.chunk; });
  }
  return uses;
}

}  // namespace protrain
