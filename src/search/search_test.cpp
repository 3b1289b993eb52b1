#include "search/search.h"

#include <gtest/gtest.h>

#include <ctime>

#include "plan/plan_json.h"
#include "schedule/test_case.h"
#include "schedule/test_rates.h"
#include "search/space.h"
#include "search/test_machine.h"

namespace protrain {
namespace {

constexpr Bytes kPlenty = Bytes{1} << 50;

// A small model on a machine drawn by a seed.
struct Small {
  ModelSpec spec;
  RunShape shape;
  Profile profile;
  Rates rates;

  Small(Id layers, std::int64_t accumulation, unsigned seed, bool slows = true)
      : spec(test::make_model(layers, seed % 2 == 0)),
        shape(test::small_run(DType::kBf16, accumulation)),
        profile(test::make_profile(spec, shape)) {
    std::mt19937 random(seed);
    rates = test::random_rates(profile, random, slows);
  }

  SearchResult search(Bytes device, Bytes host, const SearchSpace& space = {}, const SearchLimits& how = {}) const {
    MemoryLimits limits;
    limits.device = device;
    limits.host = host;
    return protrain::search(spec, shape, profile, rates, limits, space, {}, how);
  }
  // Bytes of the plan with all or nothing on the device.
  Bytes most() const {
    return plan_memory(spec, shape, profile, resident_plan(spec, shape, kMiB)).layout.bytes(Tier::kDevice);
  }
};

// The fastest plan of a space by simulating all of it; negative when none fits.
struct Brute {
  double seconds = -1;
  int plans = 0, fitting = 0;

  Brute(const Small& small, const SearchSpace& knobs, Bytes device, Bytes host) {
    const Figures figures(small.spec, small.shape, small.profile, small.rates, {});
    const Space space(figures, knobs);
    MemoryLimits limits;
    limits.device = device;
    limits.host = host;
    for (const Point& point : space.all()) {
      ++plans;
      const PlannedMemory memory = plan_memory(small.spec, small.shape, small.profile, space.plan(point));
      if (!shortfall(MemoryNeed(memory.layout), limits).fits()) continue;
      ++fitting;
      const double one =
          predict(small.spec, memory.chunks, small.shape, small.profile, memory.plan, memory.layout, small.rates)
              .step_seconds;
      if (seconds < 0 || one < seconds) seconds = one;
    }
  }
};

// Spaces small enough for brute force, each with other knobs free.
SearchSpace restricted(int which, Id layers) {
  SearchSpace space;
  space.chunk_a_layer = true;
  space.offload_distance = 2;
  space.order = Order::kMicroBatch;
  space.gradient_slots = 2;
  switch (which) {
    case 0:  // weights and updates
      space.n_swap = space.n_keep_light = space.n_recompute_host = 0;
      space.n_recompute = layers / 2;
      space.n_buffer = 3;
      break;
    case 1:  // activations
      space.n_persist = layers / 2;
      space.n_resident = 1;
      space.n_buffer = 3;
      space.embedding = space.head = UpdatePlace::kCpu;
      space.n_swap = layers > 8 ? 1 : 2;
      break;
    case 2:  // slots, order, distance
      space.order.reset();
      space.offload_distance.reset();
      space.gradient_slots.reset();
      space.n_swap = 1;
      space.n_keep_light = 1;
      space.n_recompute = 0;
      space.n_recompute_host = 1;
      space.n_resident = 0;
      space.n_persist = 2;
      space.embedding = UpdatePlace::kResident;
      space.head = UpdatePlace::kResident;
      break;
    default:  // chunk size and a bit of everything
      space.chunk_a_layer = false;
      space.n_swap = space.n_recompute_host = 0;
      space.n_keep_light = 0;
      space.n_resident = 0;
      space.n_buffer = 4;
      space.head = UpdatePlace::kCpu;
      break;
  }
  return space;
}

TEST(Search, AgreesWithBruteForce) {
  int cases = 0;
  int feasible = 0;
  double worst_of_grid = 0;
  for (unsigned seed = 1; seed <= 16; ++seed) {
    const Id layers = std::vector<Id>{3, 5, 8, 12}[seed / 4 % 4];
    const Small small(layers, seed % 3 == 0 ? 4 : 1, seed, seed % 5 != 0);
    const SearchSpace space = restricted(static_cast<int>(seed % 4), layers);
    std::mt19937 random(seed);
    const auto device = static_cast<Bytes>(static_cast<double>(small.most()) * test::between(random, 0.3, 1.0));
    const Bytes host = seed % 7 == 0 ? 60000 : kPlenty;
    SCOPED_TRACE(fmt::format("seed {}, {} layers, device {}, host {}", seed, layers, device, host));
    const Brute brute(small, space, device, host);
    SearchLimits all;
    all.caution = 0;
    const SearchResult found = small.search(device, host, space, all);
    EXPECT_EQ(found.space, brute.plans);
    EXPECT_EQ(found.missing.fits(), brute.fitting > 0);
    ++cases;
    if (brute.fitting == 0) continue;
    ++feasible;
    EXPECT_LE(found.prediction.step_seconds, brute.seconds * (1 + all.tolerance) + 1e-12);
    EXPECT_GE(found.prediction.step_seconds, brute.seconds * (1 - 1e-9));
    EXPECT_LE(found.simulated, 500);
    // The way of large spaces, on this one.
    SearchLimits grid = all;
    grid.enumerate = 0;
    const SearchResult refined = small.search(device, host, space, grid);
    EXPECT_TRUE(refined.missing.fits());
    if (refined.missing.fits()) {
      worst_of_grid = std::max(worst_of_grid, refined.prediction.step_seconds / brute.seconds - 1);
    }
  }
  EXPECT_GT(feasible, cases / 2);
  EXPECT_LT(worst_of_grid, 0.03);
  fmt::print("{} cases, {} feasible; grid and refinement at most {:.2f} % above brute force\n", cases, feasible,
             100 * worst_of_grid);
}

TEST(Search, LeavesOnTheDeviceWhatGainsLittleOnTheHost) {
  Small small(6, 1, 7);
  small.rates.gpu_update = {0, 1e-12};  // free: nothing can be gained elsewhere
  const SearchResult found = small.search(2 * small.most(), kPlenty);
  EXPECT_EQ(std::ranges::count(found.memory.plan.place, UpdatePlace::kCpu), 0);
  EXPECT_EQ(found.memory.layout.bytes(Tier::kPageable), 0);
  small.rates.gpu_update = {0, 1};  // it cannot stay there
  const SearchResult slow = small.search(2 * small.most(), kPlenty);
  EXPECT_EQ(std::ranges::count(slow.memory.plan.place, UpdatePlace::kResident), 0);
}

std::string json_of(const SearchResult& result) { return plan_json(result.memory.plan, result.memory.layout); }

TEST(Search, SaysTheSameTwiceAndKeepsToItsPlan) {
  const Small small(8, 4, 3);
  const Bytes device = small.most() / 2;
  const SearchResult one = small.search(device, kPlenty);
  const SearchResult two = small.search(device, kPlenty);
  EXPECT_EQ(json_of(one), json_of(two));
  EXPECT_EQ(one.simulated, two.simulated);
  EXPECT_EQ(one.binding, two.binding);
  const PlannedMemory again = plan_memory(small.spec, small.shape, small.profile, one.memory.plan);
  EXPECT_EQ(again.layout.bytes(Tier::kDevice), one.memory.layout.bytes(Tier::kDevice));
  EXPECT_EQ(one.memory.plan.predicted_device_bytes, again.layout.bytes(Tier::kDevice));
  EXPECT_LE(again.layout.bytes(Tier::kDevice), device);
  EXPECT_GT(one.simulated, 0);
  EXPECT_LE(one.simulated, 500);
  EXPECT_GT(one.bounded, one.simulated);
  EXPECT_GT(one.space, 1e6);
  ASSERT_TRUE(one.runner_up.has_value());
  EXPECT_FALSE(one.runner_up->why.empty());
}

TEST(Search, MoreMemoryNeverGivesASlowerPlan) {
  for (const unsigned seed : {2u, 5u}) {
    const Small small(8, seed == 2 ? 1 : 4, seed);
    double before = 1e9;
    int fitting = 0;
    for (int tenth = 2; tenth <= 11; ++tenth) {
      const SearchResult result = small.search(small.most() * tenth / 10, kPlenty);
      if (!result.missing.fits()) continue;
      ++fitting;
      EXPECT_LE(result.prediction.step_seconds, before * 1.01) << "seed " << seed << ", tenths " << tenth;
      before = std::min(before, result.prediction.step_seconds);
    }
    EXPECT_GT(fitting, 4);
  }
}

TEST(Search, KeepsEveryKnobThatIsFixed) {
  const Small small(8, 4, 7);
  SearchSpace space;
  space.chunk_bytes = 2600;
  space.n_persist = 3;
  space.n_buffer = 4;
  space.gradient_slots = 3;
  space.offload_distance = 3;
  space.order = Order::kLayer;
  space.n_swap = 1;
  space.n_keep_light = 2;
  space.n_recompute = 3;
  space.n_recompute_host = 1;
  space.swap_interval = 3;
  space.n_resident = 2;
  space.embedding = UpdatePlace::kCpu;
  space.head = UpdatePlace::kResident;
  space.state_tier = Tier::kPinned;
  const Plan plan = small.search(kPlenty, kPlenty, space).memory.plan;
  EXPECT_EQ(plan.chunk_bytes, 2600);
  EXPECT_EQ(plan.n_persist, 3);
  EXPECT_EQ(plan.n_buffer, 4);
  EXPECT_EQ(plan.gradient_slots, 3);
  EXPECT_EQ(plan.offload_distance, 3);
  EXPECT_EQ(plan.order, Order::kLayer);
  EXPECT_EQ(plan.activation, interleave(small.spec, {1, 2, 3, 1}, 3));
  EXPECT_EQ(plan.state_tier, Tier::kPinned);
  EXPECT_EQ(plan.place.front(), UpdatePlace::kCpu);
  EXPECT_EQ(plan.place.back(), UpdatePlace::kResident);
  EXPECT_EQ(plan.place[2], UpdatePlace::kResident);
  EXPECT_EQ(plan.place[3], UpdatePlace::kCpu);

  // Each alone, all else free.
  const auto with = [&](auto set) {
    SearchSpace one;
    set(one);
    return small.search(small.most() / 2, kPlenty, one).memory.plan;
  };
  EXPECT_EQ(with([](SearchSpace& s) { s.chunk_bytes = 5000; }).chunk_bytes, 5000);
  EXPECT_EQ(with([](SearchSpace& s) { s.n_persist = 1; }).n_persist, 1);
  EXPECT_EQ(with([](SearchSpace& s) { s.n_buffer = 5; }).n_buffer, 5);
  EXPECT_EQ(with([](SearchSpace& s) { s.gradient_slots = 6; }).gradient_slots, 6);
  EXPECT_EQ(with([](SearchSpace& s) { s.offload_distance = 5; }).offload_distance, 5);
  EXPECT_EQ(with([](SearchSpace& s) { s.order = Order::kLayer; }).order, Order::kLayer);
  EXPECT_EQ(std::ranges::count(with([](SearchSpace& s) { s.n_swap = 3; }).activation, Activation::kSwap), 3);
  EXPECT_EQ(std::ranges::count(with([](SearchSpace& s) { s.n_keep_light = 4; }).activation, Activation::kKeepLight), 4);
  EXPECT_EQ(std::ranges::count(with([](SearchSpace& s) { s.n_recompute = 5; }).activation, Activation::kRecompute), 5);
  EXPECT_EQ(
      std::ranges::count(with([](SearchSpace& s) { s.n_recompute_host = 2; }).activation, Activation::kRecomputeHost),
      2);
  EXPECT_EQ(with([](SearchSpace& s) { s.embedding = UpdatePlace::kCpu; }).place.front(), UpdatePlace::kCpu);
  EXPECT_EQ(with([](SearchSpace& s) { s.head = UpdatePlace::kCpu; }).place.back(), UpdatePlace::kCpu);
  const Plan resident = with([](SearchSpace& s) { s.n_resident = 1; });
  EXPECT_EQ(resident.place[1], UpdatePlace::kResident);
  EXPECT_EQ(resident.place[2], UpdatePlace::kCpu);
  const auto modes = std::vector(small.spec.blocks.size(), Activation::kSwap);
  EXPECT_EQ(with([&](SearchSpace& s) { s.activation = modes; }).activation, modes);
  std::vector<UpdatePlace> places(10, UpdatePlace::kCpu);
  places[3] = UpdatePlace::kResident;
  const Plan placed = with([&](SearchSpace& s) {
    s.chunk_bytes = 2600;
    s.place = places;
  });
  EXPECT_EQ(placed.place, places);
  EXPECT_GE(placed.n_persist, 3);
  for (const bool keep : {false, true}) {
    const Plan plan_of = with([&](SearchSpace& s) { (keep ? s.may_recompute : s.may_keep) = false; });
    for (std::size_t block = 1; block + 1 < plan_of.activation.size(); ++block) {
      EXPECT_NE(traits(plan_of.activation[block]).recompute, keep);
    }
  }
}

std::string refusal(const Small& small, const SearchSpace& space) {
  try {
    small.search(kPlenty, kPlenty, space);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "accepted";
}

TEST(Search, RefusesKnobsThatCannotBe) {
  const Small small(4, 1, 9);
  const auto refused = [&](auto set) {
    SearchSpace space;
    set(space);
    return refusal(small, space);
  };
  const auto contains = [](const std::string& text, std::string_view word) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  const std::string too_many = refused([](SearchSpace& s) { s.n_persist = 99; });
  contains(too_many, "n_persist 99, must be 0 to ");
  const int most = std::stoi(too_many.substr(too_many.find("0 to ") + 5));
  EXPECT_EQ(refused([&](SearchSpace& s) { s.n_persist = most; }), "accepted");
  contains(refused([&](SearchSpace& s) { s.n_persist = most + 1; }), "n_persist");
  contains(refused([](SearchSpace& s) { s.n_resident = 99; }), "n_resident");
  contains(refused([](SearchSpace& s) {
             s.n_persist = 1;
             s.n_resident = 2;
           }),
           "resident");
  contains(refused([](SearchSpace& s) {
             s.n_persist = 0;
             s.n_buffer = 0;
           }),
           "n_buffer");
  contains(refused([](SearchSpace& s) {
             s.n_resident = 0;
             s.gradient_slots = 0;
           }),
           "gradient_slots");
  contains(refused([](SearchSpace& s) { s.n_swap = 5; }), "n_swap");
  contains(refused([](SearchSpace& s) { s.n_swap = s.n_recompute = 3; }), "n_swap");
  contains(refused([](SearchSpace& s) { s.offload_distance = 0; }), "offload_distance");
  contains(refused([](SearchSpace& s) { s.chunk_bytes = 0; }), "chunk_bytes");
  contains(refused([](SearchSpace& s) { s.swap_interval = 0; }), "swap_interval");
  contains(refused([](SearchSpace& s) { s.activation = {Activation::kKeep}; }), "activation");
  contains(refused([](SearchSpace& s) { s.state_tier = Tier::kDisk; }), "state_tier");
  contains(refused([](SearchSpace& s) {
             s.chunk_bytes = 2600;
             s.place = {UpdatePlace::kCpu};
           }),
           "place");
  contains(refused([](SearchSpace& s) { s.may_keep = s.may_recompute = false; }), "neither");
}

TEST(Search, WhereNothingFitsNamesWhatLacksLeast) {
  const Small small(5, 1, 4);
  const SearchResult result = small.search(1000, kPlenty);
  EXPECT_FALSE(result.missing.fits());
  EXPECT_EQ(result.simulated, 0);
  EXPECT_EQ(result.missing.device, result.memory.layout.bytes(Tier::kDevice) - 1000);
  EXPECT_EQ(result.missing.host, 0);
  EXPECT_EQ(result.binding, "device memory");
  EXPECT_GT(result.prediction.step_seconds, 0);
  // One byte more than it names is not needed, one byte less is too little.
  const Bytes enough = 1000 + result.missing.device;
  EXPECT_TRUE(small.search(enough, kPlenty).missing.fits());
  const SearchResult host = small.search(enough, 1000);
  EXPECT_FALSE(host.missing.fits());
}

// The least device bytes of plans by hand: one mode for all layers, nothing persistent or everything, the fewest slots.
Bytes least_by_hand(const Small& small, Bytes chunk_bytes) {
  Bytes least = kPlenty;
  for (const Order order : {Order::kMicroBatch, Order::kLayer}) {
    for (int mode = 0; mode < kActivations; ++mode) {
      for (const bool streamed : {true, false}) {
        Plan plan = resident_plan(small.spec, small.shape, chunk_bytes, static_cast<Activation>(mode));
        plan.order = order;
        plan.offload_distance = 1;
        if (streamed) {
          plan.n_persist = 0;
          std::ranges::fill(plan.place, UpdatePlace::kCpu);
          const auto chunks = make_chunks(small.spec, chunk_bytes, small.shape.compute);
          const SlotNeed need = slot_need(small.spec, chunks, plan);
          plan.n_buffer = need.buffer;
          plan.gradient_slots = need.gradient;
        }
        const PlannedMemory memory = plan_memory(small.spec, small.shape, small.profile, plan);
        least = std::min(least, memory.layout.bytes(Tier::kDevice));
      }
    }
  }
  return least;
}

TEST(Search, FitsWheneverAUniformPlanByHandDoes) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    const Id layers = std::vector<Id>{3, 4, 6, 9}[random() % 4];
    const std::int64_t accumulation = std::vector<std::int64_t>{1, 2, 5}[random() % 3];
    const Small small(layers, accumulation, seed);
    const Bytes chunk_bytes = std::vector<Bytes>{1, 2600, 4000, 9000}[random() % 4];
    SearchSpace space;
    if (random() % 4 != 0) space.chunk_bytes = chunk_bytes;
    const Bytes least = least_by_hand(small, chunk_bytes);
    SCOPED_TRACE(fmt::format("seed {}, {} layers x {}, chunks of {}: {} bytes by hand", seed, layers, accumulation,
                             space.chunk_bytes.value_or(0), least));
    for (const double share : {1.0, 1.03, 1.15}) {
      const auto device = static_cast<Bytes>(share * static_cast<double>(least));
      const SearchResult found = small.search(device, kPlenty, space);
      EXPECT_TRUE(found.missing.fits()) << found.missing.device << " lacking of " << device;
      EXPECT_LE(found.memory.layout.bytes(Tier::kDevice), device);
      EXPECT_GT(found.simulated, 0);
    }
    const Bytes little = least * 2 / 3;
    EXPECT_LE(small.search(little, kPlenty, space).missing.device, least - little);
  }
}

// The least host bytes of plans by hand that a device holds: one mode for all layers, some of them resident.
Bytes least_host_by_hand(const Small& small, Bytes chunk_bytes, Bytes device) {
  Bytes least = kPlenty;
  MemoryLimits limits;
  limits.device = device;
  limits.host = kPlenty;
  const auto chunks = make_chunks(small.spec, chunk_bytes, small.shape.compute);
  const auto body = static_cast<int>(chunks.size()) - 2;
  for (const Activation mode : {Activation::kKeep, Activation::kKeepLight, Activation::kRecompute}) {
    for (int resident = 0; resident <= body; ++resident) {
      Plan plan = resident_plan(small.spec, small.shape, chunk_bytes, mode);
      plan.offload_distance = 1;
      plan.n_persist = resident;
      std::fill(plan.place.begin() + 1 + resident, plan.place.end() - 1, UpdatePlace::kCpu);
      const SlotNeed need = slot_need(small.spec, chunks, plan);
      plan.n_buffer = need.buffer;
      plan.gradient_slots = need.gradient;
      const PlannedMemory memory = plan_memory(small.spec, small.shape, small.profile, plan);
      if (!shortfall(MemoryNeed(memory.layout), limits).fits()) continue;
      least = std::min(least, host_need(MemoryNeed(memory.layout), limits));
    }
  }
  return least;
}

TEST(Search, NamesNoMoreOfTheHostThanAPlanByHandTakes) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    const Small small(6, seed % 2 == 0 ? 1 : 3, seed);
    const Bytes chunk_bytes = 2600;
    SearchSpace space;
    space.chunk_bytes = chunk_bytes;
    for (const double share : {0.4, 0.6, 0.8}) {
      const auto device = static_cast<Bytes>(share * static_cast<double>(small.most()));
      const Bytes by_hand = least_host_by_hand(small, chunk_bytes, device);
      if (by_hand == kPlenty) continue;
      const Bytes host = by_hand / 4;
      SCOPED_TRACE(fmt::format("seed {}, {} bytes of the device, {} of the host by hand", seed, device, by_hand));
      const SearchResult found = small.search(device, host, space);
      if (found.missing.fits()) continue;  // other modes need less
      EXPECT_EQ(found.missing.device, 0);
      EXPECT_LE(host + found.missing.host, by_hand);
      EXPECT_TRUE(small.search(device, host + found.missing.host, space).missing.fits());
    }
  }
}

TEST(Search, ThePublishedSpaceHasFourKnobs) {
  const test::Setting setting(test::published_shapes()[1], 8, 1024, 1, test::Machine::consumer());
  const SearchResult result = setting.search(23 * kGiB, 380 * kGiB, SearchSpace::published());
  EXPECT_TRUE(result.missing.fits());
  const Plan& plan = result.memory.plan;
  EXPECT_EQ(result.memory.chunks.size(), setting.spec.blocks.size());  // one chunk a layer
  for (std::size_t chunk = 1; chunk + 1 < plan.place.size(); ++chunk) {
    EXPECT_EQ(plan.place[chunk] == UpdatePlace::kResident, static_cast<int>(chunk) <= plan.n_persist);
  }
  EXPECT_EQ(std::ranges::count(plan.activation, Activation::kKeepLight), 0);
  EXPECT_EQ(std::ranges::count(plan.activation, Activation::kRecomputeHost), 0);
  EXPECT_EQ(plan.gradient_slots, 2);
  fmt::print("published space: {:.3g} plans, bound {:.1f} ms, all {:.1f} ms, {} simulated\n", result.space,
             1e3 * result.bound_seconds, 1e3 * result.seconds, result.simulated);
}

// Of each shape one of the four combinations; bench/search compares all.
TEST(Search, IsNotWorseThanSearchesOfItsParts) {
  constexpr double kWorse = 0.01;
  SearchLimits how;
  how.caution = 0;
  double worst = -1;
  std::size_t number = 0;
  for (const test::ModelShape& model : test::published_shapes()) {
    const bool old = model.family == "gpt2" || model.family == "opt";
    const std::size_t which = number++ % 4;
    const bool large = which % 2 == 0;
    const std::int64_t accumulation = which / 2 == 0 ? 8 : 1;
    SCOPED_TRACE(fmt::format("{} x {}, {} GB", model.name, accumulation, large ? 80 : 24));
    const test::Setting setting(model, 4, old ? 1024 : 4096, accumulation,
                                large ? test::Machine::h200() : test::Machine::consumer());
    const Bytes device = (large ? 79 : 23) * kGiB;
    const Bytes host = (large ? 1000 : 390) * kGiB;
    const SearchResult whole = setting.search(device, host, {}, how);
    const auto part = setting.best_restricted(device, host, how);
    EXPECT_EQ(whole.missing.fits(), part.seconds > 0);
    if (part.seconds == 0) continue;
    const double worse = whole.prediction.step_seconds / part.seconds - 1;
    EXPECT_LE(worse, kWorse) << part.which << " " << part.seconds << " s, " << describe(setting.spec, whole.memory);
    worst = std::max(worst, worse);
  }
  fmt::print("at worst {:+.2f} % beside searches of parts of the space\n", 100 * worst);
}

// Of the processor's time: others may work on the machine that tests run on, and then slow down even that.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;  // many times slower
#else
constexpr bool kSanitized = false;
#endif

TEST(Search, EightyLayersAreQuick) {
  constexpr double kBusy = kSanitized ? 30 : 1.5;
  const auto cpu_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  for (const std::int64_t accumulation : {1, 8}) {
    const test::Setting setting(test::published_shapes().back(), 4, 4096, accumulation);
    const double begin = cpu_seconds();
    const SearchResult result = setting.search(139 * kGiB, 1600 * kGiB);
    const double whole = cpu_seconds() - begin;
    EXPECT_TRUE(result.missing.fits());
    EXPECT_LE(whole, kBusy * 0.5);
    const SearchResult published = setting.search(139 * kGiB, 1600 * kGiB, SearchSpace::published());
    const double four = cpu_seconds() - begin - whole;
    EXPECT_LE(four, kBusy * 0.06);
    fmt::print("80 layers, accumulation {}: {:.0f} ms of the processor, published space {:.0f} ms\n", accumulation,
               1e3 * whole, 1e3 * four);
    for (const SearchResult* one : {&result, &published}) {
      fmt::print(
          "80 layers, accumulation {}: space {:.3g}, bounded {} in {:.1f} ms, simulated {}, all {:.1f} ms: {} "
          "({:.3f} s)\n",
          accumulation, one->space, one->bounded, 1e3 * one->bound_seconds, one->simulated, 1e3 * one->seconds,
          describe(setting.spec, one->memory), one->prediction.step_seconds);
    }
  }
}

}  // namespace
}  // namespace protrain
