#include "runtime/block_runner.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace protrain {

BlockRunner::BlockRunner(StepContext& context) : context_(context) {
  const ChunkStore& store = context.store;
  const auto where = places(store.spec(), context.chunks);
  for (Id block = 0; block < static_cast<Id>(store.spec().blocks.size()); ++block) {
    bound_.push_back({store.bind(block, false), store.bind(block, true), store.bind(block, false)});
    for (ParameterBytes& parameter : bound_.back()[kNoGradient]) parameter.gradient = nullptr;
    auto& own = chunks_.emplace_back();
    for (const Id parameter : store.spec().blocks[block].parameters) own.push_back(where[parameter].chunk);
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
  }
}

void BlockRunner::run(const Task& task, Stream& stream) {
  const Invocation& what = task.what;
  for (const Id chunk : chunks_.at(what.block)) {
    PROTRAIN_CHECK(context_.store.current(chunk), "{} would run on stale or other weights than those of chunk {}",
                   task.name, chunk);
  }
  const Context& context = context_.contexts.at(what.micro_batch);
  const auto address = [&](const Range& range) { return range.bytes > 0 ? context_.at(range) : nullptr; };

  BlockCall call;
  call.what = what;
  call.context = &context;
  call.parameters = bound_[what.block][!context.training ? kNoGradient : task.first ? kFirst : kAdding];
  call.stream = &stream;
  call.input = address(task.block.input);
  call.output = address(task.block.output);
  call.output_gradient = address(task.block.output_gradient);
  call.input_gradient = address(task.block.input_gradient);
  call.saved = address(task.block.saved);
  call.workspace = address(task.block.workspace);

  // By micro-batch: with Order::kLayer several are between their forward and their backward at one time.
  auto& saved = context_.saved.at(what.micro_batch * bound_.size() + what.block);
  Block& block = *context_.blocks.at(what.block);
  if (what.pass == Pass::kBackward) {
    block.backward(call, std::move(saved));
    saved = nullptr;
    return;
  }
  PROTRAIN_CHECK(saved == nullptr, "{} would drop a saved set that no backward has used", task.name);
  saved = block.forward(call);
  PROTRAIN_CHECK(what.pass == Pass::kForwardKeep || saved == nullptr, "{} kept a saved set", task.name);
}

}  // namespace protrain
