// No plan changes one bit: real models of every family, whole runs of ten updates with an evaluation and a save in
// between, under all kinds of plans and with late lanes, against a run that keeps everything on the device and lets
// LibTorch allocate as it likes. And each plan's bytes are what its run uses.
//
// By default a pairwise covering set and random draws; PROTRAIN_TEST_FULL=1 runs all combinations.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "base/error.h"
#include "device/faulty_device.h"
#include "model/model.h"
#include "profile/memory.h"
#include "runtime/covering_set.h"
#include "runtime/step_runner.h"
#include "schedule/layout.h"
#include "tensor/tensor.h"

namespace protrain {
namespace {

constexpr unsigned kSeed = 20261129;
constexpr int kSteps = 10, kEvaluateAfter = 4, kSaveAfter = 7;
constexpr double kLongestDelaySeconds = 1e-4;
constexpr std::int64_t kVocabulary = 83;

struct TinyModel {
  const char* name;
  const char* config;
  DType compute = DType::kF32;
  bool packed = false;
};

// Awkward sizes: odd widths, grouped heads, a window shorter than a row, tied and untied, dropout where there is any.
const TinyModel kModels[] = {
    {"gpt2", R"({"model_type": "gpt2", "n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 40, "vocab_size": 83,
       "attn_pdrop": 0, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "tie_word_embeddings": false})"},
    {"opt", R"({"model_type": "opt", "hidden_size": 24, "ffn_dim": 40, "num_hidden_layers": 3,
       "num_attention_heads": 2, "max_position_embeddings": 40, "vocab_size": 83, "dropout": 0.1,
       "attention_dropout": 0, "word_embed_proj_dim": 16, "tie_word_embeddings": false})"},
    {"llama", R"({"model_type": "llama", "vocab_size": 83, "hidden_size": 40, "intermediate_size": 77,
       "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1, "max_position_embeddings": 64,
       "tie_word_embeddings": false})",
     DType::kF32, true},
    {"qwen3 tied", R"({"model_type": "qwen3", "vocab_size": 83, "hidden_size": 32, "intermediate_size": 48,
       "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
       "max_position_embeddings": 64, "tie_word_embeddings": true})"},
    {"mistral bf16", R"({"model_type": "mistral", "vocab_size": 83, "hidden_size": 32, "intermediate_size": 48,
       "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8,
       "max_position_embeddings": 64, "tie_word_embeddings": false})",
     DType::kBf16},
};

enum Persist { kAll, kHalf, kNone };
enum Modes { kMixedModes = kActivations };  // below: of all layers
enum Accumulation { kOne, kFourByMicroBatch, kFourByLayer };
constexpr Bytes kChunkBytes[] = {1, 6 * kKiB, 24 * kKiB, kGiB};  // from one tensor to the whole model

struct Case {
  int model = 0, persist = kAll, more_slots = 0, modes = 0, host = 0, clip = 1, chunk = 3, accumulation = kOne;
  std::uint64_t delay_seed = 0;  // 0: none
};
const std::vector<int> kLevels = {static_cast<int>(std::size(kModels)),     3, 2, kActivations + 1, 2, 2,
                                  static_cast<int>(std::size(kChunkBytes)), 3};
Case case_of(const std::vector<int>& row) { return {row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]}; }

std::string describe(const Case& c) {
  return fmt::format(
      "{}, persist {}, more slots {}, modes {}, on host {}, clip {}, chunk bytes {}, accumulation {}, "
      "delay seed {}",
      kModels[c.model].name, c.persist, c.more_slots, c.modes, c.host, c.clip, kChunkBytes[c.chunk], c.accumulation,
      c.delay_seed);
}

BatchShape train_shape(const TinyModel& model) {
  return model.packed ? BatchShape{1, 24, 3, true} : BatchShape{2, 12, 2, false};
}
BatchShape eval_shape(const TinyModel& model) {
  return model.packed ? BatchShape{1, 20, 3, true} : BatchShape{1, 20, 1, false};
}

// Micro-batches one after the other; a third of the labels ignored; packed rows are cut in unequal samples.
struct Batch {
  BatchShape shape;
  std::int64_t micro_batches;
  std::vector<std::byte> bytes;
  std::int64_t supervised = 0;

  Batch(const BatchShape& shape_in, std::int64_t count, unsigned seed) : shape(shape_in), micro_batches(count) {
    std::mt19937 random(seed);
    const BatchLayout parts = batch_layout(shape);
    bytes.resize(static_cast<std::size_t>(parts.bytes * count));
    for (std::int64_t m = 0; m < count; ++m) {
      const auto put = [&](Bytes array, std::int64_t index, std::int64_t value) {
        const auto narrow = static_cast<std::int32_t>(value);
        std::memcpy(bytes.data() + m * parts.bytes + array + 4 * index, &narrow, 4);
      };
      std::vector<std::int64_t> starts;
      for (std::int64_t s = 0; s < shape.max_samples; ++s) {
        starts.push_back(shape.packed ? s * shape.tokens() / shape.max_samples + (s == 1 ? 3 : 0)
                                      : s * shape.row_tokens);
      }
      starts.push_back(shape.tokens());
      for (std::size_t s = 0; s < starts.size(); ++s) put(parts.sample_starts, static_cast<std::int64_t>(s), starts[s]);
      std::size_t sample = 0;
      for (std::int64_t t = 0; t < shape.tokens(); ++t) {
        while (t >= starts[sample + 1]) ++sample;
        const bool ignored = random() % 3 == 0;
        supervised += ignored ? 0 : 1;
        put(parts.tokens, t, random() % kVocabulary);
        put(parts.labels, t, ignored ? kIgnoredLabel : static_cast<std::int32_t>(random() % kVocabulary));
        put(parts.positions, t, t - starts[sample]);
      }
    }
  }
};

struct AlignedBytes {
  explicit AlignedBytes(Bytes bytes) : memory(static_cast<std::size_t>(bytes + kAlignment)) {}
  std::byte* get() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (kAlignment - address % kAlignment) % kAlignment;
  }
  std::vector<std::byte> memory;
};

// One of kModels with what its calls need, measured once.
class Subject {
 public:
  explicit Subject(const TinyModel& model)
      : model_(model),
        arch_(parse_architecture(model.config, "config.json")),
        spec_(make_spec(arch_)),
        device_(make_cpu_device()),
        tables_(std::make_shared<model::RopeTables>(arch_, DeviceKind::kCpu, 24)),
        table_bytes_(tables_->bytes()) {
    for (const std::int64_t accumulation : {1, 4}) {
      Measured& one = measured_[accumulation];
      one.shape.compute = model.compute;
      one.shape.accumulation = accumulation;
      one.shape.train_shapes = {train_shape(model)};
      one.shape.eval_shapes = {eval_shape(model)};
      one.traces = std::make_shared<TraceBook>(DeviceKind::kCpu);
      one.profile = record_memory(spec_, blocks(one.traces), *one.traces, one.shape, *device_, tables_->bytes());
      one.traces->set_mode(TraceBook::Mode::kReplay);
    }
    put_tables_back();
  }

  struct Measured {
    RunShape shape;
    std::shared_ptr<TraceBook> traces;
    Profile profile;
  };
  const Measured& measured(std::int64_t accumulation) const { return measured_.at(accumulation); }
  const TinyModel& model() const { return model_; }
  const ModelSpec& spec() const { return spec_; }
  std::vector<std::unique_ptr<Block>> blocks(std::shared_ptr<TraceBook> traces) const {
    return make_blocks(arch_, spec_,
                       {.compute = model_.compute, .positions = 24, .traces = std::move(traces), .tables = tables_});
  }
  void place_tables(std::byte* memory) { tables_->place(memory, *device_->stream("tables")); }
  void put_tables_back() { place_tables(table_bytes_.get()); }

 private:
  const TinyModel& model_;
  const Architecture arch_;
  const ModelSpec spec_;
  const std::unique_ptr<Device> device_;
  const std::shared_ptr<model::RopeTables> tables_;
  AlignedBytes table_bytes_;  // their place between runs
  std::map<std::int64_t, Measured> measured_;
};

Subject& subject(int model) {
  static std::map<int, Subject> subjects;
  static const bool kReady = [] {
    install_allocator(DeviceKind::kCpu);
    set_up_torch({.compute_threads = 1, .deterministic = true});
    return true;
  }();
  EXPECT_TRUE(kReady);
  return subjects.try_emplace(model, kModels[model]).first->second;
}

Plan plan_of(const Case& c, const ModelSpec& spec, DType compute) {
  Plan plan;
  plan.chunk_bytes = kChunkBytes[c.chunk];
  plan.order = c.accumulation == kFourByLayer ? Order::kLayer : Order::kMicroBatch;
  plan.offload_distance = 1 + c.more_slots;
  plan.state_tier = c.more_slots > 0 ? Tier::kPinned : Tier::kPageable;
  for (std::size_t block = 0; block < spec.blocks.size(); ++block) {
    const auto shift = static_cast<std::size_t>(c.chunk + c.persist);
    plan.activation.push_back(
        static_cast<Activation>(c.modes == kMixedModes ? (2 * block + shift) % kActivations : c.modes));
  }
  const std::vector<Chunk> chunks = make_chunks(spec, plan.chunk_bytes, compute);
  const auto body = static_cast<int>(std::ranges::count(chunks, BlockKind::kLayer, &Chunk::kind));
  plan.n_persist = c.persist == kAll ? body : c.persist == kHalf ? body / 2 : 0;
  int number = 0;
  for (const Chunk& chunk : chunks) {
    const bool streamed = chunk.kind == BlockKind::kLayer && number++ >= plan.n_persist;
    plan.place.push_back(streamed || c.host != 0 ? UpdatePlace::kCpu : UpdatePlace::kResident);
  }
  const SlotNeed need = slot_need(spec, chunks, plan);
  plan.n_buffer = need.buffer == 0 ? 0 : need.buffer + c.more_slots;
  plan.gradient_slots = need.gradient == 0 ? 0 : need.gradient + c.more_slots;
  return plan;
}

struct Outcome {
  std::vector<double> numbers;  // losses, norms; the evaluation's loss
  std::vector<std::byte> saved, final;
};

struct TestArenas {
  TestArenas(Device& device, const Layout& layout) {
    for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
      if (layout.bytes(tier) == 0) continue;
      auto& own = owned[static_cast<std::size_t>(tier)];
      own = std::make_unique<Arena>(device, tier, layout.bytes(tier), ArenaOptions{.check = true, .poison = true});
      all[static_cast<std::size_t>(tier)] = own.get();
    }
  }
  std::array<std::unique_ptr<Arena>, 4> owned;
  Arenas all{};
};

std::vector<std::byte> whole_state(const ChunkStore& store) {
  std::vector<std::byte> all;
  for (Id id = 0; id < static_cast<Id>(store.spec().parameters.size()); ++id) {
    for (const Part part : {Part::kWeight, Part::kResidual, Part::kM, Part::kV}) {
      if (part == Part::kResidual && store.compute() == DType::kF32) continue;
      const std::int64_t n = store.spec().parameters[static_cast<std::size_t>(id)].elements();
      const std::size_t before = all.size();
      all.resize(before + static_cast<std::size_t>(n * size_of(part_dtype(part, store.compute()))));
      store.read(id, part, 0, n, all.data() + before);
    }
  }
  return all;
}

// The run of a case; `plain`: everything on the device, and LibTorch allocates as it likes.
Outcome run(const Case& c, bool plain, int steps = kSteps) {
  Subject& model = subject(c.model);
  const ModelSpec& spec = model.spec();
  const Subject::Measured& measured = model.measured(c.accumulation == kOne ? 1 : 4);
  const Plan plan = plan_of(c, spec, measured.shape.compute);
  const std::vector<Chunk> chunks = make_chunks(spec, plan.chunk_bytes, measured.shape.compute);
  const Layout bytes = layout(spec, chunks, measured.shape, measured.profile, plan);
  EXPECT_LE(static_cast<double>(bytes.bytes(Tier::kDevice)), 1.03 * static_cast<double>(bytes.live_bound));

  DeviceFaults faults;
  faults.seed = c.delay_seed;
  faults.longest_delay_seconds = c.delay_seed == 0 ? 0 : kLongestDelaySeconds;
  const std::unique_ptr<Device> device = make_faulty_device(make_cpu_device(), faults);
  const TestArenas arenas(*device, bytes);
  ChunkStore store(spec, chunks, bytes, measured.shape, plan, *device, arenas.all);
  if (bytes.contains(Region::kTables, 0)) model.place_tables(store.at(bytes.find(Region::kTables)));
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal(0, 0.1f);
  for (Id id = 0; id < static_cast<Id>(spec.parameters.size()); ++id) {
    const ParameterSpec& parameter = spec.parameters[static_cast<std::size_t>(id)];
    std::vector<float> master(static_cast<std::size_t>(parameter.elements()));
    for (float& value : master) value = normal(random) + (parameter.fill == Fill::kOnes ? 1.0f : 0.0f);
    store.write_master(id, 0, parameter.elements(), master.data());
  }
  store.zero_moments();
  static ThreadPool pool(1), host_pool(2);
  const auto kernels = make_cpu_kernels(pool), host_kernels = make_cpu_kernels(host_pool);
  StepRunner runner(store, chunks, measured.shape, measured.profile, plan, bytes, *device,
                    model.blocks(plain ? nullptr : measured.traces), *kernels, host_kernels.get(), AdamWOptions{},
                    arenas.all);

  Outcome outcome;
  const auto request = [](Graph graph, const Batch& batch, int slot) {
    return StepRequest{graph, batch.shape, batch.micro_batches, slot};
  };
  reset_allocator_counts();
  for (int step = 0; step < steps; ++step) {
    const Batch batch(train_shape(model.model()), c.accumulation == kOne ? 1 : 4, kSeed + static_cast<unsigned>(step));
    StepInputs inputs;
    inputs.host_batch = batch.bytes.data();
    inputs.supervised_tokens = batch.supervised;
    inputs.dropout_key = 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(step + 1);
    inputs.learning_rate = 3e-3;
    inputs.weight_decay = 0.1;
    inputs.max_norm = c.clip != 0 ? 0.5 : 0;
    inputs.update = step + 1;
    const StepOutputs outputs = runner.step(request(Graph::kTrain, batch, step % 2), inputs);
    EXPECT_EQ(outputs.control.skip, 0);
    outcome.numbers.push_back(outputs.control.loss_sum);
    outcome.numbers.push_back(outputs.control.gradient_norm);
    if (step + 1 == kEvaluateAfter) {
      const Batch held_out(eval_shape(model.model()), 1, kSeed + 1000);
      StepInputs evaluation;
      evaluation.host_batch = held_out.bytes.data();
      evaluation.supervised_tokens = held_out.supervised;
      outcome.numbers.push_back(runner.step(request(Graph::kEvaluate, held_out, 0), evaluation).control.loss_sum);
    }
    if (step + 1 == kSaveAfter) {
      runner.drain();
      outcome.saved = whole_state(store);
    }
  }
  runner.drain();
  outcome.final = whole_state(store);
  if (!plain) {
    EXPECT_EQ(allocator_counts().plain, 0);
    EXPECT_EQ(allocator_counts().mismatches, 0);
  }
  for (const Tier tier : {Tier::kDevice, Tier::kPinned, Tier::kPageable}) {
    if (steps < kSteps) break;  // not all graphs have run
    const Arena* arena = arenas.all[static_cast<std::size_t>(tier)];
    if (arena == nullptr) continue;
    EXPECT_EQ(arena->high_water(), bytes.bytes(tier)) << "tier " << static_cast<int>(tier);
  }
  model.put_tables_back();
  return outcome;
}

// Of all cases with this model, accumulation and clipping.
const Outcome& expected(const Case& c) {
  static std::map<std::array<int, 3>, Outcome> known;
  const std::array<int, 3> key = {c.model, c.accumulation, c.clip};
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const Case plain = {.model = c.model, .clip = c.clip, .accumulation = c.accumulation};
  return known.emplace(key, run(plain, true)).first->second;
}

void expect_same(const Case& c) {
  SCOPED_TRACE(describe(c));
  const Outcome& right = expected(c);
  const Outcome outcome = run(c, false);
  EXPECT_EQ(outcome.numbers, right.numbers);
  EXPECT_TRUE(outcome.saved == right.saved) << "other weights or moments where the run was saved";
  EXPECT_TRUE(outcome.final == right.final) << "other weights or moments at the end";
}

bool full() {
  const char* const wanted = std::getenv("PROTRAIN_TEST_FULL");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

// Every pair of levels, several times in other company.
std::vector<Case> cover(unsigned times) {
  std::vector<Case> cases;
  for (unsigned i = 0; i < times; ++i) {
    for (const auto& row : covering_set(kLevels, kSeed + i)) cases.push_back(case_of(row));
  }
  return cases;
}

void run_all(const std::vector<Case>& cases) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    expect_same(cases[i]);
    if (::testing::Test::HasFailure()) {
      std::printf("stopped at case %zu of %zu\n", i + 1, cases.size());
      return;
    }
  }
  std::printf("%zu cases\n", cases.size());
}

TEST(PlanMatrixTest, NoPlanChangesABit) {
  if (!full()) return run_all(cover(3));
  std::vector<Case> cases;
  for (const auto& row : full_product(kLevels)) cases.push_back(case_of(row));
  run_all(cases);
}

TEST(PlanMatrixTest, NoDelayOfAnyLaneChangesABit) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::vector<Case> cases;
  if (full()) {
    for (int delay = 0; delay < 50; ++delay) {
      for (Case c : cover(1)) {
        c.delay_seed = random() | 1u;
        cases.push_back(c);
      }
    }
  } else {
    for (int draw = 0; draw < 50; ++draw) {
      std::vector<int> row;
      for (const int levels : kLevels) row.push_back(static_cast<int>(random() % static_cast<unsigned>(levels)));
      Case c = case_of(row);
      c.delay_seed = random() | 1u;
      cases.push_back(c);
    }
  }
  run_all(cases);
}

// After one update the first moment is a tenth of the gradient.
TEST(PlanMatrixTest, AnotherOrderAgreesToRounding) {
  for (int model = 0; model < static_cast<int>(std::size(kModels)); ++model) {
    const DType compute = kModels[model].compute;
    const double tolerance = compute == DType::kBf16 ? 1e-2 : 1e-5;
    const Outcome one = run({.model = model, .clip = 0, .accumulation = kFourByMicroBatch}, true, 1);
    const Outcome other = run({.model = model, .clip = 0, .accumulation = kFourByLayer}, true, 1);
    for (int number = 0; number < 2; ++number) {
      EXPECT_NEAR(one.numbers[number], other.numbers[number], tolerance * one.numbers[number]) << kModels[model].name;
    }
    std::size_t at = 0;
    for (const ParameterSpec& parameter : subject(model).spec().parameters) {
      const auto n = static_cast<std::size_t>(parameter.elements());
      at += n * std::size_t{4};  // the weight, in bf16 with its residual
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < n; ++i) {
        float a = 0, b = 0;
        std::memcpy(&a, one.final.data() + at + 4 * i, 4);
        std::memcpy(&b, other.final.data() + at + 4 * i, 4);
        difference += (a - b) * (a - b);
        norm += a * a;
      }
      EXPECT_LE(std::sqrt(difference), 10 * tolerance * std::sqrt(norm))
          << kModels[model].name << " " << parameter.name;
      at += 8 * n;
    }
  }
}

TEST(PlanMatrixTest, AResidentUpdateOfAStreamedChunkIsRefused) {
  for (int model = 0; model < static_cast<int>(std::size(kModels)); ++model) {
    for (const Persist persist : {kHalf, kNone}) {
      const Subject& subject_of = subject(model);
      const Subject::Measured& measured = subject_of.measured(1);
      Plan plan = plan_of({.model = model, .persist = persist, .chunk = 0}, subject_of.spec(), measured.shape.compute);
      plan.place.assign(plan.place.size(), UpdatePlace::kResident);
      const auto chunks = make_chunks(subject_of.spec(), plan.chunk_bytes, measured.shape.compute);
      try {
        layout(subject_of.spec(), chunks, measured.shape, measured.profile, plan);
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kConfig);
        EXPECT_NE(std::string_view(error.what()).find("resident"), std::string_view::npos) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace protrain
