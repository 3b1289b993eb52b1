#include "profile/update_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "arch/architecture.h"
#include "base/thread_pool.h"

namespace protrain::profile {
namespace {

ModelSpec llama() {
  return make_spec(parse_architecture(
      R"({"model_type": "llama", "vocab_size": 503, "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})",
      "config.json"));
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

TEST(UpdatePieces, AreTheTensorsOfALayerAndTheirNeighboursOfEqualDecay) {
  const UpdatePieces pieces = layer_pieces(llama(), 1 << 30);
  // norm, q, k, v, o, norm, gate, up, down
  const std::vector<std::int64_t> tensors = {256, 4096, 2048, 2048, 4096, 256, 6144, 6144, 6144};
  EXPECT_TRUE(std::is_permutation(pieces.tensors.begin(), pieces.tensors.end(), tensors.begin(), tensors.end()));
  EXPECT_EQ(sum(pieces.tensors), pieces.elements);
  EXPECT_EQ(sum(pieces.stretches), pieces.elements);
  EXPECT_LT(pieces.stretches.size(), pieces.tensors.size());
  EXPECT_GE(pieces.stretches.size(), 3U);
}

TEST(UpdatePieces, ShrinkToWhatThereIsRoomForAndStayAsMany) {
  const UpdatePieces whole = layer_pieces(llama(), 1 << 30), half = layer_pieces(llama(), whole.elements / 2),
                     least = layer_pieces(llama(), 0);
  EXPECT_NEAR(static_cast<double>(half.elements), 0.5 * static_cast<double>(whole.elements), 256.0 * 9);
  EXPECT_EQ(half.tensors.size(), whole.tensors.size());
  EXPECT_EQ(least.tensors, std::vector<std::int64_t>(whole.tensors.size(), 256));
}

TEST(UpdateRig, WritesItsOwnBytesOnlyAndAllCopies) {
  const ModelSpec spec = llama();
  ThreadPool pool(2);
  const auto kernels = make_cpu_kernels(pool);
  const auto stream = make_host_stream();
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    const UpdatePieces pieces = layer_pieces(spec, 1 << 30);
    const Bytes bytes = UpdateRig::bytes(spec, pieces, compute, 3, 2);
    std::vector<std::byte> memory(static_cast<std::size_t>(bytes + 2 * kAlignment));
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
    std::byte* const at = memory.data() + (kAlignment - begin % kAlignment) % kAlignment;
    std::fill(at + bytes, memory.data() + memory.size(), std::byte{0x5a});
    UpdateRig rig(spec, pieces, compute, 3, 2, *kernels, at);
    for (int i = 0; i < 4; ++i) rig.update(*stream);
    for (int i = 0; i < 4; ++i) rig.round(*stream);
    for (int i = 0; i < 4; ++i) rig.norm(*stream);
    rig.finish_norm(*stream);
    EXPECT_TRUE(
        std::all_of(at + bytes, memory.data() + memory.size(), [](std::byte byte) { return byte == std::byte{0x5a}; }));
  }
}

}  // namespace
}  // namespace protrain::profile
