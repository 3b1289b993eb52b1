#include "train/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace protrain {
namespace {
namespace fs = std::filesystem;

// RFC 3720, appendix B.4, and the usual check value.
TEST(TensorBoardTest, Crc32cHasTheKnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

template <typename T>
T read(const std::string& from, std::size_t at) {
  T value;
  std::memcpy(&value, from.data() + at, sizeof value);
  return value;
}

std::uint32_t masked(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

std::vector<std::string> records(const std::string& file) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < file.size();) {
    const auto size = read<std::uint64_t>(file, at);
    EXPECT_EQ(read<std::uint32_t>(file, at + 8), masked(crc32c(file.substr(at, 8))));
    out.push_back(file.substr(at + 12, size));
    EXPECT_EQ(read<std::uint32_t>(file, at + 12 + size), masked(crc32c(out.back())));
    at += 16 + size;
  }
  return out;
}

TEST(TensorBoardTest, AnEventFileHoldsVersionSessionAndScalars) {
  std::string name = (fs::temp_directory_path() / "board-XXXXXX").string();
  const fs::path folder = mkdtemp(name.data());
  {
    TensorBoardLog log(real_files(), folder / "tb", 300);
    MetricsRow row(300);
    row.add("loss", 2.5).add("kind", "train");
    log.write(row, "train");
  }
  const std::vector<std::string> names = real_files().list(folder / "tb");
  ASSERT_EQ(names.size(), 1u);
  EXPECT_THAT(names[0], ::testing::StartsWith("events.out.tfevents."));
  const std::vector<std::string> events = records(real_files().read_text(folder / "tb" / names[0]));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_THAT(events[0], ::testing::HasSubstr("brain.Event:2"));
  // field 7 (session log), 2 bytes: status = START
  EXPECT_THAT(events[1], ::testing::EndsWith(std::string("\x3a\x02\x08\x01", 4)));
  // Event { 1: double wall time; 2: varint 300 = ac 02; 5: Summary { 1: Value { 1: "train/loss"; 2: float 2.5 } } }
  ASSERT_EQ(events[2].substr(9, 3), std::string("\x10\xac\x02", 3));
  const std::string value = std::string("\x0a\x0atrain/loss\x15", 13) + std::string("\x00\x00\x20\x40", 4);
  EXPECT_EQ(events[2].substr(12), std::string("\x2a\x13\x0a\x11", 4) + value);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace protrain
