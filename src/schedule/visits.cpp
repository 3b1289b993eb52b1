#include "schedule/visits.h"

#include "base/error.h"

namespace protrain {

std::vector<Visit> visits(Id blocks, Order order, Graph graph, std::int64_t micro_batches, std::int64_t planned) {
  PROTRAIN_CHECK(micro_batches >= 1 && micro_batches <= planned, "{} micro-batches, planned are {}", micro_batches,
                 planned);
  const auto own = static_cast<Id>(micro_batches);
  const auto all = static_cast<Id>(planned);
  const Id forwards = graph == Graph::kEvaluate ? blocks : blocks - 1;
  std::vector<Visit> result;
  if (order == Order::kMicroBatch) {
    for (Id m = 0; m < own; ++m) {
      for (Id block = 0; block < forwards; ++block) result.push_back({block, m, false, true});
      if (graph != Graph::kTrain) continue;
      for (Id block = blocks - 1; block >= 0; --block) result.push_back({block, m, true, true});
    }
    return result;
  }
  for (Id block = 0; block < forwards; ++block) {
    for (Id m = 0; m < all; ++m) result.push_back({block, m, false, m < own});
  }
  if (graph == Graph::kTrain) {
    for (Id block = blocks - 1; block >= 0; --block) {
      for (Id m = all - 1; m >= 0; --m) result.push_back({block, m, true, m < own});
    }
  }
  return result;
}

}  // namespace protrain
