#include "train/tensorboard.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

namespace protrain {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);  // Castagnoli, reflected
    table[i] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

template <typename T>
void put_little_endian(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

// The wire format of protocol buffers.
enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kDelimited = 2, kFixed32 = 5 };

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}
void put_tag(std::string& to, std::uint32_t field, WireType type) { put_varint(to, field << 3 | type); }
void put_message(std::string& to, std::uint32_t field, std::string_view message) {
  put_tag(to, field, kDelimited);
  put_varint(to, message.size());
  to.append(message);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Event: double wall_time = 1, int64 step = 2.
std::string event_at(std::int64_t step) {
  std::string event;
  put_tag(event, 1, kFixed64);
  put_little_endian(event, std::bit_cast<std::uint64_t>(wall_seconds()));
  put_tag(event, 2, kVarint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = ~0u;
  for (const char c : data) crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string tf_record(std::string_view data) {
  std::string record;
  put_little_endian(record, static_cast<std::uint64_t>(data.size()));
  put_little_endian(record, masked(crc32c(record)));
  record.append(data);
  put_little_endian(record, masked(crc32c(data)));
  return record;
}

TensorBoardLog::TensorBoardLog(Files& files, const std::filesystem::path& folder, std::int64_t first_step) {
  files.make_directories(folder);
  char host[256] = "host";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '-';
  const auto now = static_cast<std::int64_t>(wall_seconds());
  file_ = files.create(folder / fmt::format("events.out.tfevents.{}.{}.{}.{}", now, host, getpid(), first_step));

  std::string version = event_at(0);
  put_message(version, 3, "brain.Event:2");  // file_version = 3
  write_event(version);
  std::string start = event_at(first_step);
  std::string session;
  put_tag(session, 1, kVarint);  // SessionLog: status = 1
  put_varint(session, 1);        // START
  put_message(start, 7, session);
  write_event(start);
}

void TensorBoardLog::write(const MetricsRow& row, std::string_view prefix) {
  std::string summary;
  for (const auto& [name, number] : row.numbers()) {
    std::string value;
    put_message(value, 1, fmt::format("{}/{}", prefix, name));  // Summary.Value: tag = 1, simple_value = 2
    put_tag(value, 2, kFixed32);
    put_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    put_message(summary, 1, value);
  }
  std::string event = event_at(row.step());
  put_message(event, 5, summary);
  write_event(event);
}

void TensorBoardLog::write_event(std::string_view event) {
  const std::string record = tf_record(event);
  file_->write(std::as_bytes(std::span(record)));
}

}  // namespace protrain
