// What the decoder layers of all families share: bytes to tensors, the graph's life, dropout keys. Private to model/.
#pragma once
#include <memory>

#include "arch/architecture.h"
#include "model/model.h"
#include "model/rope_tables.h"
#include "model/weights.h"

namespace protrain::model {

// Everything a family's code needs beside the block's input.
struct LayerCall {
  const Weights& weights;
  const ops::AttentionBatch& batch;
  const ops::Rope& rope;
  bool skip_value = false;  // only the graph is wanted: the last product need not be computed
  bool light = false;       // a graph is kept, and of it only what is dear to compute
  double dropout = 0;       // of residual branches; 0 in evaluation
  std::uint64_t dropout_key = 0;
  std::int64_t first_row = 0;    // of this micro-batch among the step's tokens
  std::uint32_t first_site = 0;  // of this layer's dropouts; kSitesPerLayer follow
};

// Sites of dropout: 0 is the embedding's, then each layer has its own.
inline constexpr std::uint32_t kEmbeddingSite = 0;
inline constexpr std::uint32_t kSitesPerLayer = 4;

// Number of the micro-batch's first token among those of the step, whose micro-batches have one shape: dropout masks do
// not depend on how the step is cut.
std::int64_t first_row(const BlockCall&);

ops::AttentionBatch attention_batch(const Context&, DeviceKind, std::int64_t window, bool deterministic);

class LayerBlock : public Block {
 public:
  LayerBlock(const Architecture&, const ModelSpec&, const BlockSpec&, const ModelOptions&, std::shared_ptr<RopeTables>);
  const BlockSpec& spec() const override { return block_; }
  std::unique_ptr<SavedGraph> forward(const BlockCall&) override;
  void backward(const BlockCall&, std::unique_ptr<SavedGraph>) override;

 protected:
  virtual at::Tensor compute(const at::Tensor& x, const LayerCall&) const = 0;
  // dropout(x) of this layer's k-th site; x itself when there is none.
  static at::Tensor drop(const at::Tensor& x, const LayerCall&, std::uint32_t site);

  const ops::HeadShape heads_;
  const double epsilon_;

 private:
  at::Tensor run(const BlockCall&, const at::Tensor& x) const;

  const BlockSpec& block_;
  const ModelOptions options_;
  const std::int64_t hidden_, window_;
  const double dropout_;
  const std::shared_ptr<RopeTables> rope_;
};

ops::Activation activation_of(MlpActivation);

std::unique_ptr<Block> make_llama_layer(const Architecture&, const ModelSpec&, const BlockSpec&, const ModelOptions&,
                                        std::shared_ptr<RopeTables>);
std::unique_ptr<Block> make_gpt2_layer(const Architecture&, const ModelSpec&, const BlockSpec&, const ModelOptions&,
                                       std::shared_ptr<RopeTables>);
std::unique_ptr<Block> make_opt_layer(const Architecture&, const ModelSpec&, const BlockSpec&, const ModelOptions&,
                                      std::shared_ptr<RopeTables>);
std::unique_ptr<Block> make_embedding_block(const Architecture&, const ModelSpec&, const BlockSpec&,
                                            const ModelOptions&);
std::unique_ptr<Block> make_head_block(const Architecture&, const ModelSpec&, const BlockSpec&, const ModelOptions&);

}  // namespace protrain::model
