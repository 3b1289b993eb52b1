#include "schedule/refine.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace protrain {
namespace {

// Which number of Rates tells how long the task takes.
struct Kind {
  Op op = Op::kRunBlock;
  Lane lane = Lane::kCompute;
  std::size_t call = 0;  // kRunBlock: Rates::calls
  bool graph_alone = false;
  auto operator<=>(const Kind&) const = default;
};

struct Sums {
  double measured = 0, simulated = 0;
};

void scale(Rates::Linear& line, double factor) {
  line.seconds *= factor;
  line.per_unit *= factor;
}

void apply(Rates& rates, const Kind& kind, double factor) {
  switch (kind.op) {
    case Op::kRunBlock:
      if (kind.graph_alone) {
        rates.calls[kind.call].graph_alone *= factor;
      } else {
        rates.calls[kind.call].steady *= factor;
        rates.calls[kind.call].rested *= factor;
        rates.calls[kind.call].graph_alone /= factor;  // its own time stays
      }
      break;
    case Op::kCopy: scale(kind.lane == Lane::kH2d ? rates.h2d : rates.d2h, factor); break;
    case Op::kUpdate: scale(kind.lane == Lane::kCpuUpdate ? rates.cpu_update : rates.gpu_update, factor); break;
    case Op::kNorm: scale(rates.norm, factor); break;
    case Op::kRound: scale(rates.round, factor); break;
    case Op::kFinishNorm: rates.finish_norm *= factor; break;
    default: break;  // a registered kind has no rate
  }
}

}  // namespace

Rates refine(const Rates& rates, const ModelSpec& spec, const std::vector<Chunk>& chunks, const Schedule& schedule,
             const BatchShape& batch, const Timeline& measured) {
  StepShape step;
  step.batch = batch;
  const Timeline simulated = simulate(schedule, task_times(schedule, spec, chunks, step, rates), rates);

  const auto kind_of = [&](const Task& task) {
    Kind kind = {task.op, task.lane};
    if (task.op != Op::kRunBlock) return kind;
    const CallKey key = {spec.blocks.at(static_cast<std::size_t>(task.what.block)).trace, task.what.pass,
                         task.what.light, batch, /*training=*/true};
    const auto found = std::ranges::find(rates.calls, key, &Rates::Call::key);
    PROTRAIN_CHECK(found != rates.calls.end(), "{}: no rate", task.name);
    kind.call = static_cast<std::size_t>(found - rates.calls.begin());
    kind.graph_alone = makes_graph_alone(task);
    return kind;
  };
  std::map<Kind, Sums> sums;
  for (const Span& span : measured.spans) {
    sums[kind_of(schedule.tasks.at(span.task))].measured += span.end_seconds - span.begin_seconds;
  }
  for (const Span& span : simulated.spans) {
    sums[kind_of(schedule.tasks.at(span.task))].simulated += span.end_seconds - span.begin_seconds;
  }
  Rates refined = rates;
  for (const auto& [kind, sum] : sums) {
    if (sum.measured > 0 && sum.simulated > 0) apply(refined, kind, sum.measured / sum.simulated);
  }
  return refined;
}

}  // namespace protrain
