#include "search/roofline_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace protrain {
namespace {

// Sizes that ops/ fixes and this layer cannot see; the tests above would find that they have changed.
constexpr Bytes kLogitsTileBytes = 512 * kMiB;
constexpr std::int64_t kLogitsTileRows = 256, kLogitsRowElements = 8;
constexpr std::int64_t kNormPartialRows = 264, kMostColumnTiles = 64, kLeastColumnTileRows = 64;
constexpr std::int64_t kHeadNormPartialRows = 528, kEmbeddingTile = 32;
constexpr std::int64_t kMathTileQueries = 256;
constexpr std::int64_t kLargestFlashHead = 256;
constexpr Bytes kWide = 4;  // an fp32 or int32 element

// Bytes that live at one time. What a call keeps for its backward is counted apart.
class Ledger {
 public:
  explicit Ledger(bool keeps) : keeps_(keeps) {}

  // Live until drop() of what this returns; `saved`: until backward has read it, where the call keeps a graph.
  Bytes hold(Bytes bytes, bool saved = false) {
    bytes = round_up(bytes, kAlignment);
    if (saved && keeps_) {
      saved_ += bytes;
      return 0;
    }
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    return bytes;
  }
  void drop(Bytes held) { live_ -= held; }
  // Comes and goes.
  void pass(Bytes bytes) { drop(hold(bytes)); }

  CallMemory memory() const { return {.saved = saved_, .workspace = peak_, .workspace_bound = peak_}; }

 private:
  const bool keeps_;
  Bytes saved_ = 0, live_ = 0, peak_ = 0;
};

class LayerCalls {
 public:
  LayerCalls(const LayerWidths& widths, const BatchShape& batch, DType compute, bool training)
      : w_(widths),
        batch_(batch),
        tokens_(batch.tokens()),
        element_(size_of(compute)),
        dropout_(training && widths.dropout) {}

  CallMemory forward(bool keep, bool light) const {
    Ledger ledger(keep);
    const Middle middle = attend(ledger, light);
    const Bytes up = ledger.hold(of(w_.up), !w_.relu);
    if (w_.norm_before) ledger.drop(middle.normed);  // else it is the residual of what follows
    const Bytes inner = ledger.hold(of(w_.ffn), !light || w_.relu);
    ledger.drop(up);
    if (dropout_ || !w_.norm_before) {  // else the product is the result
      const Bytes down = ledger.hold(of(w_.hidden)), dropped = dropout_ ? ledger.hold(of(w_.hidden)) : 0;
      if (!w_.norm_before) {
        ledger.drop(ledger.hold(of(w_.hidden), true));
        statistics(ledger);
        ledger.drop(middle.normed);
      }
      if (keep) ledger.pass(of(w_.hidden));  // the result, which has no place of its own when only the graph is wanted
      ledger.drop(down + dropped);
    } else if (keep) {
      ledger.pass(of(w_.hidden));
    }
    ledger.drop(inner + middle.sum);
    return ledger.memory();
  }

  CallMemory backward(bool light) const {
    Ledger ledger(false);
    if (!w_.norm_before) norm_backward(ledger);
    Bytes gradient = dropout_ ? ledger.hold(of(w_.hidden)) : 0;
    if (light && !w_.relu) ledger.pass(of(w_.ffn));  // made again for the weight gradient
    column_sums(ledger, w_.hidden);
    Bytes input = ledger.hold(of(w_.ffn));
    ledger.drop(gradient + input);  // the activation's gradient takes its input's place
    if (light) ledger.pass(of(w_.hidden));
    column_sums(ledger, w_.up);
    input = ledger.hold(of(w_.hidden));
    norm_backward(ledger);  // in the sum's place
    ledger.drop(input);
    gradient = dropout_ ? ledger.hold(of(w_.hidden)) : 0;
    column_sums(ledger, w_.hidden);
    input = ledger.hold(of(w_.q));
    ledger.drop(gradient);
    Bytes qkv = w_.qk_norm && light ? ledger.hold(of(w_.qkv)) : 0;
    attention_backward(ledger);
    ledger.drop(input);
    if (w_.qk_norm) {
      const Bytes through = ledger.hold(of(w_.qkv));
      ledger.pass(2 * std::min(kHeadNormPartialRows, ceil_div(tokens_ * (w_.heads + w_.kv_heads), 16)) * w_.head_dim *
                  kWide);
      ledger.drop(qkv);
      qkv = through;
    }
    if (light && w_.norm_before) ledger.pass(of(w_.hidden));
    column_sums(ledger, w_.qkv);
    input = ledger.hold(of(w_.hidden));
    ledger.drop(qkv);
    if (w_.norm_before) norm_backward(ledger);
    ledger.drop(input);
    return ledger.memory();
  }

 private:
  Bytes of(std::int64_t width) const { return tokens_ * width * element_; }
  Bytes wide(std::int64_t width) const { return tokens_ * width * kWide; }

  void statistics(Ledger& ledger) const {
    Bytes held = ledger.hold(wide(1), true);
    if (w_.layer_norm) held += ledger.hold(wide(1), true);
    ledger.drop(held);
  }
  bool math() const { return element_ != 2 || w_.head_dim % 8 != 0 || w_.head_dim > kLargestFlashHead; }

  struct Middle {
    Bytes sum = 0, normed = 0;
  };
  // Up to the second norm (of norm_last: the first).
  Middle attend(Ledger& ledger, bool light) const {
    Bytes held = 0;
    if (w_.norm_before) {
      statistics(ledger);
      held = ledger.hold(of(w_.hidden), !light);
    }
    Bytes qkv = ledger.hold(of(w_.qkv), true);
    if (w_.qk_norm) {
      const Bytes through = ledger.hold(of(w_.qkv), !light), scale = ledger.hold(wide(w_.heads + w_.kv_heads), true);
      ledger.drop(qkv + scale);
      qkv = through;
    }
    const Bytes out = ledger.hold(of(w_.q), true);
    Bytes rest = 0;
    if (math()) {
      ledger.pass(math_bytes(false));
    } else {
      rest = ledger.hold(wide(w_.heads), true) + ledger.hold(8, true) + ledger.hold(8, true);  // log-sum-exp, seeds
    }
    held += ledger.hold(of(w_.hidden));
    ledger.drop(out + rest);
    if (w_.gated) {
      held += qkv;
    } else {
      ledger.drop(qkv);
    }
    if (dropout_) held += ledger.hold(of(w_.hidden));
    Middle middle;
    middle.sum = ledger.hold(of(w_.hidden), true);
    statistics(ledger);
    middle.normed = ledger.hold(of(w_.hidden), !light);
    ledger.drop(held);
    if (!w_.norm_before) ledger.drop(std::exchange(middle.sum, 0));  // nothing but its backward reads it
    return middle;
  }

  void norm_backward(Ledger& ledger) const {
    const std::int64_t vectors = w_.hidden / (16 / element_);
    const std::int64_t grid = kNormPartialRows * (vectors <= 128 ? 4 : vectors <= 256 ? 2 : 1);
    ledger.pass((w_.layer_norm ? 2 : 1) * std::min(grid, tokens_) * w_.hidden * kWide);
  }
  void column_sums(Ledger& ledger, std::int64_t columns) const {
    if (!w_.biases) return;
    ledger.pass(std::min(kMostColumnTiles, ceil_div(tokens_, kLeastColumnTileRows)) * columns * kWide);
  }

  void attention_backward(Ledger& ledger) const {
    const Bytes dq = ledger.hold(of(w_.q)), dk = ledger.hold(of(w_.kv)), dv = ledger.hold(of(w_.kv));
    if (math()) {
      ledger.pass(math_bytes(true));
    } else {
      // An fp32 sum of dq, a row statistic, and dk and dv of every query head where heads share them.
      Bytes inside = ledger.hold(wide(w_.q)) + ledger.hold(wide(w_.heads)) + ledger.hold(8);
      if (w_.kv < w_.q) inside += ledger.hold(of(w_.q)) + ledger.hold(of(w_.q));
      ledger.drop(inside);
    }
    ledger.drop(dq + dk + dv);
  }

  // Tiles of kMathTileQueries queries against all keys, as ops/attention_scratch.cpp adds them up.
  Bytes math_bytes(bool backward) const {
    const std::int64_t row = batch_.row_tokens, queries = std::min(kMathTileQueries, row);
    const std::int64_t keys = w_.window > 0 ? std::min(row, queries + w_.window - 1) : row;
    const Bytes q = w_.q * queries * kWide, k = w_.kv * keys * kWide, scores = w_.heads * queries * keys * kWide;
    const Bytes copies = element_ == kWide ? 1 : 2;
    return (copies + 1) * q + 2 * copies * k + 2 * scores + (backward ? 2 * copies * q + 2 * q + scores + 2 * k : 0);
  }

  const LayerWidths& w_;
  const BatchShape& batch_;
  const std::int64_t tokens_;
  const Bytes element_;
  const bool dropout_;
};

}  // namespace

LayerWidths::LayerWidths(const Architecture& arch, std::int64_t layer)
    : hidden(arch.hidden),
      q(arch.heads * arch.head_dim),
      kv(arch.kv_heads * arch.head_dim),
      qkv(q + 2 * kv),
      ffn(arch.ffn),
      heads(arch.heads),
      kv_heads(arch.kv_heads),
      head_dim(arch.head_dim),
      window(layer >= 0 ? arch.window.at(static_cast<std::size_t>(layer)) : 0),
      gated(arch.family != Family::kGpt2 && arch.family != Family::kOpt),
      relu(arch.activation == MlpActivation::kRelu && !gated),
      layer_norm(!arch.rotary),
      norm_before(arch.norm_before),
      rotary(arch.rotary),
      qk_norm(arch.qk_norm),
      biases(arch.family == Family::kGpt2 || arch.output_bias),
      dropout(arch.residual_dropout > 0) {
  up = gated ? 2 * ffn : ffn;
}

std::int64_t head_tile_rows(std::int64_t tokens, std::int64_t vocabulary, Bytes element_bytes) {
  const std::int64_t rows = kLogitsTileBytes / (round_up(vocabulary, kLogitsRowElements) * element_bytes);
  return std::min(tokens, std::max(kLogitsTileRows, rows / kLogitsTileRows * kLogitsTileRows));
}

CallMemory estimate_layer_memory(const LayerWidths& widths, const BatchShape& batch, DType compute, Pass pass,
                                 bool light, bool training) {
  const LayerCalls calls(widths, batch, compute, training);
  return pass == Pass::kBackward ? calls.backward(light) : calls.forward(pass == Pass::kForwardKeep, light);
}

CallMemory estimate_embedding_memory(const Architecture& arch, const BatchShape& batch, DType compute, Pass pass,
                                     bool training) {
  const Bytes element = size_of(compute), tokens = batch.tokens();
  const bool backward = pass == Pass::kBackward, dropout = training && arch.embedding_dropout > 0;
  Ledger ledger(false);
  const auto hold = [&](std::int64_t width) { return ledger.hold(tokens * width * element); };
  struct Step {
    std::int64_t width;   // of its result
    std::int64_t beside;  // of what it looks up first
  };
  std::vector<Step> steps = {{arch.embedding_width != 0 ? arch.embedding_width : arch.hidden, 0}};
  if (arch.pad_token >= 0 && backward) steps.push_back(steps.front());
  if (arch.embedding_width != 0) steps.push_back({arch.hidden, 0});
  if (!arch.rotary) steps.push_back({arch.hidden, arch.hidden});
  if (dropout) steps.push_back({arch.hidden, 0});
  if (backward) ledger.hold(1);  // what ties the lookups to a graph
  Bytes value = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Bytes beside = hold(steps[i].beside);
    const bool result_of_call = !backward && i + 1 == steps.size();
    const Bytes made = result_of_call ? 0 : hold(steps[i].width);
    ledger.drop(value + beside);
    value = made;
  }
  ledger.drop(value);
  if (backward) {
    const Bytes gradient = dropout ? hold(arch.hidden) : 0;
    const Bytes sorted = ledger.hold(tokens * 4) + ledger.hold(tokens * 8);
    ledger.pass((2 * ceil_div(tokens, kEmbeddingTile) + 2) * arch.hidden * kWide);
    ledger.drop(sorted + gradient);
  }
  return ledger.memory();
}

CallMemory estimate_head_memory(const Architecture& arch, const BatchShape& batch, DType compute, Pass pass) {
  const Bytes element = size_of(compute), tokens = batch.tokens();
  const bool backward = pass == Pass::kBackward;
  const std::int64_t width = arch.embedding_width != 0 ? arch.embedding_width : arch.hidden;
  Ledger ledger(false);
  if (arch.final_norm) {
    ledger.hold(tokens * arch.hidden * element);
    const Bytes statistics = (arch.rotary ? 1 : 2) * round_up(tokens * kWide, kAlignment);
    if (backward) {
      ledger.hold(statistics);
    } else {
      ledger.pass(statistics);
    }
  }
  if (arch.embedding_width != 0) ledger.hold(tokens * width * element);
  ledger.hold(head_tile_rows(tokens, arch.vocabulary, element) * round_up(arch.vocabulary, kLogitsRowElements) *
              element);
  ledger.hold(tokens * kWide);  // losses
  if (backward) ledger.hold(tokens * width * element);
  return ledger.memory();
}

}  // namespace protrain
