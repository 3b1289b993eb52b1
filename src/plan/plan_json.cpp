#include "plan/plan_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/edit_distance.h"
#include "base/error.h"
#include "base/json.h"

namespace protrain {

namespace {

using nlohmann::json;

constexpr int kSchema = 2;
constexpr int kMostOfNumber = 1'000'000'000;
constexpr Bytes kMostBytes = 9'000'000'000'000'000'000;
constexpr std::string_view kCountKeys[] = {"n_swap", "n_keep_light", "n_recompute", "n_recompute_host",
                                           "swap_interval"};

template <typename Names>
std::string_view nearest(std::string_view text, const Names& names) {
  return *std::min_element(std::begin(names), std::end(names), [&](std::string_view a, std::string_view b) {
    return edit_distance(text, a) < edit_distance(text, b);
  });
}

class Reader {
 public:
  Reader(const json& root, const std::string& file, const ModelSpec& spec, DType compute)
      : root_(root), file_(file), spec_(spec), compute_(compute) {}

  Plan read() {
    constexpr std::string_view kKeys[] = {"schema",         "chunk_bytes",
                                          "n_persist",      "n_buffer",
                                          "gradient_slots", "offload_distance",
                                          "order",          "activation",
                                          "n_swap",         "n_keep_light",
                                          "n_recompute",    "n_recompute_host",
                                          "swap_interval",  "place",
                                          "state_tier",     "predicted_device_bytes",
                                          "layout"};
    check_keys(root_, kKeys, "");
    if (const json* schema = find("schema"); schema != nullptr && *schema != kSchema) {
      refuse("schema", *schema, fmt::format("{}: this program reads no other", kSchema));
    }
    if (const json* bytes = find("chunk_bytes")) plan_.chunk_bytes = bytes_of(*bytes, "chunk_bytes");
    const auto chunks = make_chunks(spec_, plan_.chunk_bytes, compute_);
    const auto body = static_cast<int>(std::count_if(
        chunks.begin(), chunks.end(), [](const Chunk& chunk) { return chunk.kind == BlockKind::kLayer; }));
    plan_.n_persist = number("n_persist", 0, body);
    read_places(chunks);
    const SlotNeed need = slot_need(spec_, chunks, plan_);
    plan_.n_buffer = number("n_buffer", 0, std::min(2 * need.buffer, body - plan_.n_persist));
    plan_.gradient_slots = number("gradient_slots", 0, 2 * need.gradient);
    plan_.offload_distance = number("offload_distance", 1, plan_.offload_distance);
    if (const json* order = find("order")) {
      plan_.order = named(*order, "order", {Order::kMicroBatch, Order::kLayer}, order_name);
    }
    if (const json* tier = find("state_tier")) {
      plan_.state_tier = named(*tier, "state_tier", {Tier::kPageable, Tier::kPinned}, tier_name);
    }
    read_activation();
    if (const json* bytes = find("predicted_device_bytes"); bytes != nullptr && *bytes != 0) {
      plan_.predicted_device_bytes = bytes_of(*bytes, "predicted_device_bytes");
    }
    return plan_;
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const json& value, std::string_view right) const {
    fail(ExitCode::kConfig, "{}: {}: {}, must be {}", file_, key, shown(value), right);
  }

  template <typename Names>
  void check_keys(const json& object, const Names& known, std::string_view prefix) const {
    for (const auto& [key, value] : object.items()) {
      if (std::find(std::begin(known), std::end(known), key) != std::end(known)) continue;
      const std::string_view near = nearest(key, known);
      const bool meant = edit_distance(key, near) <= 1 + key.size() / 3;
      fail(ExitCode::kConfig, "{}: unknown key '{}{:.80}'; {}", file_, prefix, key,
           meant ? fmt::format("did you mean '{}{}'?", prefix, near)
                 : fmt::format("known are {}", fmt::join(known, ", ")));
    }
  }

  const json* find(std::string_view key) const {
    const auto found = root_.find(key);
    return found == root_.end() ? nullptr : &*found;
  }

  Bytes bytes_of(const json& value, std::string_view key) const {
    if (value.is_string()) {
      Bytes bytes = 0;
      try {
        bytes = parse_bytes(value.get_ref<const std::string&>());
      } catch (const Error&) {
        bytes = 0;  // refused below, with the key
      }
      if (bytes >= 1 && bytes <= kMostBytes) return bytes;
    } else if (value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 &&
               value.get<std::uint64_t>() <= std::uint64_t{kMostBytes}) {
      return value.get<Bytes>();
    }
    refuse(
        key, value,
        fmt::format("a whole number, 1 to {}, or a size such as 64MiB, 24GB or 1TiB (the largest unit)", kMostBytes));
  }

  int number(std::string_view key, int least, int otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number_integer() || value->get<double>() < least || value->get<double>() > kMostOfNumber) {
      refuse(key, *value, fmt::format("a whole number, {} to {}", least, kMostOfNumber));
    }
    return value->get<int>();
  }

  template <typename Value>
  Value named(const json& value, std::string_view key, const std::vector<Value>& all,
              std::string_view (*name)(Value)) const {
    std::vector<std::string_view> names;
    names.reserve(all.size());
    for (const Value one : all) names.push_back(name(one));
    if (!value.is_string()) refuse(key, value, fmt::format("one of {}", fmt::join(names, ", ")));
    const std::string& text = value.get_ref<const std::string&>();
    for (const Value one : all) {
      if (text == name(one)) return one;
    }
    refuse(key, value, fmt::format("one of {}; did you mean \"{}\"?", fmt::join(names, ", "), nearest(text, names)));
  }

  Activation activation_of(const json& value) const {
    std::vector<Activation> all;
    all.reserve(static_cast<std::size_t>(activation_count()));
    for (int mode = 0; mode < activation_count(); ++mode) all.push_back(static_cast<Activation>(mode));
    return named(value, "activation", all, activation_name);
  }

  UpdatePlace place_of(const json& value, std::string_view key) const {
    return named(value, key, {UpdatePlace::kResident, UpdatePlace::kCpu}, place_name);
  }

  void read_activation() {
    const std::size_t blocks = spec_.blocks.size();
    const json* given = find("activation");
    const std::string_view* count =
        std::find_if(std::begin(kCountKeys), std::end(kCountKeys), [this](auto key) { return find(key) != nullptr; });
    if (given == nullptr) {
      plan_.activation = interleave(spec_,
                                    {number("n_swap", 0, 0), number("n_keep_light", 0, 0), number("n_recompute", 0, 0),
                                     number("n_recompute_host", 0, 0)},
                                    number("swap_interval", 1, 2));
      return;
    }
    if (count != std::end(kCountKeys)) {
      fail(ExitCode::kConfig, "{}: activation and {} are both given: either one mode a block, or counts", file_,
           *count);
    }
    if (given->is_string()) {
      plan_.activation.assign(blocks, activation_of(*given));
    } else if (given->is_array() && (given->size() == blocks || given->size() + 2 == blocks)) {
      plan_.activation.assign(blocks, Activation::kKeep);
      auto mode = plan_.activation.begin() + (given->size() == blocks ? 0 : 1);
      for (const json& value : *given) *mode++ = activation_of(value);
    } else {
      refuse(
          "activation", *given,
          fmt::format("a mode, or a list with one for each of {} layers (or {} blocks, embedding and head included); "
                      "counts of layers are {}",
                      blocks - 2, blocks, fmt::join(kCountKeys, ", ")));
    }
  }

  void read_places(const std::vector<Chunk>& chunks) {
    int resident = plan_.n_persist;
    UpdatePlace embedding = UpdatePlace::kResident;
    UpdatePlace head = UpdatePlace::kResident;
    const json* given = find("place");
    if (given != nullptr && given->is_array()) {
      if (given->size() != chunks.size()) {
        fail(ExitCode::kConfig, "{}: place has {} entries, chunk_bytes {} makes {} chunks of this model{}", file_,
             given->size(), plan_.chunk_bytes, chunks.size(),
             find("chunk_bytes") == nullptr ? ": that is its default, set it beside such a list" : "");
      }
      for (const json& value : *given) plan_.place.push_back(place_of(value, "place"));
      return;
    }
    if (given != nullptr) {
      if (!given->is_object()) {
        refuse("place", *given,
               "a list with one of resident, cpu for each chunk, or {\"n_resident\", \"embedding\", \"head\"}");
      }
      constexpr std::string_view kKeys[] = {"n_resident", "embedding", "head"};
      check_keys(*given, kKeys, "place.");
      if (const auto value = given->find("n_resident"); value != given->end()) {
        if (!value->is_number_integer() || value->get<double>() < 0 || value->get<double>() > plan_.n_persist) {
          refuse(
              "place.n_resident", *value,
              fmt::format("a whole number, 0 to n_persist ({}): what streams is updated on the host", plan_.n_persist));
        }
        resident = value->get<int>();
      }
      if (const auto value = given->find("embedding"); value != given->end())
        embedding = place_of(*value, "place.embedding");
      if (const auto value = given->find("head"); value != given->end()) head = place_of(*value, "place.head");
    }
    int number = 0;
    for (const Chunk& chunk : chunks) {
      plan_.place.push_back(chunk.kind == BlockKind::kEmbedding ? embedding
                            : chunk.kind == BlockKind::kHead    ? head
                            : number++ < resident               ? UpdatePlace::kResident
                                                                : UpdatePlace::kCpu);
    }
  }

  const json& root_;
  const std::string& file_;
  const ModelSpec& spec_;
  const DType compute_;
  Plan plan_;
};

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

std::string_view activation_name(Activation mode) { return traits(mode).name; }

std::string_view place_name(UpdatePlace place) { return place == UpdatePlace::kResident ? "resident" : "cpu"; }

std::string_view order_name(Order order) { return order == Order::kMicroBatch ? "micro_batch" : "layer"; }

std::string plan_json(const Plan& plan, const Layout& layout) {
  nlohmann::ordered_json root;
  root["schema"] = plan.schema;
  root["chunk_bytes"] = plan.chunk_bytes;
  root["n_persist"] = plan.n_persist;
  root["n_buffer"] = plan.n_buffer;
  root["gradient_slots"] = plan.gradient_slots;
  root["offload_distance"] = plan.offload_distance;
  root["order"] = order_name(plan.order);
  root["activation"] = json::array();
  for (const Activation mode : plan.activation) root["activation"].push_back(activation_name(mode));
  root["place"] = json::array();
  for (const UpdatePlace place : plan.place) root["place"].push_back(place_name(place));
  root["state_tier"] = tier_name(plan.state_tier);
  root["predicted_device_bytes"] = plan.predicted_device_bytes;
  root["layout"] = json::array();
  for (const auto& [region, index, range, whole_run, at_peak] : layout.entries) {
    root["layout"].push_back({{"tier", tier_name(range.tier)},
                              {"region", region_name(region)},
                              {"index", index},
                              {"offset", range.offset},
                              {"bytes", range.bytes},
                              {"whole_run", whole_run},
                              {"at_peak", at_peak}});
  }
  return root.dump(1) + "\n";
}

Plan parse_plan(const std::string& text, const std::string& file, const ModelSpec& spec, DType compute) {
  const json root = parse_json(text, file, ExitCode::kConfig);
  if (!root.is_object()) fail(ExitCode::kConfig, "{}: a plan is a JSON object", file);
  return Reader(root, file, spec, compute).read();
}

}  // namespace protrain
