// A model small enough to count by hand, for tests of this layer.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace protrain::test {

inline ParameterSpec parameter(std::string name, std::vector<std::int64_t> shape, Id group) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.group = group;
  return spec;
}

// Embedding (2), three layers of a lone bias and a group of two, tied head with a norm.
inline ModelSpec small_model() {
  ModelSpec spec;
  spec.hidden = 10;
  spec.vocabulary = 31;
  spec.tied = true;
  spec.parameters = {parameter("wte", {31, 10}, 0), parameter("wpe", {16, 10}, 1)};
  spec.blocks.push_back({BlockKind::kEmbedding, -1, "embedding", {0, 1}});
  for (Id layer = 0; layer < 3; ++layer) {
    const auto first = static_cast<Id>(spec.parameters.size());
    spec.parameters.push_back(parameter("bias", {10}, first));
    spec.parameters.push_back(parameter("gate", {256, 2}, first + 1));
    spec.parameters.push_back(parameter("up", {100, 7}, first + 1));
    spec.blocks.push_back({BlockKind::kLayer, layer, "layer", {first, first + 1, first + 2}});
  }
  const auto norm = static_cast<Id>(spec.parameters.size());
  spec.parameters.push_back(parameter("norm", {10}, norm));
  spec.blocks.push_back({BlockKind::kHead, -1, "head", {norm, 0}});
  return spec;
}

inline RunShape small_run(DType compute, std::int64_t accumulation) {
  RunShape shape;
  shape.compute = compute;
  shape.accumulation = accumulation;
  shape.train_shapes = {{2, 8, 2, false}, {1, 12, 4, true}};
  shape.eval_shapes = {{3, 16, 3, false}};
  shape.eval_micro_batches = 2;
  return shape;
}

}  // namespace protrain::test
