#include "data/token_layout.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace protrain {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read in place");

constexpr std::string_view kPtkMagic("PTKTOK1\0", 8);
constexpr std::string_view kLlmqMagic = "BIN.TOK\n";
constexpr std::uint32_t kLlmcMagic16 = 20240520;
constexpr std::uint32_t kLlmcMagic32 = 20240801;
constexpr std::uint32_t kLlmcEvalMagic = 20240522;
constexpr Bytes kPtkHeaderBytes = 104;  // the digest behind it aside
constexpr Bytes kBinHeaderBytes = 1024;
constexpr Bytes kSectionAlignment = 64;

// Byte offsets of the .ptk header's fields.
enum PtkField : std::size_t {
  kVersionAt = 8,
  kTokenBytesAt = 12,
  kTokensAt = 16,
  kSamplesAt = 24,
  kVocabularyAt = 32,
  kLongestAt = 40,
  kTokensSectionAt = 48,
  kStartsSectionAt = 56,
  kMaskSectionAt = 64,
  kJsonSectionAt = 72,
  kJsonBytesAt = 80,
  kFileBytesAt = 88,
  kHashAt = 96,
  kDigestAt = 104,
};

using Header = std::array<std::byte, kBinHeaderBytes>;

template <typename T>
T value_at(const Header& header, std::size_t offset) {
  T value;
  std::memcpy(&value, header.data() + offset, sizeof value);
  return value;
}

bool starts_with(const Header& header, std::string_view magic) {
  return std::memcmp(header.data(), magic.data(), magic.size()) == 0;
}

// A header count that is at most `most`, so that arithmetic on it cannot overflow.
std::int64_t count_at(const Header& header, std::size_t offset, std::int64_t most, const char* what,
                      const std::string& name) {
  const auto value = value_at<std::uint64_t>(header, offset);
  if (value > static_cast<std::uint64_t>(most)) {
    fail(ExitCode::kData, "{}: byte {}: {} {}, but the file has room for at most {}", name, offset, what, value, most);
  }
  return static_cast<std::int64_t>(value);
}

// Offset of a section of `bytes` bytes that starts at or after `from` and ends inside the file.
Bytes section_at(const Header& header, std::size_t field, Bytes from, Bytes bytes, Bytes file_bytes, const char* what,
                 const std::string& name) {
  const auto offset = value_at<std::uint64_t>(header, field);
  const bool inside =
      offset <= static_cast<std::uint64_t>(file_bytes) && bytes <= file_bytes - static_cast<Bytes>(offset);
  if (offset % kSectionAlignment != 0 || (checked(1) && !inside) || static_cast<Bytes>(offset) < from) {
    fail(ExitCode::kData,
         "{}: byte {}: the {} at {} with {} bytes must start at a multiple of {}, at {} or later, and end by {}", name,
         field, what, offset, bytes, kSectionAlignment, from, file_bytes);
  }
  return static_cast<Bytes>(offset);
}

TokenLayout ptk_layout(const Header& header, Bytes file_bytes, const std::string& name) {
  if (file_bytes < kPtkHeaderBytes) {
    fail(ExitCode::kData, "{}: {} bytes, shorter than the {}-byte header of a .ptk file: it was cut off", name,
         file_bytes, kPtkHeaderBytes);
  }
  if (const auto version = value_at<std::uint32_t>(header, kVersionAt); version != 1) {
    fail(ExitCode::kData, "{}: byte {}: version {}; this program reads version 1", name, +kVersionAt, version);
  }
  if (XXH64(header.data(), kHashAt, 0) != value_at<std::uint64_t>(header, kHashAt)) {
    fail(ExitCode::kData, "{}: byte {}: the header's hash does not match: the header is damaged", name, +kHashAt);
  }
  if (const auto stated = value_at<std::uint64_t>(header, kFileBytesAt);
      stated != static_cast<std::uint64_t>(file_bytes)) {
    fail(ExitCode::kData, "{}: byte {}: {} bytes expected, but the file has {}: it was cut off or appended to", name,
         +kFileBytesAt, stated, file_bytes);
  }
  TokenLayout layout;
  const auto token_bytes = value_at<std::uint32_t>(header, kTokenBytesAt);
  if (token_bytes != 2 && token_bytes != 4) {
    fail(ExitCode::kData, "{}: byte {}: {} bytes a token; 2 or 4 are possible", name, +kTokenBytesAt, token_bytes);
  }
  layout.token_bytes = token_bytes;
  layout.tokens = count_at(header, kTokensAt, file_bytes / token_bytes, "tokens", name);
  layout.samples = count_at(header, kSamplesAt, file_bytes / 8, "samples", name);
  layout.longest_sample = count_at(header, kLongestAt, layout.tokens, "tokens in the longest sample", name);
  const auto vocabulary = value_at<std::uint64_t>(header, kVocabularyAt);
  if (vocabulary > std::numeric_limits<std::int32_t>::max()) {
    fail(ExitCode::kData, "{}: byte {}: vocabulary {}; at most 2147483647 is possible", name, +kVocabularyAt,
         vocabulary);
  }
  layout.vocabulary = static_cast<std::int64_t>(vocabulary);

  const Bytes tokens_bytes = layout.tokens * layout.token_bytes;
  layout.tokens_at = section_at(header, kTokensSectionAt, kPtkHeaderBytes, tokens_bytes, file_bytes, "tokens", name);
  const Bytes starts_bytes = (layout.samples + 1) * 8;
  layout.starts_at = section_at(header, kStartsSectionAt, layout.tokens_at + tokens_bytes, starts_bytes, file_bytes,
                                "sample starts", name);
  const Bytes mask_bytes = ceil_div(layout.tokens, 8);
  layout.mask_at =
      section_at(header, kMaskSectionAt, layout.starts_at + starts_bytes, mask_bytes, file_bytes, "loss mask", name);
  const Bytes json_bytes = count_at(header, kJsonBytesAt, file_bytes, "bytes of JSON", name);
  section_at(header, kJsonSectionAt, layout.mask_at + mask_bytes, json_bytes, file_bytes, "JSON", name);
  layout.body_at = kDigestAt + 8;  // no section starts before byte 128
  layout.digest = value_at<std::uint64_t>(header, kDigestAt);
  return layout;
}

void expect_size(Bytes file_bytes, Bytes expected, std::int64_t tokens, const std::string& name) {
  if (file_bytes == expected || !checked(2)) return;
  fail(ExitCode::kData, "{}: {} bytes, but a header of {} tokens asks for {}: {}", name, file_bytes, tokens, expected,
       file_bytes < expected ? "the file was cut off" : "there are bytes after the end");
}

TokenLayout llmc_layout(const Header& header, Bytes file_bytes, bool wide, const std::string& name) {
  const auto version = value_at<std::uint32_t>(header, 4);
  const std::uint32_t expected = wide ? 7 : 1;
  if (version != expected) {
    fail(ExitCode::kData, "{}: byte 4: version {}; llm.c files of this magic have version {}", name, version, expected);
  }
  TokenLayout layout;
  layout.token_bytes = wide ? 4 : 2;
  layout.tokens_at = kBinHeaderBytes;
  layout.tokens = value_at<std::uint32_t>(header, 8);
  expect_size(file_bytes, kBinHeaderBytes + layout.tokens * layout.token_bytes, layout.tokens, name);
  return layout;
}

TokenLayout llmq_layout(const Header& header, Bytes file_bytes, const std::string& name) {
  const auto version = value_at<std::int32_t>(header, 8);
  if (version != 1 && version != 2) {
    fail(ExitCode::kData, "{}: byte 8: version {}; this program reads LLMQ files of version 1 and 2", name, version);
  }
  const auto token_bytes = value_at<std::int32_t>(header, 12);
  if (token_bytes != 4) {
    fail(ExitCode::kData, "{}: byte 12: {} bytes a token; LLMQ files have 4", name, token_bytes);
  }
  const auto tokens = value_at<std::int32_t>(header, 16);
  if (tokens < 0) fail(ExitCode::kData, "{}: byte 16: {} tokens; a count cannot be negative", name, tokens);
  TokenLayout layout;
  layout.token_bytes = 4;
  layout.tokens = tokens;
  layout.tokens_at = kBinHeaderBytes;
  Bytes end = kBinHeaderBytes + layout.tokens * 4;
  if (version == 2) {
    const auto vocabulary = value_at<std::int32_t>(header, 20);
    if (vocabulary < 0) {
      fail(ExitCode::kData, "{}: byte 20: vocabulary {}; it cannot be negative", name, vocabulary);
    }
    layout.vocabulary = vocabulary;
    const auto has_masks = value_at<std::int32_t>(header, 24);
    if (has_masks != 0 && has_masks != 1) {
      fail(ExitCode::kData, "{}: byte 24: has-masks {}; 0 or 1 are possible", name, has_masks);
    }
    if (has_masks == 1) {
      layout.mask_at = end;
      end += ceil_div(layout.tokens, 8);
    }
  }
  expect_size(file_bytes, end, layout.tokens, name);
  return layout;
}

}  // namespace

TokenLayout read_token_layout(const ReadableFile& file, const std::string& name) {
  const Bytes file_bytes = file.size();
  if (file_bytes == 0) fail(ExitCode::kData, "{}: the file is empty", name);
  Header header{};
  const Bytes header_bytes = std::min<Bytes>(file_bytes, kBinHeaderBytes);
  file.read_at(0, std::span(header).first(static_cast<std::size_t>(header_bytes)));

  if (starts_with(header, kPtkMagic)) return ptk_layout(header, file_bytes, name);
  const bool llmq = starts_with(header, kLlmqMagic);
  const auto magic = value_at<std::uint32_t>(header, 0);
  if (!llmq && magic == kLlmcEvalMagic) {
    fail(ExitCode::kData, "{}: byte 0: an llm.c evaluation file (magic {}), not a token file (magic {} or {})", name,
         magic, kLlmcMagic16, kLlmcMagic32);
  }
  if (!llmq && magic != kLlmcMagic16 && magic != kLlmcMagic32) {
    fail(ExitCode::kData,
         "{}: byte 0: not a token file (.ptk, llm.c .bin, LLMQ .bin); `protrain prepare` makes one from text", name);
  }
  if (file_bytes < kBinHeaderBytes) {
    fail(ExitCode::kData, "{}: {} bytes, shorter than the {}-byte header of a .bin file: it was cut off", name,
         file_bytes, kBinHeaderBytes);
  }
  return llmq ? llmq_layout(header, file_bytes, name) : llmc_layout(header, file_bytes, magic == kLlmcMagic32, name);
}

}  // namespace protrain
