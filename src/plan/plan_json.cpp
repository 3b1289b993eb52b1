#include "plan/plan_json.h"

#include <nlohmann/json.hpp>

#include <map>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace protrain {

namespace {

using nlohmann::json;

constexpr int kSchema = 1;

[[noreturn]] void refuse(const std::string& file, std::string_view key, const json& value, std::string_view right) {
  fail(ExitCode::kConfig, "{}: {}: {}, must be {}", file, key, value.dump(), right);
}

std::int64_t positive(const json& value, const std::string& file, std::string_view key) {
  // Read as unsigned first: a number beyond 2^63 would otherwise wrap.
  if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > 9e18) {
    refuse(file, key, value, "a whole number of at least 1");
  }
  return value.get<std::int64_t>();
}

Activation parse_activation(const json& value, const std::string& file) {
  for (const Activation mode : {Activation::kKeep, Activation::kRecompute}) {
    if (value.is_string() && value.get_ref<const std::string&>() == activation_name(mode)) return mode;
  }
  refuse(file, "activation", value, "\"keep\" or \"recompute\"");
}

}  // namespace

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::kDevice: return "device";
    case Tier::kPinned: return "pinned";
    case Tier::kPageable: return "pageable";
    case Tier::kDisk: return "disk";
  }
  return "?";
}

std::string_view activation_name(Activation mode) { return mode == Activation::kKeep ? "keep" : "recompute"; }

std::string plan_json(const Plan& plan, const Layout& layout) {
  nlohmann::ordered_json root;
  root["schema"] = plan.schema;
  root["chunk_bytes"] = plan.chunk_bytes;
  root["activation"] = json::array();
  for (const Activation mode : plan.activation) root["activation"].push_back(activation_name(mode));
  root["predicted_device_bytes"] = plan.predicted_device_bytes;
  root["layout"] = json::array();
  for (const auto& [region, index, range] : layout.entries) {
    root["layout"].push_back({{"tier", tier_name(range.tier)},
                              {"region", region_name(region)},
                              {"index", index},
                              {"offset", range.offset},
                              {"bytes", range.bytes}});
  }
  return root.dump(1) + "\n";
}

Plan parse_plan(const std::string& text, const std::string& file) {
  const json root = parse_json(text, file, ExitCode::kConfig);
  if (!root.is_object()) fail(ExitCode::kConfig, "{}: a plan is a JSON object", file);
  Plan plan;
  bool schema_seen = false;
  for (const auto& [key, value] : root.items()) {
    if (key == "schema") {
      schema_seen = true;
      if (value != kSchema) refuse(file, key, value, "1: this program reads no other");
    } else if (key == "chunk_bytes") {
      plan.chunk_bytes = positive(value, file, key);
    } else if (key == "activation") {
      if (!value.is_array()) refuse(file, key, value, "a list with one entry a block");
      for (const json& mode : value) plan.activation.push_back(parse_activation(mode, file));
    } else if (key == "predicted_device_bytes") {
      if (value != 0) plan.predicted_device_bytes = positive(value, file, key);
    } else if (key != "layout") {
      fail(ExitCode::kConfig,
           "{}: unknown key {}; a plan has schema, chunk_bytes, activation, predicted_device_bytes, layout", file, key);
    }
  }
  if (!schema_seen) fail(ExitCode::kConfig, "{}: schema is missing; this program reads schema 1", file);
  return plan;
}

std::string layout_table(const Layout& layout) {
  std::map<std::pair<Tier, std::string>, Bytes> sums;
  std::map<Tier, Bytes> totals;
  for (const auto& [region, index, range] : layout.entries) {
    std::string what(region_name(region));
    if (region == Region::kState) what += fmt::format(" {}", part_name(static_cast<Part>(index % kParts)));
    sums[{range.tier, what}] += range.bytes;
    totals[range.tier] = layout.bytes(range.tier);
  }
  std::string table;
  for (const auto& [tier, total] : totals) {
    table += fmt::format("{:<9}{:<22}{:>12}\n", tier_name(tier), "total", format_bytes(total));
    for (const auto& [key, bytes] : sums) {
      if (key.first == tier) table += fmt::format("{:<9}  {:<20}{:>12}\n", "", key.second, format_bytes(bytes));
    }
  }
  return table;
}

}  // namespace protrain
