// Plans of small models for tests of this layer: a model, what its blocks need, and plans drawn over all knobs.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "schedule/layout.h"
#include "schedule/schedule.h"

namespace protrain::test {

// Embedding, `layers` layers of two matrices and a bias, tied or untied head with a norm.
inline ModelSpec make_model(Id layers, bool tied) {
  ModelSpec spec;
  spec.hidden = 10;
  spec.vocabulary = 31;
  spec.tied = tied;
  const auto add = [&](std::vector<std::int64_t> shape) {
    ParameterSpec parameter;
    const auto id = static_cast<Id>(spec.parameters.size());
    parameter.name = fmt::format("p{}", id);
    parameter.shape = std::move(shape);
    parameter.group = id;
    spec.parameters.push_back(parameter);
    spec.blocks.back().parameters.push_back(id);
    return id;
  };
  spec.blocks.push_back({BlockKind::kEmbedding, -1, "embedding", {}});
  const Id table = add({31, 10});
  for (Id layer = 0; layer < layers; ++layer) {
    spec.blocks.push_back({BlockKind::kLayer, layer, "layer", {}});
    add({10, 10});
    add({70, 10});
    add({10});
  }
  spec.blocks.push_back({BlockKind::kHead, -1, "head", {}});
  add({10});
  if (tied) {
    spec.blocks.back().parameters.push_back(table);
  } else {
    add({31, 10});
  }
  return spec;
}

// What calls need, as multiples of an activation: those of a gated MLP layer, roughly.
inline Profile make_profile(const ModelSpec& spec, const RunShape& shape) {
  Profile profile;
  profile.tables = 700;
  profile.library_workspace = 4096;
  std::set<std::string> traces;
  for (const BlockSpec& block : spec.blocks) {
    if (!traces.insert(block.trace).second) continue;
    const auto add = [&](Pass pass, bool light, const BatchShape& batch, bool training, double saved,
                         double workspace) {
      const auto activation = static_cast<double>(batch.tokens() * spec.hidden * size_of(shape.compute));
      CallMemory memory;
      memory.saved = static_cast<Bytes>(saved * activation);
      memory.workspace = static_cast<Bytes>(workspace * activation);
      memory.workspace_bound = memory.workspace;
      profile.calls.push_back({{block.trace, pass, light, batch, training}, memory});
    };
    for (const BatchShape& batch : shape.train_shapes) {
      switch (block.kind) {
        case BlockKind::kEmbedding:
          add(Pass::kForwardKeep, false, batch, true, 0, 0.5);
          add(Pass::kBackward, false, batch, true, 0, 1);
          break;
        case BlockKind::kLayer:
          add(Pass::kForward, false, batch, true, 0, 5);
          for (const bool light : {false, true}) {
            add(Pass::kForwardKeep, light, batch, true, light ? 9 : 15, 4);
            add(Pass::kBackward, light, batch, true, 0, light ? 12 : 10);
          }
          break;
        case BlockKind::kHead: add(Pass::kBackward, false, batch, true, 0, 8); break;
      }
    }
    for (const BatchShape& batch : shape.eval_shapes) add(Pass::kForward, false, batch, false, 0, 5);
  }
  return profile;
}

// One value of each knob, as a number below the knob's count.
struct Knobs {
  enum Name {
    kModel,
    kCompute,
    kAccumulation,
    kChunk,
    kPersist,
    kBuffer,
    kGradients,
    kModes,
    kPlaces,
    kOrder,
    kDistance,
    kKnobs
  };
  static constexpr int kCounts[kKnobs] = {5, 2, 2, 4, 4, 2, 2, 8, 5, 2, 3};
  int value[kKnobs] = {};
};

struct Case {
  ModelSpec spec;
  RunShape shape;
  Profile profile;
  Plan plan;
  std::vector<Chunk> chunks;
  Layout bytes;
  std::string text;

  Case(ModelSpec model, RunShape run, Plan wanted)
      : spec(std::move(model)), shape(std::move(run)), plan(std::move(wanted)) {
    profile = make_profile(spec, shape);
    chunks = make_chunks(spec, plan.chunk_bytes, shape.compute);
    bytes = layout(spec, chunks, shape, profile, plan);
  }

  StepShape train_step() const {
    StepShape step;
    step.batch = shape.train_shapes[0];
    step.micro_batches = shape.accumulation;
    return step;
  }
  StepShape evaluation_step() const {
    StepShape step;
    step.graph = Graph::kEvaluate;
    step.batch = shape.eval_shapes[0];
    step.micro_batches = shape.eval_micro_batches;
    return step;
  }
  Schedule expand(const StepShape& step) const {
    return protrain::expand(spec, chunks, shape, profile, plan, bytes, step);
  }
  std::vector<Id> host_chunks() const {
    std::vector<Id> result;
    for (Id chunk = 0; chunk < static_cast<Id>(chunks.size()); ++chunk) {
      if (plan.place[chunk] == UpdatePlace::kCpu) result.push_back(chunk);
    }
    return result;
  }
};

inline RunShape small_run(DType compute, std::int64_t accumulation) {
  RunShape shape;
  shape.compute = compute;
  shape.accumulation = accumulation;
  shape.train_shapes = {{2, 8, 2, false}, {3, 4, 3, false}};
  shape.eval_shapes = {{3, 9, 3, false}};
  shape.eval_micro_batches = 2;
  return shape;
}

inline Case make_case(const Knobs& knobs) {
  const auto& v = knobs.value;
  ModelSpec spec =
      make_model(std::vector<Id>{3, 8, 1, 8, 0}[v[Knobs::kModel]], v[Knobs::kModel] == 1 || v[Knobs::kModel] == 2);
  const RunShape shape =
      small_run(v[Knobs::kCompute] == 0 ? DType::kF32 : DType::kBf16, v[Knobs::kAccumulation] == 0 ? 1 : 4);
  // One tensor; a layer cut in two; chunks that span layers; the whole model.
  Plan plan = resident_plan(spec, shape, std::vector<Bytes>{1, 4000, 9000, kMiB}[v[Knobs::kChunk]]);
  const auto chunks = make_chunks(spec, plan.chunk_bytes, shape.compute);
  const int body = plan.n_persist;
  plan.n_persist = std::vector<int>{0, body, body / 2, std::min(1, body)}[v[Knobs::kPersist]];
  plan.order = v[Knobs::kOrder] == 0 ? Order::kMicroBatch : Order::kLayer;
  plan.offload_distance = std::vector<int>{2, 1, 5}[v[Knobs::kDistance]];
  int number = 0;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    // all that can stay / nothing / edges on the host / the body on the host / every other one
    const int places = v[Knobs::kPlaces];
    bool host = places == 1 || (places == 4 && chunk % 2 == 0);
    if (chunks[chunk].kind == BlockKind::kLayer) {
      const bool streams = number++ >= plan.n_persist;
      host = host || places == 3 || streams;
    } else {
      host = host || places == 2;
    }
    plan.place[chunk] = host ? UpdatePlace::kCpu : UpdatePlace::kResident;
  }
  const SlotNeed need = slot_need(spec, chunks, plan);
  plan.n_buffer = need.buffer + v[Knobs::kBuffer] * 2;
  plan.gradient_slots = need.gradient + v[Knobs::kGradients];
  for (std::size_t block = 0; block < spec.blocks.size(); ++block) {
    // one mode for all; two mixtures; the interleaved layout
    const int modes = v[Knobs::kModes];
    if (modes < kActivations) plan.activation[block] = static_cast<Activation>(modes);
    if (modes == 5) plan.activation[block] = static_cast<Activation>(block % kActivations);
    if (modes == 6) plan.activation[block] = static_cast<Activation>((block * 7 + 2) % kActivations);
  }
  const auto layers = static_cast<int>(spec.blocks.size()) - 2;
  if (v[Knobs::kModes] == 7) plan.activation = interleave(spec, {layers / 3, layers / 6, layers / 3, layers / 6});
  Case one(std::move(spec), shape, plan);
  for (const int value : v) one.text += fmt::format("{} ", value);
  return one;
}

// Few draws in which every pair of values of every two knobs occurs.
inline std::vector<Knobs> pairwise_cover() {
  std::set<std::array<int, 4>> open;
  for (int a = 0; a < Knobs::kKnobs; ++a) {
    for (int b = a + 1; b < Knobs::kKnobs; ++b) {
      for (int x = 0; x < Knobs::kCounts[a]; ++x) {
        for (int y = 0; y < Knobs::kCounts[b]; ++y) open.insert({a, b, x, y});
      }
    }
  }
  std::mt19937 random(1);
  std::vector<Knobs> cover;
  while (!open.empty()) {
    Knobs best;
    int most = -1;
    for (int attempt = 0; attempt < 40; ++attempt) {
      Knobs knobs;
      for (int i = 0; i < Knobs::kKnobs; ++i) knobs.value[i] = static_cast<int>(random() % Knobs::kCounts[i]);
      const auto& [a, b, x, y] = *open.begin();
      knobs.value[a] = x;
      knobs.value[b] = y;
      int gain = 0;
      for (const auto& [i, j, p, q] : open) gain += knobs.value[i] == p && knobs.value[j] == q ? 1 : 0;
      if (gain > most) {
        most = gain;
        best = knobs;
      }
    }
    cover.push_back(best);
    std::erase_if(open,
                  [&](const auto& pair) { return best.value[pair[0]] == pair[2] && best.value[pair[1]] == pair[3]; });
  }
  return cover;
}

inline Knobs random_knobs(std::mt19937& random) {
  Knobs knobs;
  for (int i = 0; i < Knobs::kKnobs; ++i) knobs.value[i] = static_cast<int>(random() % Knobs::kCounts[i]);
  return knobs;
}

}  // namespace protrain::test
