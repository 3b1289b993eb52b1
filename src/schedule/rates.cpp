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

}  // namespace protrain
