#include "search/bound.h"

#include <algorithm>

#include "base/error.h"

namespace protrain {

Bytes device_without_body(const ChunkSet& set, const PlaceSums& places, const ActivationSums& activations,
                          int gradient_slots) {
  const Figures& figures = set.figures;
  Bytes lent =
      std::max({figures.evaluation_peak, activations.forward_peak + places.lent_in_forward, places.lent_at_end});
  for (Id block = 0; block < figures.blocks; ++block) {
    lent = std::max(lent, activations.live[block] + places.lent[block]);
  }
  const Bytes weight = figures.element(Part::kWeight);
  Bytes device = figures.fixed_device + (places.any_host ? round_up(kControlBytes, kAlignment) : 0);
  device += places.resident_device + places.end_elements * weight;
  device += places.gradient_slot_elements(set, gradient_slots) * figures.element(Part::kGradient);
  return device + lent;
}

Bytes body_weights(const ChunkSet& set, const PlaceSums& places, int persist, int buffer) {
  return (places.host_before[persist] + set.slot_elements(persist, buffer)) * set.figures.element(Part::kWeight);
}

MemoryBound memory_bound(const ChunkSet& set, const PlaceSums& places, const ActivationSums& activations,
                         const SlotKnobs& slots) {
  // The last region of a tier need not fill its alignment.
  const auto unaligned = [](Bytes bytes) { return std::max<Bytes>(0, bytes - (kAlignment - 1)); };
  MemoryBound bound;
  bound.device = unaligned(device_without_body(set, places, activations, slots.gradient) +
                           body_weights(set, places, slots.persist, slots.buffer));
  bound.pinned = unaligned(set.figures.fixed_pinned + (places.any_host ? round_up(kControlBytes, kAlignment) : 0) +
                           places.pinned + activations.pinned);
  bound.pageable = places.pageable;
  return bound;
}

namespace {

class StepTime {
 public:
  StepTime(const ChunkSet& set, const PlaceSums& places, const ActivationSums& activations, Order order,
           const SlotKnobs& slots)
      : figures_(set.figures), places_(places), activations_(activations), layer_(order == Order::kLayer) {
    const int streamed = set.count() - slots.persist;
    const int buffer = std::min(slots.buffer, streamed);
    const auto bytes = [&](int first, int last) {
      return static_cast<double>((set.before[last] - set.before[first]) * figures_.element(Part::kWeight));
    };
    const double all = bytes(slots.persist, set.count());
    const double first = bytes(slots.persist, slots.persist + buffer);
    const double last = bytes(set.count() - buffer, set.count());
    // In a later pass the chunks that the last pass left in the slots are there.
    backward_loads_ = figures_.h2d(streamed - buffer, all - last);
    forward_loads_ = figures_.h2d(streamed - buffer, all - first);
    const double homes = figures_.h2d(places.load_count - streamed, places.load_bytes - all);
    first_loads_ = figures_.upload + (figures_.clip ? places.loads : places.loads - homes);
    late_loads_ = figures_.clip ? 0 : homes;
    // Of what the next block needs, the part that there is no slot for beside what this one holds.
    const auto without_slot = [&set](int slots_beyond) {
      return set.ahead > 0 ? std::clamp(1 - static_cast<double>(slots_beyond) / set.ahead, 0.0, 1.0) : 0;
    };
    stream_ = figures_.h2d(streamed, all);
    if (streamed > buffer) {
      late_ = without_slot(slots.buffer - set.fewest[static_cast<std::size_t>(slots.persist)]);
    }
    if (places.hosts > slots.gradient) {
      leaves_late_ = without_slot(slots.gradient - places.least_gradient_slots);
    }
    passes_ = layer_ ? 1 : figures_.micro_batches;
    const double moved = figures_.micro_batches;
    away_ = activations.copies > 0;
    in_ = figures_.h2d(moved * activations.copies, moved * activations.copied);
    out_ = figures_.d2h(moved * activations.copies, moved * activations.copied);
    h2d_ = first_loads_ + late_loads_ + passes_ * backward_loads_ + (passes_ - 1) * forward_loads_ + in_;
    d2h_ = places.gradients_out + out_ + figures_.results;
  }

  // Compute's seconds of a step, without the slow-down by other lanes.
  double compute(double share) const { return figures_.micro_batches * (forward(share) + backward(share)); }
  double pressure() const { return h2d_ + d2h_ + places_.updates_on_host + places_.updates_on_device; }

  // What `guess` adds is no bound: with no slot to spare a load waits for the call before it and the call for the load;
  // a gradient likewise; what leaves and comes back does so beside the calls from the first to the last of its layers,
  // and no later load passes it by.
  double least(double share, bool guess) const {
    const double calls = layer_ ? figures_.micro_batches : 1;  // of a block in one pass
    const double forward_pass = calls * forward(share);
    const double backward_pass = calls * backward(share);
    double seconds =
        std::max(figures_.upload + forward_pass, both(Lane::kCompute, forward_pass, Lane::kH2d, first_loads_));
    if (figures_.clip) {
      const double updates = places_.updates_on_host;
      seconds = std::max({seconds, both(Lane::kCompute, forward_pass, Lane::kCpuUpdate, updates),
                          both(Lane::kCpuUpdate, updates, Lane::kH2d, first_loads_)});
      for (const PlaceSums::Arrival& arrival : places_.arrivals) {
        const double before = calls * activations_.forward_before[arrival.block].at(share);
        seconds = std::max(seconds, arrival.seconds + forward_pass - before);
      }
    }
    const auto pass = [&](double calls_alone, double loads) {
      const double beside = both(Lane::kCompute, calls_alone, Lane::kH2d, loads);
      return guess && late_ > 0 ? std::max(beside, calls_alone + late_ * loads) : beside;
    };
    if (guess && late_ > 0) seconds = std::max(seconds, forward_pass + late_ * stream_);
    double turn_to_end = pass(backward_pass, backward_loads_);
    double begin_to_turn = pass(forward_pass, forward_loads_);
    if (guess && away_) {
      const double beside_out = calls * activations_.beside_out.at(share);
      const double beside_in = calls * activations_.beside_in.at(share);
      const double leaves = forward_pass - beside_out + both(Lane::kCompute, beside_out, Lane::kD2h, out_ / passes_);
      const double loads = activations_.layers_beside_in * backward_loads_;
      const double returns =
          backward_pass - beside_in + both(Lane::kCompute, beside_in, Lane::kH2d, in_ / passes_ + loads);
      seconds = std::max(seconds, leaves);
      begin_to_turn = std::max(begin_to_turn, leaves);
      turn_to_end = std::max(turn_to_end, returns);
    }
    seconds += (passes_ - 1) * (turn_to_end + begin_to_turn);
    if (guess && leaves_late_ > 0) {
      turn_to_end = std::max(turn_to_end, backward_pass + leaves_late_ * places_.gradients_out);
    }
    seconds += last_backward(backward_pass, turn_to_end);
    seconds = std::max(seconds, totals(compute(share)));
    return seconds * figures_.slowdown_floor + figures_.rates.between_steps;
  }

 private:
  double forward(double share) const { return activations_.forward.at(share); }
  double backward(double share) const { return activations_.backward.at(share); }

  double last_backward(double backward_pass, double compute_ends) const {
    const double out = places_.gradients_out;
    const double normed = std::max(compute_ends + places_.last_norm, places_.norms) + figures_.rates.finish_norm;
    double end = normed + std::max(places_.updates_on_device, figures_.results);
    end = std::max({end, both(Lane::kCompute, backward_pass, Lane::kD2h, out) + figures_.results,
                    both(Lane::kH2d, backward_loads_, Lane::kD2h, out) + figures_.results});
    if (!figures_.clip) {
      end = std::max({end, compute_ends + places_.last_on_host,
                      both(Lane::kCompute, backward_pass, Lane::kCpuUpdate, places_.updates_on_host)});
    }
    return end;
  }

  double totals(double compute) const {
    const double updates = places_.updates_on_host;
    return std::max({both(Lane::kCompute, compute, Lane::kH2d, h2d_), both(Lane::kCompute, compute, Lane::kD2h, d2h_),
                     both(Lane::kH2d, h2d_, Lane::kD2h, d2h_), both(Lane::kCpuUpdate, updates, Lane::kH2d, h2d_),
                     both(Lane::kCpuUpdate, updates, Lane::kD2h, d2h_)});
  }

  // The shortest time in which two lanes do their work while they slow each other down: the shorter one runs wholly
  // beside the other, or both by turns where that is faster.
  double both(Lane a, double work_a, Lane b, double work_b) const {
    const auto factor = [this](Lane of, Lane by) {
      return std::max(1.0, figures_.rates.slowdown[static_cast<std::size_t>(of)][static_cast<std::size_t>(by)]);
    };
    const double slow_a = factor(a, b);
    const double slow_b = factor(b, a);
    const double gain = 1 / slow_a + 1 / slow_b - 1;  // of a second side by side
    if (gain <= 0) return work_a + work_b;
    return work_a + work_b - gain * std::min(work_a * slow_a, work_b * slow_b);
  }

  const Figures& figures_;
  const PlaceSums& places_;
  const ActivationSums& activations_;
  const bool layer_;
  bool away_ = false;  // saved sets or inputs leave
  double passes_ = 1;
  double late_ = 0, leaves_late_ = 0;  // share of loads, gradients that find no slot to spare
  double stream_ = 0;                  // loads of all streamed chunks
  double first_loads_ = 0, forward_loads_ = 0, backward_loads_ = 0, late_loads_ = 0;
  double in_ = 0, out_ = 0, h2d_ = 0, d2h_ = 0;
};

}  // namespace

TimeBound time_bound(const ChunkSet& set, const PlaceSums& places, const ActivationSums& activations, Order order,
                     const SlotKnobs& slots) {
  const StepTime step(set, places, activations, order, slots);
  const auto share_of_load = [](double load) { return std::clamp(2 * load - 1, 0.0, 1.0); };
  const double steady = step.compute(1);
  TimeBound bound;
  // All steady, then with the load of that.
  bound.likely = step.least(1, true);
  bound.likely = step.least(bound.likely > 0 ? share_of_load(steady / bound.likely) : 1, true);
  // Calls follow the load of late (recent_load.h), whose mean over a step of T is the share L of T in which the lane
  // works. Its mean over the calls is no smaller (the lane works where the load is high), and the share of steady time
  // is convex in it: calls take together at least what they would at L. And L is at least least_ratio x steady / T, so
  // for any T: either the step takes T, or its calls have the share of that.
  const double load = bound.likely > 0 ? set.figures.least_ratio * steady / bound.likely : 1;
  bound.least = std::min(bound.likely, step.least(share_of_load(load), false));
  bound.pressure = step.pressure();
  return bound;
}

}  // namespace protrain
