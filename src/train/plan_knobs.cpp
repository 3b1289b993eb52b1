#include "train/plan_knobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "plan/plan_json.h"

namespace protrain {

using nlohmann::json;

namespace {

constexpr std::string_view kCounts[] = {"n_swap", "n_keep_light", "n_recompute", "n_recompute_host", "swap_interval"};
// Of a plan.json: results, not knobs.
constexpr std::string_view kResults[] = {"predicted_device_bytes", "layout", "memory", "prediction"};
// Of the answer of `protrain plan --json`, beside its plan.
constexpr std::string_view kOfAnAnswer[] = {"schema",      "fits",   "estimate",   "machine", "model",  "batch",
                                            "description", "memory", "prediction", "notes",   "missing"};

std::string read_plan(Files& files, const std::string& path, const std::string& key) {
  try {
    return files.read_text(path);
  } catch (const Error& error) {
    fail(ExitCode::kConfig, "{}: {}; it may be a file such as plan.json, or the knobs themselves: {{order: layer}}",
         key, error.what());
  }
}

// Of an answer its plan; knobs as they are.
json plan_of(json root, const std::string& source) {
  const auto plan = root.find("plan");
  if (plan == root.end() || !plan->is_object()) return root;
  for (const auto& [key, value] : root.items()) {
    if (key == "plan" || std::ranges::find(kOfAnAnswer, key) != std::end(kOfAnAnswer)) continue;
    fail(ExitCode::kConfig,
         "{}: unknown key '{:.80}' beside 'plan': it must be knobs, or an answer of protrain plan --json", source, key);
  }
  return *plan;
}

}  // namespace

PlanKnobs::PlanKnobs(Files& files, const TrainConfig& config) : recompute_(config.recompute) {
  json knobs = json::object();
  if (!config.plan.empty()) {
    const bool text = config.plan.starts_with('{');
    const std::string key = config.is_given("plan") ? config.given.at("plan") + ": plan" : "plan";
    source_ = text ? key : config.plan;
    knobs = parse_json(text ? config.plan : read_plan(files, config.plan, key), source_, ExitCode::kConfig);
    if (!knobs.is_object()) fail(ExitCode::kConfig, "{}: not a plan: it must be an object of knobs", source_);
    knobs = plan_of(std::move(knobs), source_);
    for (const std::string_view key : kResults) knobs.erase(std::string(key));
  }
  if (config.chunk_bytes.bytes > 0) {
    if (knobs.contains("chunk_bytes")) {
      fail(ExitCode::kConfig, "{}: chunk_bytes is set here and as a key of its own: drop one", source_);
    }
    knobs["chunk_bytes"] = config.chunk_bytes.bytes;
  }
  json_ = knobs.dump();
  if (const auto key = activation_key(); key && recompute_ != Switch::kAuto) {
    fail(ExitCode::kConfig, "{}: {} is set here, and recompute as a key of its own: drop one", source_, *key);
  }
}

bool PlanKnobs::any() const { return json_ != "{}"; }

bool PlanKnobs::sets(std::string_view key) const { return json::parse(json_).contains(key); }

std::optional<std::string_view> PlanKnobs::activation_key() const {
  if (sets("activation")) return "activation";
  const auto* const count = std::ranges::find_if(kCounts, [this](std::string_view key) { return sets(key); });
  return count == std::end(kCounts) ? std::nullopt : std::optional(*count);
}

SearchSpace PlanKnobs::space(const ModelSpec& spec, DType compute) const {
  const json given = json::parse(json_);
  // Read as a whole plan: what is not set takes a value that refuses nothing.
  json whole = given;
  if (!sets("n_persist")) {
    json size = {{"chunk_bytes", 1}};  // as many chunks as there can be
    if (sets("chunk_bytes")) size["chunk_bytes"] = given["chunk_bytes"];
    const Bytes chunk_bytes = parse_plan(size.dump(), source_, spec, compute).chunk_bytes;
    whole["n_persist"] = std::ranges::count(make_chunks(spec, chunk_bytes, compute), BlockKind::kLayer, &Chunk::kind);
  }
  const Plan plan = parse_plan(whole.dump(), source_, spec, compute);

  SearchSpace space;
  space.may_keep = recompute_ != Switch::kTrue;
  space.may_recompute = recompute_ != Switch::kFalse;
  space.state_tier = plan.state_tier;
  const auto fix = [&](auto& knob, std::string_view key, const auto& value) {
    if (sets(key)) knob = value;
  };
  fix(space.chunk_bytes, "chunk_bytes", plan.chunk_bytes);
  fix(space.n_persist, "n_persist", plan.n_persist);
  fix(space.n_buffer, "n_buffer", plan.n_buffer);
  fix(space.gradient_slots, "gradient_slots", plan.gradient_slots);
  fix(space.offload_distance, "offload_distance", plan.offload_distance);
  fix(space.order, "order", plan.order);
  if (sets("activation")) space.activation = plan.activation;
  fix(space.n_swap, "n_swap", given.value("n_swap", 0));
  fix(space.n_keep_light, "n_keep_light", given.value("n_keep_light", 0));
  fix(space.n_recompute, "n_recompute", given.value("n_recompute", 0));
  fix(space.n_recompute_host, "n_recompute_host", given.value("n_recompute_host", 0));
  fix(space.swap_interval, "swap_interval", given.value("swap_interval", 0));
  const auto place = given.find("place");
  if (place == given.end()) return space;
  if (place->is_array()) {  // of chunks of one size
    space.chunk_bytes = plan.chunk_bytes;
    space.place = plan.place;
    return space;
  }
  // A place in words: what is not said is free.
  const auto of = [&](BlockKind kind) {
    const auto chunks = make_chunks(spec, plan.chunk_bytes, compute);
    const auto found = std::ranges::find(chunks, kind, &Chunk::kind);
    return plan.place.at(static_cast<std::size_t>(found - chunks.begin()));
  };
  if (place->contains("n_resident")) space.n_resident = place->at("n_resident").get<int>();
  if (place->contains("embedding")) space.embedding = of(BlockKind::kEmbedding);
  if (place->contains("head")) space.head = of(BlockKind::kHead);
  return space;
}

}  // namespace protrain
