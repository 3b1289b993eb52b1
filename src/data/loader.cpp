#include "data/loader.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace protrain {

// Step s lives in slot s mod 2. The thread owns the slots of [taken + those filled, ...), the consumer that of `taken`
// while it copies, so the bytes need no lock: only the two counters and the error do.
struct Loader::State {
  struct Slot {
    std::unique_ptr<std::byte[]> bytes;
    StepBatch batch;
  };
  static constexpr std::int64_t kSlots = 2;

  const BatchSource& source;
  const std::int64_t end_step;
  std::array<Slot, kSlots> slots;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::int64_t taken;   // steps before this have been copied out
  std::int64_t filled;  // steps before this are in their slots
  std::exception_ptr error;
  bool stopping = false;
  double stalled_seconds = 0;
  std::thread thread;  // last: it uses all the others

  State(const BatchSource& batches, std::int64_t first_step, std::int64_t end)
      : source(batches), end_step(end), taken(first_step), filled(first_step) {
    const auto bytes = static_cast<std::size_t>(source.step_bytes());
    for (Slot& slot : slots) slot.bytes = std::make_unique_for_overwrite<std::byte[]>(bytes);
    thread = std::thread([this] { run(); });
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  Slot& slot_of(std::int64_t step) { return slots[static_cast<std::size_t>(step % kSlots)]; }

  void run() {
    for (std::int64_t step = taken_at_start(); step < end_step; ++step) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopping || step - taken < kSlots; });
        if (stopping) return;
      }
      std::exception_ptr failure;
      try {
        Slot& slot = slot_of(step);
        slot.batch = source.fill(step, slot.bytes.get());
      } catch (...) {
        failure = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex);
        if (failure) {
          error = failure;
        } else {
          filled = step + 1;
        }
      }
      changed.notify_all();
      if (failure) return;
    }
  }

  std::int64_t taken_at_start() {
    const std::lock_guard lock(mutex);
    return filled;
  }
};

Loader::Loader(const BatchSource& source, std::int64_t first_step, std::int64_t end_step) {
  PROTRAIN_CHECK(first_step >= 0 && first_step <= end_step, "steps {} to {}", first_step, end_step);
  state_ = std::make_unique<State>(source, first_step, end_step);
}

Loader::~Loader() = default;

StepBatch Loader::next(std::byte* to) {
  State& state = *state_;
  std::int64_t step = 0;
  {
    std::unique_lock lock(state.mutex);
    step = state.taken;
    PROTRAIN_CHECK(step < state.end_step, "step {} is past the loader's end", step);
    const auto ready = [&] { return state.filled > step || state.error != nullptr; };
    if (!ready()) {
      const auto begin = std::chrono::steady_clock::now();
      state.changed.wait(lock, ready);
      state.stalled_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    if (state.filled <= step) std::rethrow_exception(state.error);
  }
  const State::Slot& slot = state.slot_of(step);
  const StepBatch batch = slot.batch;
  std::memcpy(to, slot.bytes.get(), static_cast<std::size_t>(batch.micro_batches * batch_layout(batch.shape).bytes));
  {
    const std::lock_guard lock(state.mutex);
    state.taken = step + 1;
  }
  state.changed.notify_all();
  return batch;
}

double Loader::stalled_seconds() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stalled_seconds;
}

}  // namespace protrain
