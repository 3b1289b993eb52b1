#include "base/units.h"

#include <gtest/gtest.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/log.h"

namespace protrain {
namespace {

TEST(Units, FormatsBytesWithTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(-2 * kMiB), "-2.00 MiB");
}

TEST(Units, ParsesWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("24GiB"), 24 * kGiB);
  EXPECT_EQ(parse_bytes(" 500 MiB "), 500 * kMiB);
  EXPECT_EQ(parse_bytes("1.5GB"), 1500000000);
  EXPECT_EQ(parse_bytes("0.5kib"), 512);
  EXPECT_EQ(parse_bytes("0.1GiB"), 107374182);
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("0GiB"), 0);
  EXPECT_EQ(parse_bytes("9007199254740993"), 9007199254740993);  // 2^53 + 1 has no double
}

TEST(Units, RefusesWhatIsNoByteCountAndNamesIt) {
  for (const char* text : {"", "GiB", "12 apples", "1.2.3", "-5", "1e9", "9999999999999GiB", "nan", "0x10", "0.4",
                           "1.5", "0.0", "1.5B", "0.0GiB", "0.0000000001GiB", "0.0006kib"}) {
    SCOPED_TRACE(text);
    try {
      parse_bytes(text);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_NE(std::string(error.what()).find('"' + std::string(text) + '"'), std::string::npos) << error.what();
    }
  }
}

TEST(DTypes, EachHasOneNameThatLeadsBackToIt) {
  for (const DType type : kDTypes) {
    EXPECT_EQ(dtype_from_name(safetensors_name(type)), type);
    EXPECT_EQ(dtype_from_name(transformers_name(type)), type);
    EXPECT_GT(size_of(type), 0);
  }
  EXPECT_EQ(dtype_from_name("bfloat16"), DType::kBf16);
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
}

TEST(Errors, AnInvariantNamesItsPlaceAndValues) {
  try {
    PROTRAIN_CHECK(1 + 1 == 3, "sum {}", 2);
    FAIL() << "passed";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("units_test.cpp"), std::string::npos) << text;
    EXPECT_NE(text.find("1 + 1 == 3"), std::string::npos) << text;
    EXPECT_NE(text.find("sum 2"), std::string::npos) << text;
  }
}

TEST(Log, IsSilentUntilASinkIsSet) {
  log::info("nobody hears {}", 1);
  std::string heard;
  log::set_sink(
      [&](log::Level level, const std::string& line) { heard = std::to_string(static_cast<int>(level)) + line; });
  log::warning("value {}", 2);
  log::set_sink({});
  log::info("nobody again");
  EXPECT_EQ(heard, "2value 2");
}

}  // namespace
}  // namespace protrain
