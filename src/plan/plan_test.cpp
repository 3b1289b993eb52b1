#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/error.h"

namespace protrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParameterSpec parameter(std::string name, std::vector<std::int64_t> shape, Id group) {
  ParameterSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.group = group;
  return spec;
}

// Embedding (2), three layers of a lone bias and a group of two, tied head with a norm.
ModelSpec small_model() {
  ModelSpec spec;
  spec.hidden = 10;
  spec.vocabulary = 31;
  spec.tied = true;
  spec.parameters = {parameter("wte", {31, 10}, 0), parameter("wpe", {16, 10}, 1)};
  spec.blocks.push_back({BlockKind::kEmbedding, -1, "embedding", {0, 1}});
  for (Id layer = 0; layer < 3; ++layer) {
    const auto first = static_cast<Id>(spec.parameters.size());
    spec.parameters.push_back(parameter("bias", {10}, first));
    spec.parameters.push_back(parameter("gate", {256, 2}, first + 1));
    spec.parameters.push_back(parameter("up", {100, 7}, first + 1));
    spec.blocks.push_back({BlockKind::kLayer, layer, "layer", {first, first + 1, first + 2}});
  }
  const auto norm = static_cast<Id>(spec.parameters.size());
  spec.parameters.push_back(parameter("norm", {10}, norm));
  spec.blocks.push_back({BlockKind::kHead, -1, "head", {norm, 0}});
  return spec;
}

RunShape small_run(DType compute, std::int64_t accumulation) {
  RunShape shape;
  shape.compute = compute;
  shape.accumulation = accumulation;
  shape.train_shapes = {{2, 8, 2, false}, {1, 12, 4, true}};
  shape.eval_shapes = {{3, 16, 3, false}};
  shape.eval_micro_batches = 2;
  return shape;
}

Plan keep_all(const ModelSpec& spec, Bytes chunk_bytes) {
  Plan plan;
  plan.chunk_bytes = chunk_bytes;
  plan.activation.assign(spec.blocks.size(), Activation::kKeep);
  return plan;
}

std::string error_of(const ModelSpec& spec, const RunShape& shape, const Plan& plan) {
  try {
    validate(spec, shape, plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

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

TEST(Chunks, PutATiedMatrixIntoTheEmbedding) {
  const ModelSpec spec = small_model();
  const auto chunks = make_chunks(spec, kMiB, DType::kBf16);
  EXPECT_EQ(chunks.front().kind, BlockKind::kEmbedding);
  EXPECT_THAT(chunks.front().parameters, ElementsAre(0, 1));
  EXPECT_EQ(chunks.back().kind, BlockKind::kHead);
  EXPECT_THAT(chunks.back().parameters, ElementsAre(11));
}

TEST(Gradients, AreSummedApartOnlyWhereTheWireDtypeIsNotExactEnough) {
  const ModelSpec spec = small_model();
  for (Id id = 0; id < 12; ++id) {
    const bool edge = id < 2 || id == 11;
    EXPECT_FALSE(accumulates(spec, small_run(DType::kF32, 4), id));
    EXPECT_TRUE(accumulates(spec, small_run(DType::kBf16, 2), id));
    EXPECT_EQ(accumulates(spec, small_run(DType::kBf16, 1), id), edge) << id;
  }
}

TEST(Layout, GivesEveryEntryAnAlignedRangeOfItsOwn) {
  const ModelSpec spec = small_model();
  for (const DType compute : {DType::kF32, DType::kBf16}) {
    for (const Bytes chunk_bytes : {1, 5000, 1 << 20}) {
      const auto chunks = make_chunks(spec, chunk_bytes, compute);
      const RunShape shape = small_run(compute, 3);
      auto entries = layout(spec, chunks, shape, keep_all(spec, chunk_bytes)).entries;
      std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
        return std::pair(a.range.tier, a.range.offset) < std::pair(b.range.tier, b.range.offset);
      });
      for (std::size_t i = 0; i < entries.size(); ++i) {
        EXPECT_EQ(entries[i].range.offset % kAlignment, 0);
        EXPECT_GT(entries[i].range.bytes, 0);
        if (i > 0 && entries[i].range.tier == entries[i - 1].range.tier) {
          EXPECT_GE(entries[i].range.offset, entries[i - 1].range.offset + entries[i - 1].range.bytes);
        }
      }
    }
  }
}

TEST(Layout, CountsExactlyTheBytesThatTheRulesSay) {
  const ModelSpec spec = small_model();
  const auto chunks = make_chunks(spec, kMiB, DType::kBf16);
  const Layout found = layout(spec, chunks, small_run(DType::kBf16, 3), keep_all(spec, kMiB));
  // 18 bytes a parameter (2 + 2 + 4 + 4, gradient 2, accumulator 4); elements rounded up to 256 a tensor.
  const Bytes elements = 512 + 256 + 3 * (256 + 512 + 768) + 256;
  // Block inputs 1 and 2: evaluation's 48 tokens x 10 x 2 bytes; 3 and 4, and the two input gradients: 16 tokens.
  const Bytes activations = Bytes{2} * 1024 + Bytes{4} * 512;
  // Batches: 3 x (3 x 512 + 512) of training, equal to or larger than evaluation's 2 x (3 x 512 + 512).
  const Bytes batches = Bytes{2} * 3 * 2048;
  // Norms, partial sums, losses and control, each one aligned piece; the last ends with its own bytes.
  EXPECT_EQ(found.bytes(Tier::kDevice), elements * 18 + activations + batches + Bytes{4} * 512);
  EXPECT_EQ(found.bytes(Tier::kPinned), 512 + batches);
}

TEST(Layout, CoversTheLargestShapeOfTrainingAndEvaluation) {
  const ModelSpec spec = small_model();
  const auto chunks = make_chunks(spec, kMiB, DType::kF32);
  const Layout found = layout(spec, chunks, small_run(DType::kF32, 1), keep_all(spec, kMiB));
  EXPECT_EQ(found.find(Region::kBlockInput, 1).bytes, 48 * 10 * 4);
  EXPECT_EQ(found.find(Region::kBlockInput, 2).bytes, 48 * 10 * 4);
  EXPECT_EQ(found.find(Region::kBlockInput, 3).bytes, 16 * 10 * 4);
  EXPECT_EQ(found.find(Region::kBatch, 1).bytes, 2 * batch_layout({3, 16, 3, false}).bytes);
  EXPECT_EQ(found.find(Region::kLosses).bytes, 2 * 8);
  EXPECT_FALSE(found.contains(Region::kState, 0 * kParts + static_cast<Id>(Part::kResidual)));
  EXPECT_FALSE(found.contains(Region::kState, 0 * kParts + static_cast<Id>(Part::kAccumulator)));
  EXPECT_THROW(found.find(Region::kBlockInput, 0), InternalError);
}

TEST(Plan, IsRefusedWithTheReason) {
  const ModelSpec spec = small_model();
  const RunShape shape = small_run(DType::kF32, 1);
  const Plan good = keep_all(spec, 1024);
  EXPECT_EQ(error_of(spec, shape, good), "");

  Plan plan = good;
  plan.activation.pop_back();
  EXPECT_THAT(error_of(spec, shape, plan), HasSubstr("4 entries, this model has 5 blocks"));
  plan = good;
  plan.chunk_bytes = 0;
  EXPECT_THAT(error_of(spec, shape, plan), HasSubstr("chunk_bytes 0"));
  plan = good;
  plan.schema = 7;
  EXPECT_THAT(error_of(spec, shape, plan), HasSubstr("schema 7"));

  RunShape other = shape;
  other.accumulation = 0;
  EXPECT_THAT(error_of(spec, other, good), HasSubstr("gradient_accumulation_steps: 0"));
  other = shape;
  other.compute = DType::kF16;
  EXPECT_THAT(error_of(spec, other, good), HasSubstr("float16"));
  other = shape;
  other.train_shapes[0].max_samples = 3;
  EXPECT_THAT(error_of(spec, other, good), HasSubstr("training shape of 2 rows: 3 samples"));
  ModelSpec bounded = spec;
  bounded.max_positions = 15;
  EXPECT_THAT(error_of(bounded, shape, good), HasSubstr("16 tokens, but this model takes at most 15"));
}

}  // namespace
}  // namespace protrain
