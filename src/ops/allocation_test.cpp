// What operators allocate is a function of shapes, dtypes and flags: see Note [Memory of operators].
#include <functional>
#include <numeric>
#include <random>

#include "ops/allocation_log.h"
#include "ops/attention.h"
#include "ops/checks.h"
#include "tensor/replay.h"

namespace protrain::ops::test {
namespace {

// Which values a run has; shapes are the same in all.
enum class Values : std::uint8_t { kNormal, kZero, kNan };

at::Tensor filled(Random& random, at::IntArrayRef shape, Values values) {
  at::Tensor x = random.normal(shape);
  if (values == Values::kZero) x.zero_();
  if (values == Values::kNan) x.fill_(std::numeric_limits<double>::quiet_NaN());
  return x;
}

std::vector<std::int32_t> ids(std::int64_t tokens, std::int64_t below, Values values) {
  std::vector<std::int32_t> result;
  for (std::int64_t t = 0; t < tokens; ++t) {
    result.push_back(values == Values::kNormal ? static_cast<std::int32_t>(t * t % below) : 0);
  }
  return result;
}

// The operators of one layer, of the embedding and of the head, forward and backward.
std::vector<AllocationLog::Event> run_all(Target target, Values values, bool light) {
  Random random(target);
  const std::int64_t rows = 2, row_tokens = 40, tokens = rows * row_tokens, width = 48, inner = 80, vocabulary = 97;
  const HeadShape heads{4, 2, 16};
  const auto parameter = [&](at::IntArrayRef shape) { return random.parameter(shape, true, at::kFloat, 0.2); };
  const Parameter table = parameter({vocabulary, width}), n1 = parameter({width}), b1 = parameter({width});
  const Parameter wqkv = parameter({128, width}), bqkv = parameter({128}), q = parameter({16}), k = parameter({16});
  const Parameter wo = parameter({width, 64}), n2 = parameter({width}), gate_up = parameter({2 * inner, width});
  const Parameter down = parameter({inner, width}), wa = parameter({width, width}),
                  out = parameter({vocabulary, width});
  const at::Tensor x = filled(random, {tokens, width}, values).requires_grad_();
  const at::Tensor dy = filled(random, {tokens, width}, values);
  const at::Tensor angle = random.typed({row_tokens, 8}, at::kFloat);
  const at::Tensor token_ids = int_tensor(ids(tokens, vocabulary, values), at::kCPU);
  const at::Tensor positions = int_tensor(ids(tokens, row_tokens, values), at::kCPU);
  std::vector<std::int32_t> label_values = ids(tokens, vocabulary, values);
  if (values != Values::kNormal) label_values.assign(label_values.size(), -100);
  const at::Tensor labels = int_tensor(label_values, at::kCPU);
  const Rope rope{angle.cos(), angle.sin()};

  AllocationLog log;
  const at::Tensor anchor = at::zeros({1}).requires_grad_();
  gradients({embedding(token_ids, table, anchor)}, {anchor}, {dy});
  for (const std::int64_t window : {0, 7}) {
    at::Tensor y;
    {
      const AddNorm start = add_layer_norm(x, {}, n1, b1, 1e-5, light);
      const Source qkv = qk_norm(linear(start.normed, wqkv, &bqkv), q, k, heads, 1e-6, light);
      const at::Tensor attended = rope_attention(
          qkv, heads, rope, {.rows = rows, .row_tokens = row_tokens, .positions = positions, .window = window});
      const AddNorm middle = add_rms_norm(dropout(linear(attended, wo), 0.2, 7, 1), start.sum, n2, 1e-5, light);
      const at::Tensor wide = linear(middle.normed, gate_up);
      y = linear(gated_activation(wide, Activation::kSilu, light), down, nullptr, middle.sum, WeightLayout::kInOut);
      y = linear(activation(linear(y, wa), Activation::kGeluTanh, light), wa, &n2, y);
    }
    gradients({y}, {x}, {dy});
  }
  cross_entropy(x, out, labels, {.loss_scale = 0.1, .gradients = true});
  return log.events();
}

TEST(Allocations, DoNotDependOnValues) {
  for (const Target& target : {kCpuF32, kCpuBf16}) {
    for (const bool light : {false, true}) {
      run_all(target, Values::kNormal, light);  // what libraries make once
      const auto events = run_all(target, Values::kNormal, light);
      EXPECT_GT(events.size(), 100U);
      EXPECT_EQ(events, run_all(target, Values::kZero, light)) << target.name() << " light " << light;
      EXPECT_EQ(events, run_all(target, Values::kNan, light)) << target.name() << " light " << light;
    }
  }
}

TEST(Allocations, GradientsTakeTheMemoryOfWhatWasSavedAndNoOther) {
  for (const Target& target : {kCpuF32, kCpuBf16}) {
    Random random(target);
    const at::Tensor x = random.leaf({9, 32}), r = random.leaf({9, 32}), up = random.leaf({9, 64});
    const at::Tensor qkv = random.leaf({9, 64}), dy = random.normal({9, 32});
    const at::Tensor x_before = x.detach().clone(), r_before = r.detach().clone(), dy_before = dy.clone();
    const Parameter weight = random.parameter({32}, true, at::kFloat);

    const AddNorm own = add_rms_norm(x, {}, weight, 1e-5), sum = add_rms_norm(x, r, weight, 1e-5);
    EXPECT_NE(gradients({own.normed}, {x}, {dy})[0].const_data_ptr(), x.const_data_ptr());
    EXPECT_EQ(gradients({sum.normed}, {r}, {dy})[0].const_data_ptr(), sum.sum.const_data_ptr());
    const at::Tensor y = gated_activation(up, Activation::kSilu);
    EXPECT_EQ(gradients({y}, {up}, {dy})[0].const_data_ptr(), up.const_data_ptr());
    const at::Tensor out = rope_attention(qkv, {2, 1, 16}, {}, {.rows = 1, .row_tokens = 9});
    EXPECT_EQ(gradients({out}, {qkv}, {dy})[0].const_data_ptr(), qkv.const_data_ptr());

    EXPECT_TRUE(x.equal(x_before));
    EXPECT_TRUE(r.equal(r_before));
    EXPECT_TRUE(dy.equal(dy_before));
  }
}

// Samples of a packed batch: `count` starts and the end, the unused ones equal to it.
std::vector<std::int32_t> random_starts(std::int64_t rows, std::int64_t row_tokens, std::size_t count,
                                        std::mt19937& random) {
  std::vector<std::int32_t> starts;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t at = row * row_tokens;
    const std::int64_t end = at + row_tokens;
    while (at < end) {
      starts.push_back(static_cast<std::int32_t>(at));
      const bool last = starts.size() + static_cast<std::size_t>(rows - row) > count || random() % 4 == 0;
      at = last ? end : at + 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(end - at));
    }
  }
  starts.resize(count + 1, static_cast<std::int32_t>(rows * row_tokens));
  return starts;
}

// A forward and a backward of packed attention, each in the scope that `enter` makes; results are gone when it ends.
class PackedRun {
 public:
  PackedRun(Target target, const HeadShape& shape, std::int64_t rows, std::int64_t row_tokens, std::int64_t window)
      : shape_(shape), rows_(rows), row_tokens_(row_tokens), window_(window) {
    Random random(target);
    leaf_ = random.leaf({rows * row_tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim});
    dy_ = random.normal({rows * row_tokens, shape.heads * shape.head_dim});
  }

  // forward(scope), then backward(scope): each is called with the work to do.
  template <typename Scope>
  at::Tensor operator()(const std::vector<std::int32_t>& starts, const Scope& forward, const Scope& backward) {
    const at::Tensor x = leaf_ * 1, offsets = int_tensor(starts, at::kCPU);
    at::Tensor out, dx = at::empty_like(leaf_).detach();
    forward([&] {
      out = rope_attention(x, shape_, {},
                           {.rows = rows_,
                            .row_tokens = row_tokens_,
                            .packed = true,
                            .sample_starts = offsets,
                            .host_sample_starts = starts,
                            .window = window_});
    });
    backward([&] { dx.copy_(gradients({out}, {x}, {dy_})[0]); });
    return dx;
  }

 private:
  HeadShape shape_;
  std::int64_t rows_, row_tokens_, window_;
  at::Tensor leaf_, dy_;
};

using Work = std::function<void()>;
using Scope = std::function<void(const Work&)>;

// Recorded with one cut into samples, attention of every other cut finds its place, and has the bits of a plain run.
void check_packed(Target target, const HeadShape& shape, std::int64_t rows, std::int64_t row_tokens,
                  std::int64_t window, std::size_t samples) {
  SCOPED_TRACE(fmt::format("packed {} {}/{} heads of {}, {} x {} tokens, window {} (seed {})", target.name(),
                           shape.heads, shape.kv_heads, shape.head_dim, rows, row_tokens, window, seed()));
  std::mt19937 random(static_cast<std::uint32_t>(seed()));
  PackedRun run(target, shape, rows, row_tokens, window);
  const Scope plain = [](const Work& work) { work(); };
  std::shared_ptr<const CallTrace> traces[2];
  const auto record = [](std::shared_ptr<const CallTrace>& trace, bool keeps) {
    return Scope([&trace, keeps](const Work& work) {
      RecordScope scope(keeps);
      work();
      trace = scope.finish();
    });
  };
  run(random_starts(rows, row_tokens, samples, random), plain, plain);
  run(random_starts(rows, row_tokens, samples, random), record(traces[0], true), record(traces[1], false));

  std::vector<std::byte> memory;
  const auto room = [](Bytes bytes) { return round_up(bytes, kAlignment); };
  Bytes bytes = kAlignment;
  for (const auto& trace : traces) bytes += room(memory_of(*trace).saved) + room(memory_of(*trace).workspace);
  memory.resize(static_cast<std::size_t>(bytes));
  std::byte* at =
      memory.data() + (kAlignment - reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment) % kAlignment;
  Scope replays[2];
  for (int i = 0; i < 2; ++i) {
    ReplayPlaces places;
    places.saved = at;
    places.workspace = at + room(memory_of(*traces[i]).saved);
    at = places.workspace + room(memory_of(*traces[i]).workspace);
    replays[i] = [trace = traces[i], places](const Work& work) {
      ReplayScope scope(*trace, places);
      work();
      scope.finish();
    };
  }
  std::vector<std::vector<std::int32_t>> cuts(4);
  for (auto& cut : cuts) cut = random_starts(rows, row_tokens, samples, random);
  cuts.front().assign(samples + 1, static_cast<std::int32_t>(rows * row_tokens));  // whole rows: the worst case
  for (std::int64_t row = 0; row < rows; ++row) {
    cuts.front()[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(row * row_tokens);
  }
  for (const auto& cut : cuts) {
    const at::Tensor want = run(cut, plain, plain);
    reset_allocator_counts();
    const at::Tensor dx = run(cut, replays[0], replays[1]);
    EXPECT_EQ(allocator_counts().mismatches, 0);
    EXPECT_GT(allocator_counts().replayed, 0);
    EXPECT_TRUE(dx.equal(want));
  }
}

TEST(Allocations, OfPackedAttentionDoNotDependOnTheSamples) {
  install_allocator(DeviceKind::kCpu);
  for (const std::int64_t window : {0, 5}) {
    check_packed(kCpuF32, {4, 2, 16}, 1, 5, window, 5);
    check_packed(kCpuF32, {4, 2, 16}, 2, 300, window, 9);
    check_packed(kCpuF32, {8, 1, 128}, 2, 40, window, 9);
    check_packed(kCpuBf16, {4, 2, 16}, 3, 50, window, 12);
  }
  check_packed(kCpuF32, {3, 3, 8}, 1, 900, 0, 4);  // several tiles of queries
  check_packed(kCpuF32, {3, 3, 8}, 1, 600, 70, 4);
}

}  // namespace
}  // namespace protrain::ops::test
