#include "search/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace protrain {
namespace {

using ::testing::HasSubstr;

const std::string kLeast = R"("name": "card", "device_memory": "24GiB", "host_memory": 1e11, "bf16_flops": 6e13,
  "f32_flops": 2e13, "attention_flops": 5e13, "device_bytes": 8e11, "h2d_bytes": 1.5e10, "d2h_bytes": 1.4e10,
  "host_bytes": 7e10)";

std::string refusal(const std::string& json) {
  try {
    parse_hardware(json, "card.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "accepted";
}

TEST(HardwareFile, ReadsSizesAsTextOrNumbersAndLeavesTheRestAtItsDefault) {
  const Hardware card = parse_hardware("{" + kLeast + R"(, "outside": "0.5GiB", "source": "a guess"})", "card.json");
  EXPECT_EQ(card.name, "card");
  EXPECT_EQ(card.device_memory, 24 * kGiB);
  EXPECT_EQ(card.host_memory, 100'000'000'000);
  EXPECT_EQ(card.outside, 512 * kMiB);
  EXPECT_EQ(card.d2h_bytes, 1.4e10);
  EXPECT_EQ(card.duplex, 1);
  EXPECT_EQ(card.gpus, 1);
}

TEST(HardwareFile, NamesFileKeyAndValueOfWhatIsWrong) {
  const auto with = [](const std::string& more) { return refusal("{" + kLeast + ", " + more + "}"); };
  EXPECT_THAT(with(R"("duplex": 0.5)"), HasSubstr("card.json: duplex: 0.5, must be a number, 1 to 1e+18"));
  EXPECT_THAT(with(R"("disk_read_bytes": -1)"),
              HasSubstr("card.json: disk_read_bytes: -1, must be a number, 1 to 1e+18"));
  EXPECT_THAT(with(R"("gpus": 8)"), HasSubstr("gpus: 8, must be 1: runs on several GPUs come later"));
  EXPECT_THAT(with(R"("gpus": 1.5)"), HasSubstr("must be a whole number"));
  EXPECT_THAT(with(R"("gpus": "two")"), HasSubstr(R"(gpus: "two", must be)"));
  EXPECT_THAT(with(R"("outside": "much")"), HasSubstr(R"(outside: "much", must be a number of bytes)"));
  EXPECT_THAT(with(R"("outside": "25GiB")"), HasSubstr("not less than device_memory"));
  EXPECT_THAT(with(R"("flops": 1)"), HasSubstr("flops is no key of a machine; there are name"));
  EXPECT_THAT(with(R"("duplex": 1, "duplex": 2)"), HasSubstr("card.json:"));
  EXPECT_THAT(refusal(R"({"name": "card"})"), HasSubstr("device_memory is missing"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal("{"), HasSubstr("card.json:"));
}

TEST(HardwareFile, EveryOneOfTheProjectsIsReadable) {
  int read = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::filesystem::path(__FILE__).parent_path() / "../../hardware")) {
    std::ostringstream text;
    text << std::ifstream(file.path()).rdbuf();
    const Hardware hardware = parse_hardware(text.str(), file.path().string());
    // No card of these is slower to reach than its link, or has less memory than its libraries take.
    EXPECT_GT(hardware.device_bytes, 10 * hardware.h2d_bytes) << hardware.name;
    EXPECT_GT(hardware.host_bytes, hardware.h2d_bytes) << hardware.name;
    EXPECT_GT(hardware.bf16_flops, hardware.f32_flops) << hardware.name;
    EXPECT_NE(text.str().find("\"source\""), std::string::npos) << hardware.name;
    ++read;
  }
  EXPECT_GE(read, 4);
}

}  // namespace
}  // namespace protrain
