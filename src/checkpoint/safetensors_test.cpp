#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "checkpoint/test_store.h"

namespace protrain {
namespace {

using testing::HasSubstr;

class Safetensors : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "model.safetensors"; }

  void put(const std::string& header, std::size_t data_bytes, std::optional<std::uint64_t> length = {}) {
    const std::uint64_t said = length.value_or(header.size());
    std::string text;
    for (int i = 0; i < 8; ++i) text += static_cast<char>(said >> (8 * i));
    text += header + std::string(data_bytes, '\1');
    real_files().write_text(path(), text, false);
  }
  std::string fault() {
    return error_of(ExitCode::kFiles, [&] { SafetensorsFile(real_files(), path()); });
  }
  std::string fault(const std::string& header, std::size_t data_bytes) {
    put(header, data_bytes);
    return fault();
  }

  TemporaryFolder folder_;
};

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

const std::vector<TensorInfo>& several() {
  static const std::vector<TensorInfo> tensors = {
      {.name = "wide \"quoted\"", .dtype = DType::kF64, .shape = {3}},
      {.name = "empty", .dtype = DType::kF32, .shape = {0, 5}},
      {.name = "scalar", .dtype = DType::kF32, .shape = {}},
      {.name = "half", .dtype = DType::kF16, .shape = {2, 3}},
      {.name = "brain", .dtype = DType::kBf16, .shape = {5}},
      {.name = "bytes", .dtype = DType::kU8, .shape = {7, 1}},
  };
  return tensors;
}
constexpr std::size_t kSeveralBytes = 24 + 0 + 4 + 12 + 10 + 7;

TEST_F(Safetensors, WhatIsWrittenIsReadBack) {
  const std::vector<std::byte> data = random_bytes(kSeveralBytes, 1);
  SafetensorsWriter writer(real_files(), path(), several(), {{"format", "pt"}});
  writer.append(data);
  writer.finish(true);

  const SafetensorsFile file(real_files(), path());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), several().size());
  std::size_t at = 0;
  for (const TensorInfo& wanted : several()) {
    const TensorInfo* found = file.find(wanted.name);
    ASSERT_NE(found, nullptr) << wanted.name;
    EXPECT_EQ(found->dtype, wanted.dtype);
    EXPECT_EQ(found->shape, wanted.shape);
    std::vector<std::byte> bytes(static_cast<std::size_t>(found->bytes));
    file.read(*found, 0, bytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), data.begin() + static_cast<std::ptrdiff_t>(at)));
    at += bytes.size();
  }
  EXPECT_EQ(at, kSeveralBytes);
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST_F(Safetensors, TheCutOfThePiecesDoesNotChangeTheFile) {
  // Larger than the writer's buffer, so that every path of append() is taken.
  constexpr std::size_t kBytes = 11'000'000;
  const std::vector<std::byte> data = random_bytes(kBytes, 2);
  std::string first;
  for (const std::size_t piece : {kBytes, std::size_t{5'000'000}, std::size_t{4'194'304}, std::size_t{77'777}}) {
    SafetensorsWriter writer(real_files(), path(), {{.name = "x", .dtype = DType::kU8, .shape = {kBytes}}}, {});
    for (std::size_t at = 0; at < kBytes; at += piece) {
      writer.append(std::span(data).subspan(at, std::min(piece, kBytes - at)));
    }
    writer.finish(false);
    const std::string text = real_files().read_text(path());
    if (first.empty()) first = text;
    EXPECT_TRUE(text == first) << "pieces of " << piece;
  }
  EXPECT_TRUE(first.ends_with(std::string(reinterpret_cast<const char*>(data.data()), kBytes)));
}

TEST_F(Safetensors, TheDataSectionStartsAtAMultipleOfEight) {
  for (int length = 1; length < 10; ++length) {
    SafetensorsWriter writer(real_files(), path(), {{.name = std::string(length, 'n'), .shape = {1}}}, {});
    writer.append(random_bytes(4, 3));
    writer.finish(false);
    const SafetensorsFile file(real_files(), path());
    EXPECT_EQ(file.tensors().front().offset % 8, 0);
  }
}

TEST_F(Safetensors, AWriterThatLacksBytesDoesNotFinish) {
  SafetensorsWriter writer(real_files(), path(), {{.name = "x", .shape = {2}}}, {});
  writer.append(random_bytes(4, 4));
  EXPECT_THROW(writer.finish(false), InternalError);
  EXPECT_THROW(writer.append(random_bytes(5, 4)), InternalError);
}

TEST_F(Safetensors, AFileThatIsOneByteShortIsRefusedNamingTensorAndBytes) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  put(header, 8);
  EXPECT_EQ(fault(), "");
  EXPECT_EQ(SafetensorsFile(real_files(), path()).tensors().size(), 1U);
  put(header, 7);
  const std::size_t start = 8 + header.size();
  EXPECT_THAT(fault(),
              testing::EndsWith(fmt::format("model.safetensors: tensor 'x': needs bytes [{},{}) but the file has {}",
                                            start, start + 8, start + 7)));
}

TEST_F(Safetensors, EachFaultOfTheHeaderIsRefusedWithItsReason) {
  const auto tensor = [](const std::string& name, const std::string& shape, const std::string& offsets,
                         const std::string& dtype = "U8") {
    return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype, shape, offsets);
  };
  const auto object = [](const std::string& inside) { return "{" + inside + "}"; };
  struct Case {
    std::string header;
    std::size_t data_bytes;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {"", 0, "does not start with '{'"},
      {"[1]", 0, "does not start with '{'"},
      {"{\"x\":", 0, "not JSON"},
      {object(tensor("x", "1", "0,1")) + "}", 1, "not JSON"},
      {object("\"x\":1"), 0, "holds a number"},
      {object("\"x\":null"), 0, "holds null"},
      {object("\"x\":{\"shape\":[1],\"data_offsets\":[0,1]}"), 1, "tensor 'x': dtype is missing"},
      {object("\"x\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}"), 1, "tensor 'x': shape is missing"},
      {object("\"x\":{\"dtype\":\"U8\",\"shape\":[1]}"), 1, "tensor 'x': data_offsets is missing"},
      {object("\"x\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"), 1, "stands twice"},
      {object("\"x\":{\"dtype\":{},\"shape\":[1],\"data_offsets\":[0,1]}"), 1, "holds an object"},
      {object("\"x\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}"), 1, "holds a list"},
      {object(tensor("x", "1", "0,1", "F99")), 1, "dtype 'F99' is not supported"},
      {object(tensor("x", "-1", "0,1")), 1, "negative number -1"},
      {object(tensor("x", "1.5", "0,1")), 1, "the number 1.5"},
      {object(tensor("x", "18446744073709551616", "0,1")), 1, "the number 18446744073709551616"},
      {object(tensor("x", "1", "1")), 1, "data_offsets must be"},
      {object(tensor("x", "1", "0,1,2")), 2, "data_offsets must be"},
      {object(tensor("x", "1", "1,0")), 1, "data_offsets must be"},
      {object(tensor("x", "3", "0,2")), 2, "takes 3 bytes but data_offsets hold 2"},
      {object(tensor("x", "4294967296,4294967296", "0,0")), 0, "overflows"},
      {object(tensor("x", "4294967296,2147483648", "0,1")), 1, "overflows"},
      {object(tensor("x", "9223372036854775808,0", "0,0")), 0, "overflows"},
      {object(tensor("x", "1", "18446744073709551614,18446744073709551615")), 1, "but the file has"},
      {object(tensor("x", "1", "0,1") + "," + tensor("x", "1", "1,2")), 2, "tensor 'x' stands twice"},
      {object(tensor("x", "1", "0,1") + "," + tensor("y", "1", "2,3")), 3, "tensor 'y': starts at byte"},
      {object(tensor("x", "2", "0,2") + "," + tensor("y", "2", "1,3")), 3, "tensor 'y': starts at byte"},
      {object(tensor("x", "1", "1,2")), 2, "tensor 'x': starts at byte"},
      {object(tensor("x", "1", "0,1")), 3, "2 bytes after the last tensor"},
      {"{}", 1, "1 bytes after the last tensor"},
      {object("\"__metadata__\":{\"a\":1}"), 0, "holds a number in __metadata__"},
      {object("\"__metadata__\":{\"a\":\"1\",\"a\":\"1\"}"), 0, "metadata key 'a' stands twice"},
      {object("\"__metadata__\":{},\"__metadata__\":{}"), 0, "'__metadata__' stands twice"},
      {object(tensor("x", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "0,1")), 1, "more than 16 numbers"},
  };
  for (const Case& test : cases) {
    const std::string message = fault(test.header, test.data_bytes);
    EXPECT_THAT(message, HasSubstr(test.reason)) << test.header;
    EXPECT_THAT(message, HasSubstr("model.safetensors")) << test.header;
    EXPECT_THAT(message, testing::Not(HasSubstr("\n"))) << test.header;
  }
}

TEST_F(Safetensors, AHeaderLengthThatLiesIsRefused) {
  put("{}", 0, 3);
  EXPECT_THAT(fault(), HasSubstr("header needs bytes [8,11) but the file has 10"));
  put("{}", 0, 100'000'001);
  EXPECT_THAT(fault(), HasSubstr("a header of 100000001 bytes (at most 100000000)"));
  put("{}", 0, ~std::uint64_t{0});
  EXPECT_THAT(fault(), HasSubstr("not a safetensors file"));
  real_files().write_text(path(), "1234567", false);
  EXPECT_THAT(fault(), HasSubstr("7 bytes"));
}

TEST_F(Safetensors, AnyOrderInTheHeaderIsReadInFileOrder) {
  put(R"({"b":{"data_offsets":[2,4],"shape":[2],"dtype":"U8"},"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}   )",
      4);
  const SafetensorsFile file(real_files(), path());
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
}

}  // namespace
}  // namespace protrain
