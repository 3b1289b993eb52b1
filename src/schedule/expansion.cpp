#include "schedule/expansion.h"

#include <utility>

#include "base/error.h"
#include "plan/layout.h"

namespace protrain {

Expansion::Expansion(const Facts& facts_in, const Layout& layout_in, const StepShape& step_in)
    : facts(facts_in),
      layout(layout_in),
      step(step_in),
      activation_bytes(step.batch.tokens() * facts.spec.hidden * size_of(facts.shape.compute)),
      sketch(layout),
      gradient_begun(facts.chunks.size(), false),
      pending_updated(facts.chunks.size(), false) {}

std::optional<Touch> Expansion::touch(Region region, Id index, Bytes offset, Bytes bytes, bool writes,
                                      bool fresh) const {
  const Layout::Entry* const found = find_entry(layout, region, index);
  if (found == nullptr) {
    PROTRAIN_CHECK(bytes == 0, "the layout has no {} {}", region_name(region), index);
    return std::nullopt;
  }
  return Touch{static_cast<std::size_t>(found - layout.entries.data()), offset, bytes, writes, fresh};
}

Touch Expansion::part(Region region, Id index, Bytes offset, Bytes bytes, bool writes, bool fresh) const {
  const std::optional<Touch> found = touch(region, index, offset, bytes, writes, fresh);
  PROTRAIN_CHECK(found.has_value(), "the layout has no {} {}", region_name(region), index);
  return *found;
}

Range Expansion::range(const std::optional<Touch>& touch) const {
  if (!touch || touch->bytes == 0) return {};
  const Range& region = layout.entries[touch->entry].range;
  return {region.tier, region.offset + touch->offset, touch->bytes};
}

Touch Expansion::whole(Region region, Id index, bool writes) const {
  return part(region, index, 0, layout.find(region, index).bytes, writes);
}

Touch Expansion::batch(Region region, std::int64_t first, std::int64_t count, bool writes) const {
  const Bytes one = batch_layout(step.batch).bytes;
  return part(region, step.batch_slot, first * one, count * one, writes);
}

Touch Expansion::loss(Id micro_batch, std::int64_t count, bool writes) const {
  return part(Region::kLosses, 0, micro_batch * Bytes{sizeof(double)}, count * Bytes{sizeof(double)}, writes);
}

Touch Expansion::state(Id chunk, Part part, bool writes) const {
  return whole(Region::kState, chunk * kParts + static_cast<Id>(part), writes);
}

void Expansion::copy(Lane lane, Id chunk, const Touch& from, const Touch& to, std::string name) {
  PROTRAIN_CHECK(from.bytes == to.bytes && from.bytes > 0, "{}: {} bytes to {}", name, from.bytes, to.bytes);
  Task task;
  task.op = Op::kCopy;
  task.lane = lane;
  task.chunk = chunk;
  task.name = std::move(name);
  sketch.add(std::move(task), {from, to});
}

std::string block_name(const ModelSpec& spec, Id block) {
  switch (spec.blocks[block].kind) {
    case BlockKind::kEmbedding: return "embedding";
    case BlockKind::kHead: return "head";
    case BlockKind::kLayer: return fmt::format("layer {}", spec.blocks[block].layer);
  }
  return "?";
}

}  // namespace protrain
