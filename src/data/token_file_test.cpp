#include "data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdlib>
#include <random>

#include "base/error.h"
#include "data/test_support.h"

namespace protrain {
namespace {

using test::llmc_file;
using test::llmq_file;
using test::MemoryFiles;
using test::ptk_file;
using test::put;
using test::Sample;
using test::seal_ptk_body;
using test::seal_ptk_header;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<TokenFile> open_bytes(const std::string& content, std::int64_t end_token = -1) {
  MemoryFiles files;
  files.add("d/x.bin", content);
  return open_token_file(files, "d/x.bin", end_token);
}

// The message of the Error(kData) that opening and reading all of `content` ends in; "" when all is well.
std::string fault(const std::string& content) {
  try {
    const auto file = open_bytes(content);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(file->tokens()));
    std::vector<std::uint8_t> mask(tokens.size());
    file->read(0, file->tokens(), tokens.data(), mask.data());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("d/x.bin"));
    return error.what();
  }
  return "";
}

std::vector<std::int32_t> all_tokens(const TokenFile& file) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.tokens()));
  file.read(0, file.tokens(), tokens.data(), nullptr);
  return tokens;
}

std::vector<std::uint8_t> all_mask(const TokenFile& file) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(file.tokens()));
  file.read(0, file.tokens(), nullptr, mask.data());
  return mask;
}

const std::vector<Sample> kSamples = {{{5, 6, 7}, {false, true, true}}, {{}, {}}, {{300, 1}, {true, false}}};

TEST(TokenFile, ReadsPtkOfBothWidths) {
  for (const int width : {2, 4}) {
    const auto file = open_bytes(ptk_file(kSamples, 301, width));
    EXPECT_EQ(file->tokens(), 5);
    EXPECT_EQ(file->samples(), 3);
    EXPECT_EQ(file->vocabulary(), 301);
    EXPECT_EQ(file->sample_start(1), 3);
    EXPECT_EQ(file->sample_start(2), 3);
    EXPECT_EQ(file->sample_start(3), 5);
    EXPECT_THAT(all_tokens(*file), ElementsAre(5, 6, 7, 300, 1));
    EXPECT_THAT(all_mask(*file), ElementsAre(0, 1, 1, 1, 0));
  }
}

// tests/data/test_ptk_file.py proves that `protrain prepare` writes this file from these samples.
TEST(TokenFile, ReadsWhatPythonWrites) {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "../../tests/data/agreed.ptk";
  const auto file = open_token_file(real_files(), path);
  EXPECT_EQ(file->vocabulary(), 70000);
  ASSERT_EQ(file->samples(), 3);
  EXPECT_EQ(file->sample_start(1), 3);
  EXPECT_EQ(file->sample_start(2), 3);
  EXPECT_THAT(all_tokens(*file), ElementsAre(5, 6, 69999, 7, 8, 9, 10, 11, 12, 13));
  EXPECT_THAT(all_mask(*file), ElementsAre(0, 1, 1, 1, 0, 1, 0, 0, 0, 1));
  EXPECT_NO_THROW(file->check_digest());
}

TEST(TokenFile, TheDigestSeesAnyChangedByteOfTheBody) {
  std::string content = ptk_file(kSamples, 301, 2);
  seal_ptk_body(&content);
  EXPECT_NO_THROW(open_bytes(content)->check_digest());
  const auto changed = [&](std::size_t at) {
    std::string other = content;
    other[at] = static_cast<char>(other[at] ^ 1);
    return other;
  };
  const std::size_t tokens_at = 128;
  EXPECT_EQ(fault(changed(tokens_at)), "");  // another valid id
  for (std::size_t at = 104; at < content.size(); ++at) {
    const std::string other = changed(at);
    if (!fault(other).empty()) continue;  // sample bounds
    try {
      open_bytes(other)->check_digest();
      ADD_FAILURE() << "byte " << at;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_THAT(error.what(), HasSubstr("d/x.bin"));
    }
  }
}

TEST(TokenFile, AFileWithoutADigestIsTakenAsItIs) {
  EXPECT_NO_THROW(open_bytes(ptk_file(kSamples, 301, 2))->check_digest());
  EXPECT_NO_THROW(open_bytes(llmc_file({1, 2}, false))->check_digest());
}

TEST(TokenFile, ReadsLlmcOfBothMagics) {
  const auto narrow = open_bytes(llmc_file({1, 65535, 3}, false));
  EXPECT_THAT(all_tokens(*narrow), ElementsAre(1, 65535, 3));
  EXPECT_THAT(all_mask(*narrow), ElementsAre(1, 1, 1));
  EXPECT_EQ(narrow->samples(), 1);
  EXPECT_EQ(narrow->vocabulary(), 0);
  const auto wide = open_bytes(llmc_file({128000, 2}, true));
  EXPECT_THAT(all_tokens(*wide), ElementsAre(128000, 2));
}

TEST(TokenFile, ReadsLlmqWithAndWithoutMask) {
  const auto masked = open_bytes(llmq_file({9, 8, 7, 6, 5, 4, 3, 2, 1}, {0, 1, 0, 0, 0, 0, 0, 0, 1}, 2, 10));
  EXPECT_THAT(all_tokens(*masked), ElementsAre(9, 8, 7, 6, 5, 4, 3, 2, 1));
  EXPECT_THAT(all_mask(*masked), ElementsAre(0, 1, 0, 0, 0, 0, 0, 0, 1));
  EXPECT_EQ(masked->vocabulary(), 10);
  const auto plain = open_bytes(llmq_file({9, 8}, {}, 1, 0));
  EXPECT_EQ(plain->vocabulary(), 0);
  EXPECT_THAT(all_mask(*plain), ElementsAre(1, 1));
}

TEST(TokenFile, AnEndTokenCutsBinFilesIntoSamples) {
  const auto file = open_bytes(llmc_file({4, 0, 5, 6, 0, 0, 7}, false), 0);
  ASSERT_EQ(file->samples(), 4);
  EXPECT_EQ(file->sample_start(1), 2);
  EXPECT_EQ(file->sample_start(2), 5);
  EXPECT_EQ(file->sample_start(3), 6);
  EXPECT_EQ(file->sample_start(4), 7);
  EXPECT_EQ(open_bytes(llmc_file({4, 0}, false), 0)->samples(), 1);
}

TEST(TokenFile, RangesAgreeWithTheWhole) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  Sample sample;
  for (int i = 0; i < 100000; ++i) {  // more than the pieces in which masks and narrow tokens are read
    sample.tokens.push_back(random() % 60000);
    sample.supervised.push_back(random() % 3 == 0);
  }
  for (const int width : {2, 4}) {
    const auto file = open_bytes(ptk_file({sample}, 60000, width));
    for (int i = 0; i < 50; ++i) {
      const auto first = static_cast<std::int64_t>(random() % 100001);
      const auto count = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(100001 - first));
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
      std::vector<std::uint8_t> mask(tokens.size());
      file->read(first, count, tokens.data(), mask.data());
      for (std::size_t j = 0; j < tokens.size(); ++j) {
        ASSERT_EQ(tokens[j], static_cast<std::int32_t>(sample.tokens[static_cast<std::size_t>(first) + j]));
        ASSERT_EQ(mask[j] != 0, sample.supervised[static_cast<std::size_t>(first) + j]);
      }
    }
  }
}

TEST(TokenFile, EveryTruncationIsRefused) {
  const std::string whole[] = {ptk_file(kSamples, 301, 2), llmc_file({1, 2, 3}, false), llmc_file({1, 2, 3}, true),
                               llmq_file({1, 2, 3}, {true, false, true}, 2, 5)};
  for (const std::string& content : whole) {
    ASSERT_EQ(fault(content), "");
    for (std::size_t bytes = 0; bytes < content.size(); ++bytes) {
      ASSERT_NE(fault(content.substr(0, bytes)), "") << bytes << " of " << content.size();
    }
    EXPECT_NE(fault(content + '\0'), "");
  }
}

TEST(TokenFile, EveryDamagedHeaderFieldIsRefusedByItsOffset) {
  const struct {
    std::size_t offset;
    std::uint64_t value;
    bool wide;  // u64, else u32
    const char* message;
  } cases[] = {
      {8, 2, false, "byte 8: version 2"},
      {12, 3, false, "byte 12: 3 bytes a token"},
      {16, 1u << 30, true, "byte 16: tokens"},
      {16, ~0ull, true, "byte 16: tokens"},
      {24, ~0ull, true, "byte 24: samples"},
      {24, 1ull << 61, true, "byte 24: samples"},
      {32, 1ull << 40, true, "byte 32: vocabulary"},
      {40, 4, true, "byte 40: the longest sample has 3"},
      {48, 64, true, "byte 48: the tokens"},
      {48, 129, true, "byte 48: the tokens"},
      {48, ~63ull, true, "byte 48: the tokens"},
      {56, 128, true, "byte 56: the sample starts"},
      {56, 1ull << 62, true, "byte 56: the sample starts"},
      {64, 128, true, "byte 64: the loss mask"},
      {72, 1ull << 63, true, "byte 72: the JSON"},
      {80, ~0ull, true, "byte 80: bytes of JSON"},
      {88, 5, true, "byte 88: 5 bytes expected"},
  };
  for (const auto& c : cases) {
    std::string content = ptk_file(kSamples, 301, 2);
    if (c.wide) {
      put(&content, c.offset, c.value);
    } else {
      put(&content, c.offset, static_cast<std::uint32_t>(c.value));
    }
    EXPECT_THAT(fault(content), HasSubstr(c.offset == 8 ? c.message : "hash")) << c.offset;
    seal_ptk_header(&content);
    EXPECT_THAT(fault(content), HasSubstr(c.message));
  }
}

TEST(TokenFile, SampleStartsOutOfOrderAreRefusedByTheirOffset) {
  const std::size_t starts_at = 192;  // header 104 -> 128, 10 bytes of tokens -> 192
  const std::pair<std::size_t, std::uint64_t> cases[] = {{0, 1}, {1, 4}, {1, 6}, {2, ~0ull}, {3, 4}, {3, 6}};
  for (const auto& [index, value] : cases) {
    std::string content = ptk_file(kSamples, 301, 2);
    put(&content, starts_at + 8 * index, value);
    EXPECT_THAT(fault(content), HasSubstr("byte ")) << index << " " << value;
  }
  std::string content = ptk_file(kSamples, 301, 2);
  put(&content, starts_at + 8, std::uint64_t{7});
  EXPECT_THAT(fault(content), HasSubstr("byte 200: sample 1 starts at token 7; expected 0 to 5"));
}

TEST(TokenFile, BadBinHeadersAreRefused) {
  std::string content = llmc_file({1, 2}, false);
  put(&content, 4, std::uint32_t{7});
  EXPECT_THAT(fault(content), HasSubstr("byte 4: version 7"));
  put(&content, 0, std::uint32_t{20240522});
  EXPECT_THAT(fault(content), HasSubstr("evaluation file"));
  content = llmc_file({1, 2}, true);
  put(&content, 8, std::uint32_t{0xffffffff});
  EXPECT_THAT(fault(content), HasSubstr("header of 4294967295 tokens"));
  for (const auto& [offset, value, message] : {std::tuple{8, 3, "byte 8: version 3"},
                                               {12, 2, "byte 12: 2 bytes"},
                                               {16, -1, "byte 16: -1 tokens"},
                                               {20, -1, "byte 20: vocabulary -1"},
                                               {24, 2, "byte 24: has-masks 2"}}) {
    content = llmq_file({1, 2}, {}, 2, 5);
    put(&content, static_cast<std::size_t>(offset), std::int32_t{value});
    EXPECT_THAT(fault(content), HasSubstr(message));
  }
  EXPECT_THAT(fault("{\"text\": \"not tokens\"}\n"), HasSubstr("not a token file"));
  EXPECT_THAT(fault(""), HasSubstr("empty"));
}

TEST(TokenFile, IdsOutsideTheFilesVocabularyAreRefusedByIndexAndByte) {
  EXPECT_THAT(fault(ptk_file(kSamples, 300, 2)), HasSubstr("token 3 (byte 134) has id 300"));
  EXPECT_THAT(fault(llmq_file({1, 0x80000000u}, {}, 1, 0)), HasSubstr("token 1 (byte 1028) has id 2147483648"));
  EXPECT_THAT(fault(llmq_file({1, 5}, {}, 2, 5)), HasSubstr("token 1 (byte 1028) has id 5"));
}

TEST(TokenFile, CheckVocabularyNamesTheTokenAtAnyDistance) {
  std::vector<std::uint32_t> tokens(600000, 128000);
  const auto fine = open_bytes(llmc_file(tokens, true));
  check_vocabulary(*fine, 128001, "x");
  tokens[524288] = 128001;
  const auto bad = open_bytes(llmc_file(tokens, true));
  try {
    check_vocabulary(*bad, 128001, "train.bin");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_STREQ(error.what(),
                 "train.bin: token 524288 (number 524288 of sample 0, from 0) has id 128001, but the "
                 "model's vocabulary has 128001");
  }
}

TEST(TokenFile, AFileThatShrinksWhileItIsReadIsADataFault) {
  const std::string path = (std::filesystem::temp_directory_path() / "token_file_test.XXXXXX").string();
  std::string name = path;
  const int descriptor = mkstemp(name.data());
  ASSERT_GE(descriptor, 0);
  close(descriptor);
  real_files().write_text(name, llmc_file({1, 2, 3}, false), false);
  const auto file = open_token_file(real_files(), name);
  std::filesystem::resize_file(name, 1026);
  try {
    std::int32_t tokens[3];
    file->read(0, 3, tokens, nullptr);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
  std::filesystem::remove(name);
}

TEST(TokenFile, AMissingFileIsADataFault) {
  MemoryFiles files;
  try {
    open_token_file(files, "gone.ptk");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_THAT(error.what(), HasSubstr("gone.ptk"));
  }
}

TEST(TokenFile, TheFingerprintFollowsContentAndSampleBounds) {
  const std::string content = llmc_file({1, 2, 3, 4}, false);
  const std::uint64_t fingerprint = open_bytes(content)->fingerprint();
  EXPECT_EQ(open_bytes(content)->fingerprint(), fingerprint);
  EXPECT_NE(open_bytes(content, 2)->fingerprint(), fingerprint);
  for (std::size_t byte = 1024; byte < content.size(); ++byte) {
    std::string other = content;
    other[byte] = static_cast<char>(other[byte] ^ 1);
    EXPECT_NE(open_bytes(other)->fingerprint(), fingerprint) << byte;
  }
}

TEST(TokenFile, TheFingerprintIsOfWhatIsTrainedOnNotOfWhatTheFileIsCalled) {
  const std::vector<Sample> samples = {{{1, 2, 3}, {false, true, true}}, {{4, 5}, {true, true}}};
  const std::uint64_t fingerprint = open_bytes(ptk_file(samples, 100, 2))->fingerprint();
  EXPECT_EQ(open_bytes(ptk_file(samples, 100, 2, R"({"sources": ["elsewhere"]})"))->fingerprint(), fingerprint);
  EXPECT_EQ(open_bytes(ptk_file(samples, 70000, 4))->fingerprint(), fingerprint);
  for (const int token : {0, 1, 4}) {
    std::vector<Sample> other = samples;
    Sample& sample = other[token < 3 ? 0 : 1];
    const auto at = static_cast<std::size_t>(token % 3);
    sample.supervised[at] = !sample.supervised[at];
    EXPECT_NE(open_bytes(ptk_file(other, 100, 2))->fingerprint(), fingerprint) << token;
  }
  const std::vector<Sample> joined = {{{1, 2, 3, 4, 5}, {false, true, true, true, true}}};
  EXPECT_NE(open_bytes(ptk_file(joined, 100, 2))->fingerprint(), fingerprint);
}

}  // namespace
}  // namespace protrain
