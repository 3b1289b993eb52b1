#include "train/plan_knobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "plan/plan_json.h"

namespace protrain {

using nlohmann::json;

namespace {

constexpr std::string_view kCounts[] = {"n_swap", "n_keep_light", "n_recompute", "n_recompute_host", "swap_interval"};
// Of a plan.json: results, not knobs.
constexpr std::string_view kResults[] = {"predicted_device_bytes", "layout", "memory"};
constexpr int kMoreBuffers = 2, kMoreGradientSlots = 1;

}  // namespace

PlanKnobs::PlanKnobs(Files& files, const TrainConfig& config) : recompute_(config.recompute) {
  json knobs = json::object();
  if (!config.plan.empty()) {
    const bool text = config.plan.starts_with('{');
    source_ = text ? config.is_given("plan") ? config.given.at("plan") + ": plan" : "plan" : config.plan;
    if (!text && !files.exists(config.plan)) {
      fail(ExitCode::kConfig, "plan: {} does not exist; give a file such as plan.json, or the knobs themselves",
           config.plan);
    }
    knobs = parse_json(text ? config.plan : files.read_text(config.plan), source_, ExitCode::kConfig);
    if (!knobs.is_object()) fail(ExitCode::kConfig, "{}: not a plan: it must be an object of knobs", source_);
    for (const std::string_view key : kResults) knobs.erase(std::string(key));
  }
  if (const ByteSize otherwise = TrainConfig{}.chunk_bytes; !knobs.contains("chunk_bytes")) {
    knobs["chunk_bytes"] = config.chunk_bytes.bytes;
  } else if (config.chunk_bytes != otherwise) {
    fail(ExitCode::kConfig, "{}: chunk_bytes is set here and as a key of its own: drop one", source_);
  }
  json_ = knobs.dump();
  if (sets_activation() && recompute_ != Switch::kAuto) {
    fail(ExitCode::kConfig, "{}: activation is set here, and recompute as a key of its own: drop one", source_);
  }
}

bool PlanKnobs::sets(std::string_view key) const { return any() && json::parse(json_).contains(key); }

bool PlanKnobs::sets_activation() const {
  return sets("activation") || std::ranges::any_of(kCounts, [this](std::string_view key) { return sets(key); });
}

int PlanKnobs::body_chunks(const ModelSpec& spec, DType compute) const {
  json size = json::object();
  if (sets("chunk_bytes")) size["chunk_bytes"] = json::parse(json_)["chunk_bytes"];
  const Plan plan = parse_plan(size.dump(), source_, spec, compute);
  const auto chunks = make_chunks(spec, plan.chunk_bytes, compute);
  return static_cast<int>(std::ranges::count(chunks, BlockKind::kLayer, &Chunk::kind));
}

Plan PlanKnobs::plan(const ModelSpec& spec, DType compute, const Rung& rung) const {
  json given = any() ? json::parse(json_) : json::object();
  json knobs = json::object();
  int persist = rung.n_persist;
  if (const auto own = given.find("n_persist"); own != given.end() && own->is_number_integer()) {
    persist = static_cast<int>(std::clamp<double>(own->get<double>(), 0, 1e9));
  }
  knobs["n_persist"] = persist;
  const std::string_view ends = place_name(rung.ends);
  knobs["place"] = {{"n_resident", std::min(rung.n_resident, persist)}, {"embedding", ends}, {"head", ends}};
  if (!sets_activation()) knobs["activation"] = activation_name(rung.activation);
  // Of a place in words, what is not said is the rung's.
  if (const auto place = given.find("place"); place != given.end() && place->is_object()) {
    knobs["place"].update(*place);
    given.erase(place);
  }
  knobs.update(given);
  Plan plan = parse_plan(knobs.dump(), source_, spec, compute);
  const SlotNeed need = slot_need(spec, make_chunks(spec, plan.chunk_bytes, compute), plan);
  const auto slots = [&](int fewest, int more) { return fewest == 0 || rung.fewest_slots ? fewest : fewest + more; };
  if (!sets("n_buffer")) plan.n_buffer = slots(need.buffer, kMoreBuffers);
  if (!sets("gradient_slots")) plan.gradient_slots = slots(need.gradient, kMoreGradientSlots);
  return plan;
}

}  // namespace protrain
