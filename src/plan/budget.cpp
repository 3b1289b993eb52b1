#include "plan/budget.h"

#include <algorithm>

#include "base/error.h"

namespace protrain {

MemoryNeed::MemoryNeed(const Layout& layout)
    : device(layout.bytes(Tier::kDevice)),
      pinned(layout.bytes(Tier::kPinned)),
      pageable(layout.bytes(Tier::kPageable)) {}

Bytes host_need(const MemoryNeed& need, const MemoryLimits& limits) {
  return limits.process + need.pinned + need.pageable + (limits.device_is_host ? need.device : 0);
}

Bytes device_need(const MemoryNeed& need, const MemoryLimits& limits) {
  if (limits.pinned_of_a_table_byte == 0) return need.device;
  return need.device + ceil_div(need.pinned, limits.pinned_of_a_table_byte) + kDevicePieces;
}

MemoryLimits with_arenas(MemoryLimits limits, Bytes outside) {
  limits.device -= outside - limits.outside;
  limits.outside = outside;
  limits.pinned_of_a_table_byte = 0;
  return limits;
}

Shortfall shortfall(const MemoryNeed& need, const MemoryLimits& limits) {
  return {std::max<Bytes>(0, device_need(need, limits) - limits.device),
          std::max<Bytes>(0, host_need(need, limits) - limits.host)};
}

std::string describe(const Shortfall& missing, const MemoryNeed& need, const MemoryLimits& limits) {
  const auto exact = [](Bytes bytes) { return fmt::format("{} ({} bytes)", format_bytes(bytes), bytes); };
  std::string text;
  if (missing.device > 0) {
    const std::string outside =
        limits.outside > 0 ? fmt::format(" beside {} outside the plan", format_bytes(limits.outside)) : "";
    text = fmt::format("device memory: need {}, {} are available{}, {} bytes short", exact(device_need(need, limits)),
                       exact(std::max<Bytes>(0, limits.device)), outside, missing.device);
  }
  if (missing.host > 0) {
    text += fmt::format(
        "{}host memory: need {} ({} pinned, {} pageable, {}{} for the process), {} are available, {} bytes "
        "short",
        text.empty() ? "" : "; ", exact(host_need(need, limits)), format_bytes(need.pinned),
        format_bytes(need.pageable), limits.device_is_host ? format_bytes(need.device) + " device (cpu), " : "",
        format_bytes(limits.process), exact(limits.host), missing.host);
  }
  return text;
}

std::map<std::string_view, Bytes> bytes_by_tag(const Layout& layout, Tier tier) {
  std::map<std::string_view, Bytes> tags;
  for (const Layout::Entry& entry : layout.entries) {
    if (entry.range.tier == tier && entry.at_peak) tags[region_tag(entry.region, entry.index)] += entry.range.bytes;
  }
  return tags;
}

}  // namespace protrain
