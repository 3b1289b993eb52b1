// What a decoder layer keeps between its forward and its backward: the modes, one row each.
//
// Note [A mode is a row]: whatever depends on a mode reads its row; nothing asks which mode it is. So a new mode is a
// row and, where the row asks for work of its own, a kind of task with a runner (register_op() in schedule/schedule.h,
// StepRunner::set_runner()). Rows are added at the start of a program, by one thread; thread-safe from then on.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace protrain {

// Of schedule/schedule.h, which stands above this layer: a row names them and knows no more.
enum class Op : std::uint8_t;
enum class Lane : std::uint8_t;

// The built-in modes; more of them follow by register_activation().
enum class Activation : std::uint8_t {
  kKeep,           // its saved set and its input
  kKeepLight,      // its light saved set and its input
  kSwap,           // nothing: light saved set and input go to the host and come back
  kRecompute,      // its input; forward runs again in backward
  kRecomputeHost,  // nothing: its input goes to the host and comes back, forward runs again
};
inline constexpr int kActivations = 5;  // built in

// One task more for each micro-batch: Task::access[0] is the layer's saved set on the device, which it may read and
// write, Task::what the call that wrote it or is about to read it. The saved set keeps its address and its size.
struct ActivationTask {
  Op op;
  Lane lane;
};

// What a mode means for the tasks of a layer.
struct ActivationTraits {
  std::string name;            // in files
  bool recompute = false;      // forward keeps nothing and runs again before backward
  bool light = false;          // kForwardKeep saves the light set
  bool offload_saved = false;  // its saved set goes to the host after forward and comes back before backward
  bool offload_input = false;  // its input likewise
  // After the forward that saved the set, before it leaves the device; before the backward, once it is back. The two
  // together must leave the bytes as they were.
  std::optional<ActivationTask> after_forward = std::nullopt, before_backward = std::nullopt;
};
const ActivationTraits& traits(Activation);  // InternalError for a mode without a row

// InternalError for a name that is taken, and for what cannot be: with recompute no saved set outlives the forward.
Activation register_activation(ActivationTraits);
int activation_count();  // built in and registered; their values are 0 to that

}  // namespace protrain
