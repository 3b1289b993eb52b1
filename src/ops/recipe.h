// How a tensor is made again in backward instead of being saved. Internal to ops/.
//
// Note [Recipes]
// With keep_light an operator gives its result along with a recipe: the kernel that made it, on what the operator saves
// for itself anyway. An operator that takes the result saves the recipe. Backward runs the kernel once, before the
// first node that wants the tensor, and lets go of it with the last; nodes of one graph run one after the other. A
// recipe's inputs are whole until then, as backward overwrites an operator's inputs only in the operator's own node,
// which runs after those of all that take its result.
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "ops/node.h"
#include "ops/ops.h"

namespace protrain::ops {

class Recipe {
 public:
  explicit Recipe(std::function<at::Tensor()> make) : make_(std::move(make)) {}

 private:
  friend class Kept;
  const std::function<at::Tensor()> make_;
  at::Tensor made_;  // while some but not all users have taken it
  int users_ = 0;
};

// What a node keeps of an operator's input. One thread at a time.
class Kept {
 public:
  Kept() = default;
  ~Kept() { reset(); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  void keep(const Source& source) {
    reset();
    recipe_ = source.recipe;
    if (recipe_ != nullptr) {
      ++recipe_->users_;
    } else {
      value_ = detached(source);
    }
  }

  bool by_recipe() const { return recipe_ != nullptr; }

  // Once; nothing is kept any more.
  at::Tensor take() {
    if (recipe_ == nullptr) return std::exchange(value_, {});
    if (!recipe_->made_.defined()) recipe_->made_ = recipe_->make_();
    at::Tensor made = recipe_->made_;
    reset();
    return made;
  }

  void reset() {
    value_.reset();
    if (recipe_ != nullptr && --recipe_->users_ == 0) recipe_->made_.reset();
    recipe_.reset();
  }

 private:
  at::Tensor value_;
  std::shared_ptr<Recipe> recipe_;
};

}  // namespace protrain::ops
