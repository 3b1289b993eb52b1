#include "schedule/rates_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace protrain {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kSchema = 2;
constexpr std::string_view kPasses[] = {"forward", "forward_keep", "backward"};  // as Pass
constexpr std::string_view kCallKeys[] = {"trace",      "pass",        "light",  "rows",
                                          "row_tokens", "max_samples", "packed", "training"};

// The linear rates under their names, with what a unit is.
struct NamedLinear {
  std::string_view name;
  Rates::Linear Rates::* rate;
  std::string_view per_unit;
};
constexpr NamedLinear kLinears[] = {
    {"h2d", &Rates::h2d, "per_byte"},
    {"d2h", &Rates::d2h, "per_byte"},
    {"cpu_update", &Rates::cpu_update, "per_element"},
    {"gpu_update", &Rates::gpu_update, "per_element"},
    {"norm", &Rates::norm, "per_element"},
    {"round", &Rates::round, "per_element"},
};

std::string lane_key(std::size_t lane) { return std::string(lane_name(static_cast<Lane>(lane))); }

ordered_json written(double value) {
  PROTRAIN_CHECK(std::isfinite(value), "a profile with the number {}", value);
  return value;  // as few digits as give the same double back
}

ordered_json written(const CallKey& key) {
  return {{"trace", key.trace},
          {"pass", kPasses[static_cast<std::size_t>(key.pass)]},
          {"light", key.light},
          {"rows", key.shape.rows},
          {"row_tokens", key.shape.row_tokens},
          {"max_samples", key.shape.max_samples},
          {"packed", key.shape.packed},
          {"training", key.training}};
}

ordered_json written(const Rates& rates) {
  ordered_json root;
  root["source"] = rates.source;
  root["measured"] = rates.measured;
  for (const auto& [name, rate, per_unit] : kLinears) {
    const Rates::Linear& linear = rates.*rate;
    root[std::string(name)] = {{"seconds", written(linear.seconds)}, {per_unit, written(linear.per_unit)}};
  }
  root["finish_norm"] = written(rates.finish_norm);
  root["between_steps"] = written(rates.between_steps);
  ordered_json slowdown = ordered_json::object();
  for (std::size_t a = 0; a < kLanes; ++a) {
    for (std::size_t b = 0; b < kLanes; ++b) {
      if (rates.slowdown[a][b] != 1) slowdown[lane_key(a)][lane_key(b)] = written(rates.slowdown[a][b]);
    }
  }
  root["slowdown"] = std::move(slowdown);
  root["calls"] = ordered_json::array();
  for (const Rates::Call& call : rates.calls) {
    PROTRAIN_CHECK(call.rested <= call.steady, "{}: {} s rested, {} s steady", call.key.trace, call.rested,
                   call.steady);
    PROTRAIN_CHECK(call.graph_alone > 0 && call.graph_alone <= 1, "{}: a graph alone takes {} of the call's time",
                   call.key.trace, call.graph_alone);
    ordered_json& one = root["calls"].emplace_back(written(call.key));
    one["steady"] = written(call.steady);
    one["rested"] = written(call.rested);
    if (call.graph_alone != 1) one["graph_alone"] = written(call.graph_alone);
  }
  return root;
}

// An object of the file, and the path of keys that leads to it.
class Reader {
 public:
  Reader(const json& object, const std::string& file, std::string path)
      : object_(object), file_(file), path_(std::move(path)) {
    if (!object.is_object()) {
      fail(ExitCode::kConfig, "{}: {}: {}, must be a JSON object", file_, path_.empty() ? "a profile" : path_,
           shown(object));
    }
  }

  // Refuses all other keys.
  template <typename... Lists>
  void know(const Lists&... lists) const {
    std::vector<std::string_view> known;
    (known.insert(known.end(), std::begin(lists), std::end(lists)), ...);
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      fail(ExitCode::kConfig, "{}: unknown key '{}'; known are {}", file_, named(key), fmt::join(known, ", "));
    }
  }

  bool has(std::string_view key) const { return object_.contains(key); }
  const json& at(std::string_view key, std::string_view right) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(ExitCode::kConfig, "{}: {} is missing, must be {}", file_, named(key), right);
    return *found;
  }
  Reader object(std::string_view key) const { return {at(key, "a JSON object"), file_, named(key)}; }
  // Each entry of a list.
  template <typename Body>
  void each(std::string_view key, Body body) const {
    constexpr std::string_view kRight = "a list of JSON objects";
    const json& list = at(key, kRight);
    if (!list.is_array()) refuse(key, kRight);
    for (std::size_t i = 0; i < list.size(); ++i) body(Reader(list[i], file_, fmt::format("{}[{}]", named(key), i)));
  }

  std::string text(std::string_view key, const std::optional<std::string>& otherwise = std::nullopt) const {
    constexpr std::string_view kRight = "a string";
    if (otherwise && !has(key)) return *otherwise;
    const json& value = at(key, kRight);
    if (!value.is_string()) refuse(key, kRight);
    return value.get<std::string>();
  }
  bool flag(std::string_view key) const {
    constexpr std::string_view kRight = "true or false";
    const json& value = at(key, kRight);
    if (!value.is_boolean()) refuse(key, kRight);
    return value.get<bool>();
  }
  std::int64_t whole(std::string_view key, std::int64_t least) const {
    const std::string right = fmt::format("a whole number of at least {}", least);
    const json& value = at(key, right);
    // Compared as double: a number beyond 2^63 would wrap.
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(least) || value.get<double>() > 9e18) {
      refuse(key, right);
    }
    return value.get<std::int64_t>();
  }
  double number(std::string_view key) const {
    constexpr std::string_view kRight = "a number of at least 0";
    const json& value = at(key, kRight);
    if (!value.is_number() || value.get<double>() < 0) refuse(key, kRight);
    return value.get<double>();
  }

  // 1 where it is missing.
  double share(std::string_view key, std::string_view of) const {
    if (!has(key)) return 1;
    const std::string right = fmt::format("a number above 0 and at most 1: {}", of);
    const json& value = at(key, right);
    if (!value.is_number() || !(value.get<double>() > 0 && value.get<double>() <= 1)) refuse(key, right);
    return value.get<double>();
  }

  [[noreturn]] void refuse(std::string_view key, std::string_view right) const {
    fail(ExitCode::kConfig, "{}: {}: {}, must be {}", file_, named(key), shown(object_.at(std::string(key))), right);
  }

 private:
  std::string named(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }

  const json& object_;
  const std::string& file_;
  const std::string path_;
};

CallKey read_key(const Reader& call) {
  CallKey key;
  key.trace = call.text("trace");
  const std::string pass = call.text("pass");
  const auto* const found = std::find(std::begin(kPasses), std::end(kPasses), pass);
  if (found == std::end(kPasses)) call.refuse("pass", fmt::format("one of {}", fmt::join(kPasses, ", ")));
  key.pass = static_cast<Pass>(found - std::begin(kPasses));
  key.light = call.flag("light");
  key.shape.rows = call.whole("rows", 1);
  key.shape.row_tokens = call.whole("row_tokens", 1);
  key.shape.max_samples = call.whole("max_samples", 1);
  key.shape.packed = call.flag("packed");
  key.training = call.flag("training");
  return key;
}

DType read_compute(const Reader& root) {
  const std::string name = root.text("compute_dtype");
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    if (name == transformers_name(compute)) return compute;
  }
  root.refuse("compute_dtype", "float32 or bfloat16");
}

Profile read_memory(const Reader& root) {
  root.know(std::initializer_list<std::string_view>{"library_workspace", "tables", "calls"});
  Profile memory;
  memory.library_workspace = root.whole("library_workspace", 0);
  memory.tables = root.whole("tables", 0);
  root.each("calls", [&](const Reader& call) {
    call.know(kCallKeys, std::initializer_list<std::string_view>{"saved", "workspace", "workspace_bound"});
    memory.calls.push_back(
        {read_key(call), {call.whole("saved", 0), call.whole("workspace", 0), call.whole("workspace_bound", 0)}});
  });
  return memory;
}

void read_slowdown(const Reader& root, Rates& rates) {
  std::vector<std::string> lanes;
  lanes.reserve(kLanes);
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes.push_back(lane_key(lane));
  root.know(lanes);
  for (std::size_t a = 0; a < kLanes; ++a) {
    if (!root.has(lanes[a])) continue;
    const Reader row = root.object(lanes[a]);
    row.know(lanes);
    for (std::size_t b = 0; b < kLanes; ++b) {
      if (!row.has(lanes[b])) continue;
      double& factor = rates.slowdown[a][b];
      factor = row.number(lanes[b]);
      if (factor < 1) row.refuse(lanes[b], "a number of at least 1: how many times as long a task takes");
    }
  }
}

Rates read_rates(const Reader& root) {
  std::vector<std::string_view> names;
  for (const NamedLinear& linear : kLinears) names.push_back(linear.name);
  root.know(std::initializer_list<std::string_view>{"source", "measured", "finish_norm", "between_steps", "slowdown",
                                                    "calls"},
            names);
  Rates rates;
  rates.source = root.text("source");
  rates.measured = root.flag("measured");
  for (const auto& [name, rate, per_unit] : kLinears) {
    const Reader linear = root.object(name);
    linear.know(std::initializer_list<std::string_view>{"seconds", per_unit});
    rates.*rate = {linear.number("seconds"), linear.number(per_unit)};
  }
  rates.finish_norm = root.number("finish_norm");
  rates.between_steps = root.number("between_steps");
  if (root.has("slowdown")) read_slowdown(root.object("slowdown"), rates);
  root.each("calls", [&](const Reader& call) {
    call.know(kCallKeys, std::initializer_list<std::string_view>{"steady", "rested", "graph_alone"});
    rates.calls.push_back({read_key(call), call.number("steady"), call.number("rested"),
                           call.share("graph_alone", "the call's time without its result / with it")});
    if (rates.calls.back().rested > rates.calls.back().steady) {
      call.refuse("rested", fmt::format("at most steady ({})", rates.calls.back().steady));
    }
  });
  return rates;
}

}  // namespace

std::string profile_json(const StoredProfile& profile) {
  ordered_json memory;
  memory["library_workspace"] = profile.memory.library_workspace;
  memory["tables"] = profile.memory.tables;
  memory["calls"] = ordered_json::array();
  for (const auto& [key, need] : profile.memory.calls) {
    ordered_json& one = memory["calls"].emplace_back(written(key));
    one["saved"] = need.saved;
    one["workspace"] = need.workspace;
    one["workspace_bound"] = need.workspace_bound;
  }
  ordered_json root;
  root["schema"] = kSchema;
  root["key"] = profile.key;
  root["machine"] = profile.machine;
  root["compute_dtype"] = transformers_name(profile.compute);
  root["outside_bytes"] = profile.outside;
  root["rates"] = written(profile.rates);
  root["memory"] = std::move(memory);
  return root.dump(1) + "\n";
}

StoredProfile parse_profile(const std::string& text, const std::string& file) {
  const json tree = parse_json(text, file, ExitCode::kConfig);
  const Reader root(tree, file, "");
  // Before the keys: another schema has others.
  if (root.whole("schema", 0) != kSchema) {
    root.refuse("schema", fmt::format("{}: this program reads no other", kSchema));
  }
  root.know(std::initializer_list<std::string_view>{"schema", "key", "machine", "compute_dtype", "outside_bytes",
                                                    "rates", "memory"});
  StoredProfile profile;
  profile.key = root.text("key", "");
  profile.machine = root.text("machine");
  profile.compute = read_compute(root);
  profile.outside = root.whole("outside_bytes", 0);
  profile.rates = read_rates(root.object("rates"));
  profile.memory = read_memory(root.object("memory"));
  return profile;
}

}  // namespace protrain
