#include "model/model.h"

#include "model/layer_block.h"

namespace protrain {

std::vector<std::unique_ptr<Block>> make_blocks(const Architecture& arch, const ModelSpec& spec,
                                                const ModelOptions& options) {
  const auto rope =
      options.tables ? options.tables : std::make_shared<model::RopeTables>(arch, options.device, options.positions);
  const auto make_layer = arch.family == Family::kGpt2  ? model::make_gpt2_layer
                          : arch.family == Family::kOpt ? model::make_opt_layer
                                                        : model::make_llama_layer;
  std::vector<std::unique_ptr<Block>> blocks;
  for (const BlockSpec& block : spec.blocks) {
    switch (block.kind) {
      case BlockKind::kEmbedding: blocks.push_back(model::make_embedding_block(arch, spec, block, options)); break;
      case BlockKind::kLayer: blocks.push_back(make_layer(arch, spec, block, options, rope)); break;
      case BlockKind::kHead: blocks.push_back(model::make_head_block(arch, spec, block, options)); break;
    }
  }
  return blocks;
}

}  // namespace protrain
