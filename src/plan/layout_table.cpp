#include <map>
#include <tuple>

#include "base/error.h"
#include "plan/plan_json.h"

namespace protrain {

std::string layout_table(const Layout& layout) {
  struct Sum {
    Bytes bytes = 0;
    int count = 0;
  };
  std::map<Tier, std::map<std::string_view, Sum>> tags;
  std::map<std::tuple<Tier, std::string_view, std::string>, Sum> lines;
  for (const auto& [region, index, range, whole_run] : layout.entries) {
    std::string what(region_name(region));
    if (region == Region::kState) what = part_name(static_cast<Part>(index % kParts));
    const std::string_view tag = region_tag(region, index);
    for (Sum* sum : {&tags[range.tier][tag], &lines[{range.tier, tag, what}]}) {
      sum->bytes += range.bytes;
      ++sum->count;
    }
  }
  std::string table;
  for (const auto& [tier, of_tier] : tags) {
    table += fmt::format("{:<9}{:<26}{:>6}{:>13}\n", tier_name(tier), "peak", "", format_bytes(layout.bytes(tier)));
    for (const auto& [tag, sum] : of_tier) {
      table += fmt::format("{:<9}  {:<24}{:>6}{:>13}\n", "", tag, sum.count, format_bytes(sum.bytes));
      for (const auto& [key, part] : lines) {
        const auto& [at, of, what] = key;
        if (at != tier || of != tag) continue;
        table += fmt::format("{:<9}    {:<22}{:>6}{:>13}\n", "", what, part.count, format_bytes(part.bytes));
      }
    }
  }
  return table;
}

}  // namespace protrain
