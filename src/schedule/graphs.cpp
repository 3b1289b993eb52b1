// The graphs, put together from their parts.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "schedule/expansion.h"

namespace protrain {

namespace {

void check(const Expansion& expansion) {
  const auto& [graph, batch, micro_batches, batch_slot, clip, pending_slot, pending, slots] = expansion.step;
  PROTRAIN_CHECK(batch_slot == 0 || batch_slot == 1, "batch slot {}", batch_slot);
  PROTRAIN_CHECK(pending_slot == 0 || pending_slot == 1, "pending slot {}", pending_slot);
  PROTRAIN_CHECK(graph != Graph::kEvaluate || pending.empty(), "an evaluation with updates pending");
  PROTRAIN_CHECK(std::is_sorted(pending.begin(), pending.end(), std::less_equal<>()), "pending chunks do not ascend");
  for (const Id chunk : pending) PROTRAIN_CHECK(expansion.facts.on_host(chunk), "chunk {} is never pending", chunk);
}

std::vector<Id> first_contents(const Expansion& expansion) {
  const auto& weight = expansion.facts.slots.weight;
  const Id slots = weight.empty() ? 0 : 1 + *std::max_element(weight.begin(), weight.end());
  std::vector<Id> contents = expansion.step.slots;
  if (contents.empty()) contents.assign(slots, -1);
  PROTRAIN_CHECK(contents.size() == static_cast<std::size_t>(slots), "{} slots, the plan uses {}", contents.size(),
                 slots);
  return contents;
}

void add_drain(Expansion& expansion, std::vector<Id>& contents) {
  const auto& slots = expansion.facts.slots.weight;
  for (const Id chunk : expansion.step.pending) {
    if (slots[chunk] < 0) {
      add_load(expansion, chunk);
      continue;
    }
    add_host_update(expansion, chunk, true);
    if (contents[slots[chunk]] == chunk) contents[slots[chunk]] = -1;
  }
}

// What runs at its visits: everything that the link brings before them, the calls, and what a backward completes.
class Walk {
 public:
  Walk(Expansion& expansion, std::vector<Id>& contents)
      : expansion_(expansion),
        facts_(expansion.facts),
        training_(expansion.step.graph == Graph::kTrain),
        visits_(visits(facts_.blocks, facts_.plan.order, expansion.step.graph, expansion.step.micro_batches,
                       training_ ? facts_.shape.accumulation : facts_.shape.eval_micro_batches)) {
    transfers_ = plan_loads(expansion, visits_, contents);
    const auto copies = plan_copies(expansion, visits_);
    transfers_.insert(transfers_.end(), copies.begin(), copies.end());
    std::stable_sort(transfers_.begin(), transfers_.end(), [](const Transfer& a, const Transfer& b) {
      const auto key = [](const Transfer& t) {
        return std::tuple(t.position, t.kind != Transfer::Kind::kCopyOut, t.need, t.kind);
      };
      return key(a) < key(b);
    });
    losses_left_ = expansion.step.micro_batches;
  }

  void run() {
    auto transfer = transfers_.begin();
    for (std::int64_t number = 0; number < static_cast<std::int64_t>(visits_.size()); ++number) {
      for (; transfer != transfers_.end() && transfer->position == number; ++transfer) add(*transfer);
      const Visit& visit = visits_[number];
      if (visit.present) call(visit);
      finish_late();
      if (visit.present && visit.backward) after_backward(visit);
    }
    finish_late();
  }

 private:
  void add(const Transfer& transfer) {
    switch (transfer.kind) {
      case Transfer::Kind::kCopyOut: add_copy_out(expansion_, transfer.block, transfer.micro_batch); break;
      case Transfer::Kind::kCopyIn: add_copy_in(expansion_, transfer.block, transfer.micro_batch); break;
      case Transfer::Kind::kLoad: add_load(expansion_, transfer.chunk); break;
    }
  }

  void call(const Visit& visit) {
    if (!training_) {
      add_evaluation(expansion_, visit);
    } else if (visit.backward) {
      add_backward(expansion_, visit);
    } else {
      add_forward(expansion_, visit);
    }
  }

  void after_backward(const Visit& visit) {
    if (visit.block + 1 == facts_.blocks && --losses_left_ == 0 && !expansion_.step.clip && facts_.any_on_host()) {
      add_control(expansion_, true);
    }
    const bool last = facts_.plan.order == Order::kLayer ? visit.micro_batch == 0
                                                         : visit.micro_batch + 1 == expansion_.step.micro_batches;
    if (!last) return;
    // Backward visits blocks in reverse: a chunk's gradient is complete after the backward of its first block.
    for (auto use = facts_.uses[visit.block].rbegin(); use != facts_.uses[visit.block].rend(); ++use) {
      if (facts_.first_block[use->chunk] != visit.block) continue;
      const GradientRegions& regions = facts_.gradients[use->chunk];
      if (regions.sum == regions.wire) {
        add_finished_gradient(expansion_, use->chunk);
      } else {
        late_.push_back(use->chunk);  // one call later, so that the call need not wait for the sum's bytes
      }
    }
  }

  void finish_late() {
    for (const Id chunk : late_) add_finished_gradient(expansion_, chunk);
    late_.clear();
  }

  Expansion& expansion_;
  const Facts& facts_;
  const bool training_;
  const std::vector<Visit> visits_;
  std::vector<Transfer> transfers_;
  std::int64_t losses_left_ = 0;
  std::vector<Id> late_;
};

}  // namespace

std::vector<Id> add_graph(Expansion& expansion) {
  check(expansion);
  std::vector<Id> contents = first_contents(expansion);
  if (expansion.step.graph == Graph::kDrain) {
    add_drain(expansion, contents);
    return contents;
  }
  PROTRAIN_CHECK(expansion.step.batch.tokens() >= 1, "an empty step");
  const Facts& facts = expansion.facts;
  add_upload(expansion);
  Walk(expansion, contents).run();
  add_control(expansion, false);
  if (expansion.step.graph == Graph::kTrain) {
    add_resident_updates(expansion);
    if (!expansion.step.clip) {
      for (Id chunk = 0; chunk < static_cast<Id>(facts.chunks.size()); ++chunk) {
        if (!facts.on_host(chunk)) continue;
        if (facts.slots.weight[chunk] < 0) {
          add_load(expansion, chunk);
        } else if (Id& content = contents[facts.slots.weight[chunk]]; content == chunk) {
          content = -1;
        }
      }
    }
  }
  return contents;
}

}  // namespace protrain
