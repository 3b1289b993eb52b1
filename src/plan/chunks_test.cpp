#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/test_model.h"

namespace protrain {
namespace {

using test::parameter;
using test::small_model;
using ::testing::ElementsAre;

TEST(Chunks, HoldEveryParameterOnceAtAlignedOffsetsWithoutOverlap) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    ModelSpec spec;
    const auto add = [&](BlockKind kind, int groups) {
      spec.blocks.push_back({kind, -1, "", {}});
      for (int g = 0; g < groups; ++g) {
        const auto first = static_cast<Id>(spec.parameters.size());
        for (Id member = 0; member <= static_cast<Id>(random() % 3); ++member) {
          spec.blocks.back().parameters.push_back(first + member);
          spec.parameters.push_back(parameter("p", {static_cast<std::int64_t>(random() % 2000 + 1)}, first));
        }
      }
    };
    add(BlockKind::kEmbedding, 2);
    for (unsigned layer = 0; layer < random() % 5; ++layer) add(BlockKind::kLayer, static_cast<int>(random() % 5 + 1));
    add(BlockKind::kHead, 2);
    const auto chunks = make_chunks(spec, static_cast<Bytes>(random() % 40000 + 1), DType::kBf16);

    std::vector<Id> seen;
    for (const Chunk& chunk : chunks) {
      ASSERT_FALSE(chunk.parameters.empty());
      std::int64_t end = 0;
      for (std::size_t i = 0; i < chunk.parameters.size(); ++i) {
        ASSERT_EQ(chunk.offsets[i] * 2 % kAlignment, 0);
        ASSERT_GE(chunk.offsets[i], end);
        end = chunk.offsets[i] + spec.parameters[chunk.parameters[i]].elements();
        seen.push_back(chunk.parameters[i]);
      }
      ASSERT_LE(end, chunk.elements);
      ASSERT_EQ(chunk.elements * 2 % kAlignment, 0);
    }
    ASSERT_EQ(seen.size(), spec.parameters.size());
    for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<Id>(i));  // execution order

    const auto where = places(spec, chunks);
    for (const ParameterSpec& each : spec.parameters) {  // a group never leaves its chunk
      const auto id = static_cast<std::size_t>(&each - spec.parameters.data());
      ASSERT_EQ(where[id].chunk, where[each.group].chunk);
    }
  }
}

TEST(Chunks, NeverExceedTheirSizeUnlessOneGroupDoes) {
  const ModelSpec spec = small_model();
  const Bytes block_elements = 256 + 512 + 768;
  for (const std::int64_t blocks : {1, 2, 3}) {
    const auto chunks = make_chunks(spec, blocks * block_elements * 4, DType::kF32);
    for (const Chunk& chunk : chunks) {
      if (chunk.kind == BlockKind::kLayer) {
        EXPECT_LE(chunk.elements, blocks * block_elements);
      }
    }
    EXPECT_EQ(chunks.size(), 2 + (3 + blocks - 1) / blocks);
  }
  const auto chunks =
      make_chunks(spec, 1, DType::kF32);  // the group of 512 + 768 sets the size: the bias does not fit it
  ASSERT_EQ(chunks.size(), 2u + 6u);
  EXPECT_THAT(chunks[1].parameters, ElementsAre(2));
  EXPECT_THAT(chunks[2].parameters, ElementsAre(3, 4));
}

TEST(Chunks, DoNotCutABlockThatFitsOne) {
  const ModelSpec spec = small_model();
  const auto chunks = make_chunks(spec, (256 + 512 + 768) * 4 * 3 / 2, DType::kF32);
  ASSERT_EQ(chunks.size(), 5u);
  EXPECT_THAT(chunks[1].parameters, ElementsAre(2, 3, 4));
  EXPECT_THAT(chunks[2].parameters, ElementsAre(5, 6, 7));
}

TEST(Chunks, LeaveNoGapInAGroupWhoseMembersAllowIt) {
  const auto chunks = make_chunks(small_model(), kMiB, DType::kBf16);
  EXPECT_THAT(chunks[1].offsets,
              ElementsAre(0, 256, 256 + 512, 1536, 1536 + 256, 1536 + 768, 3072, 3072 + 256, 3072 + 768));
}

TEST(Chunks, KeepAGroupTogetherWhoseMembersAreNotNeighbours) {
  ModelSpec spec = small_model();
  spec.parameters[2].group = 2;
  spec.parameters[3].group = 3;
  spec.parameters[4].group = 2;
  const auto chunks = make_chunks(spec, 1, DType::kF32);
  EXPECT_THAT(chunks[1].parameters, ElementsAre(2, 4));
  EXPECT_THAT(chunks[2].parameters, ElementsAre(3, 5));  // the next block fills what is left
}

TEST(Chunks, AreUsedByBlocksInStretchesFromTheFirstParameterToTheLast) {
  const ModelSpec spec = small_model();
  const auto uses = chunk_uses(spec, make_chunks(spec, (256 + 512 + 768) * 4 * 2, DType::kF32));
  ASSERT_EQ(uses.size(), 5u);
  ASSERT_EQ(uses[2].size(), 1u);  // second layer: second half of the first body chunk
  EXPECT_EQ(uses[2][0].chunk, 1);
  EXPECT_EQ(uses[2][0].offset, 1536);
  EXPECT_EQ(uses[2][0].elements, 256 + 512 + 700);
  ASSERT_EQ(uses[4].size(), 2u);  // head: the tied table, not the positions beside it; and its own norm
  EXPECT_EQ(uses[4][0].chunk, 0);
  EXPECT_EQ(uses[4][0].elements, 310);
  EXPECT_EQ(uses[4][1].elements, 10);
}

TEST(Chunks, PutATiedMatrixIntoTheEmbedding) {
  const ModelSpec spec = small_model();
  const auto chunks = make_chunks(spec, kMiB, DType::kBf16);
  EXPECT_EQ(chunks.front().kind, BlockKind::kEmbedding);
  EXPECT_THAT(chunks.front().parameters, ElementsAre(0, 1));
  EXPECT_EQ(chunks.back().kind, BlockKind::kHead);
  EXPECT_THAT(chunks.back().parameters, ElementsAre(11));
}

}  // namespace
}  // namespace protrain
