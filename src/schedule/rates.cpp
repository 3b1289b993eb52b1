#include "schedule/rates.h"

#include <algorithm>

#include "base/error.h"

namespace protrain {

const Rates::Call& Rates::find(const CallKey& key) const {
  const auto call = std::find_if(calls.begin(), calls.end(), [&](const Call& one) { return one.key == key; });
  PROTRAIN_CHECK(call != calls.end(), "{}: no time of \"{}\", pass {}{}{}, {} x {} tokens", source, key.trace,
                 static_cast<int>(key.pass), key.light ? " light" : "", key.training ? "" : " evaluation",
                 key.shape.rows, key.shape.row_tokens);
  return *call;
}

bool makes_graph_alone(const Task& task) {
  return task.op == Op::kRunBlock && task.what.pass == Pass::kForwardKeep && task.block.output.bytes == 0;
}

Rates with_calls_of(const Rates& rates, const Profile& profile) {
  Rates result = rates;
  for (const Profile::Call& wanted : profile.calls) {
    const CallKey& key = wanted.key;
    if (std::ranges::find(rates.calls, key, &Rates::Call::key) != rates.calls.end()) continue;
    const auto alike = std::ranges::find_if(rates.calls, [&](const Rates::Call& call) {
      CallKey other = call.key;
      other.shape = key.shape;
      return other == key;
    });
    PROTRAIN_CHECK(alike != rates.calls.end(), "{}: no call like \"{}\", pass {}", rates.source, key.trace,
                   static_cast<int>(key.pass));
    const double share = static_cast<double>(key.shape.tokens()) / static_cast<double>(alike->key.shape.tokens());
    result.calls.push_back({key, alike->steady * share, alike->rested * share, alike->graph_alone});
  }
  return result;
}

}  // namespace protrain
