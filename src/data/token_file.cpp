#include "data/token_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "data/token_layout.h"

namespace protrain {
namespace {

constexpr std::int64_t kReadTokens = std::int64_t{16} * 1024;             // of read(), on the stack: 32 KiB of uint16
constexpr Bytes kDigestBlockBytes = kMiB;                                 // read at once
constexpr std::int64_t kScanTokens = std::int64_t{256} * 1024;            // of whole-file passes: 1 MiB of int32
constexpr std::size_t kMaskBytes = 4096;                                  // of read(), on the stack
constexpr std::int64_t kMaskTokens = 8 * (std::int64_t{kMaskBytes} - 1);  // at any bit offset
constexpr std::uint32_t kIdLimit = 0x80000000u;                           // ids are int32 everywhere else

template <typename T>
std::span<std::byte> bytes_of(T* data, std::int64_t count) {
  return std::as_writable_bytes(std::span(data, static_cast<std::size_t>(count)));
}

class StoredTokens : public TokenFile {
 public:
  StoredTokens(std::unique_ptr<ReadableFile> file, std::string name, const TokenLayout& layout)
      : file_(std::move(file)),
        name_(std::move(name)),
        layout_(layout),
        id_limit_(layout.vocabulary > 0 ? static_cast<std::uint32_t>(layout.vocabulary) : kIdLimit) {}

  std::int64_t tokens() const override { return layout_.tokens; }
  std::int64_t samples() const override { return static_cast<std::int64_t>(starts_.size()) - 1; }
  std::int64_t vocabulary() const override { return layout_.vocabulary; }

  std::int64_t sample_start(std::int64_t sample) const override {
    PROTRAIN_CHECK(sample >= 0 && sample <= samples(), "sample {} of {}", sample, samples());
    return starts_[static_cast<std::size_t>(sample)];
  }

  void read(std::int64_t first, std::int64_t count, std::int32_t* tokens, std::uint8_t* supervised) const override {
    PROTRAIN_CHECK(first >= 0 && count >= 0 && first <= layout_.tokens && count <= layout_.tokens - first,
                   "tokens {} + {} of {}", first, count, layout_.tokens);
    try {
      if (tokens != nullptr) read_tokens(first, count, tokens);
      if (supervised != nullptr) read_mask(first, count, supervised);
    } catch (const Error& error) {
      throw Error(ExitCode::kData, error.what());
    }
  }

  std::uint64_t fingerprint() const override {
    const std::lock_guard lock(fingerprint_mutex_);
    if (!fingerprint_known_) {
      fingerprint_ = compute_fingerprint();
      fingerprint_known_ = true;
    }
    return fingerprint_;
  }

  void check_digest() const override;

  void load_starts();
  void one_sample() { starts_ = {0, layout_.tokens}; }
  void cut_samples(std::int64_t end_token);

 private:
  void read_tokens(std::int64_t first, std::int64_t count, std::int32_t* tokens) const;
  void read_mask(std::int64_t first, std::int64_t count, std::uint8_t* supervised) const;
  void check_ids(std::int64_t first, std::int64_t count, const std::int32_t* tokens) const;
  std::uint64_t compute_fingerprint() const;

  const std::unique_ptr<ReadableFile> file_;
  const std::string name_;
  const TokenLayout layout_;
  const std::uint32_t id_limit_;  // 2^31 at most, so an id below it is a valid int32
  std::vector<std::int64_t> starts_;
  mutable std::mutex fingerprint_mutex_;
  mutable bool fingerprint_known_ = false;
  mutable std::uint64_t fingerprint_ = 0;
};

void StoredTokens::read_tokens(std::int64_t first, std::int64_t count, std::int32_t* tokens) const {
  const Bytes at = layout_.tokens_at + first * layout_.token_bytes;
  if (layout_.token_bytes == 4) {
    file_->read_at(at, bytes_of(tokens, count));
  } else {
    std::array<std::uint16_t, kReadTokens> narrow;
    for (std::int64_t done = 0; done < count; done += kReadTokens) {
      const std::int64_t piece = std::min(kReadTokens, count - done);
      file_->read_at(at + done * 2, bytes_of(narrow.data(), piece));
      for (std::int64_t i = 0; i < piece; ++i) tokens[done + i] = narrow[static_cast<std::size_t>(i)];
    }
  }
  check_ids(first, count, tokens);
}

void StoredTokens::check_ids(std::int64_t first, std::int64_t count, const std::int32_t* tokens) const {
  std::uint32_t highest = 0;
  for (std::int64_t i = 0; i < count; ++i) highest = std::max(highest, static_cast<std::uint32_t>(tokens[i]));
  if (highest < id_limit_ || count == 0 || !checked(5)) return;
  const auto bad = std::find_if(tokens, tokens + count,
                                [&](std::int32_t id) { return static_cast<std::uint32_t>(id) >= id_limit_; });
  const std::int64_t index = first + (bad - tokens);
  fail(ExitCode::kData, "{}: token {} (byte {}) has id {}, but the file's vocabulary has {}", name_, index,
       layout_.tokens_at + index * layout_.token_bytes, static_cast<std::uint32_t>(*bad), id_limit_);
}

void StoredTokens::read_mask(std::int64_t first, std::int64_t count, std::uint8_t* supervised) const {
  if (layout_.mask_at < 0) {
    std::memset(supervised, 1, static_cast<std::size_t>(count));
    return;
  }
  std::array<std::uint8_t, kMaskBytes> bits;
  for (std::int64_t done = 0; done < count; done += kMaskTokens) {
    const std::int64_t piece = std::min(kMaskTokens, count - done);
    const std::int64_t byte = (first + done) / 8;
    const std::int64_t shift = (first + done) % 8;
    file_->read_at(layout_.mask_at + byte, bytes_of(bits.data(), ceil_div(shift + piece, 8)));
    for (std::int64_t i = 0; i < piece; ++i) {
      const std::int64_t bit = shift + i;
      supervised[done + i] = (bits[static_cast<std::size_t>(bit / 8)] >> (bit % 8)) & 1;
    }
  }
}

void StoredTokens::load_starts() {
  starts_.resize(static_cast<std::size_t>(layout_.samples) + 1);
  file_->read_at(layout_.starts_at, std::as_writable_bytes(std::span(starts_)));
  std::int64_t before = 0;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const std::int64_t start = starts_[i];
    // A uint64 above int64 shows as negative here and is refused like any decrease.
    if (checked(3) && (start < before || start > layout_.tokens || (i == 0 && start != 0))) {
      fail(ExitCode::kData, "{}: byte {}: sample {} starts at token {}; expected {}", name_,
           layout_.starts_at + static_cast<Bytes>(i) * 8, i, static_cast<std::uint64_t>(start),
           i == 0 ? std::string("0") : fmt::format("{} to {}", before, layout_.tokens));
    }
    longest = std::max(longest, start - before);
    before = start;
  }
  if (checked(4) && before != layout_.tokens) {
    fail(ExitCode::kData, "{}: byte {}: the samples end at token {}, but there are {} tokens", name_,
         layout_.starts_at + layout_.samples * 8, before, layout_.tokens);
  }
  if (longest != layout_.longest_sample) {
    fail(ExitCode::kData, "{}: byte 40: the longest sample has {} tokens, but the header says {}", name_, longest,
         layout_.longest_sample);
  }
}

void StoredTokens::cut_samples(std::int64_t end_token) {
  starts_ = {0};
  std::vector<std::int32_t> block(static_cast<std::size_t>(std::min(kScanTokens, layout_.tokens)));
  for (std::int64_t first = 0; first < layout_.tokens; first += kScanTokens) {
    const std::int64_t count = std::min(kScanTokens, layout_.tokens - first);
    read(first, count, block.data(), nullptr);
    for (std::int64_t i = 0; i < count; ++i) {
      if (block[static_cast<std::size_t>(i)] == end_token) starts_.push_back(first + i + 1);
    }
  }
  if (starts_.back() != layout_.tokens) starts_.push_back(layout_.tokens);
}

std::uint64_t StoredTokens::compute_fingerprint() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  PROTRAIN_CHECK(state != nullptr);
  XXH3_64bits_reset(state.get());
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kScanTokens, layout_.tokens)));
  std::vector<std::uint8_t> mask(ids.size());
  for (std::int64_t first = 0; first < layout_.tokens; first += kScanTokens) {
    const std::int64_t count = std::min(kScanTokens, layout_.tokens - first);
    read(first, count, ids.data(), mask.data());
    XXH3_64bits_update(state.get(), ids.data(), static_cast<std::size_t>(count) * sizeof ids[0]);
    XXH3_64bits_update(state.get(), mask.data(), static_cast<std::size_t>(count));
  }
  XXH3_64bits_update(state.get(), starts_.data(), starts_.size() * sizeof starts_[0]);
  return XXH3_64bits_digest(state.get());
}

void StoredTokens::check_digest() const {
  if (layout_.digest == 0) return;
  try {
    const Bytes end = file_->size();
    std::vector<std::byte> block(static_cast<std::size_t>(std::min(kDigestBlockBytes, end - layout_.body_at)));
    auto crc = crc32_z(0, nullptr, 0);
    for (Bytes at = layout_.body_at; at < end; at += kDigestBlockBytes) {
      const auto piece = std::span(block).first(static_cast<std::size_t>(std::min(kDigestBlockBytes, end - at)));
      file_->read_at(at, piece);
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
    }
    if ((std::uint64_t{1} << 32 | crc) == layout_.digest) return;
  } catch (const Error& error) {
    throw Error(ExitCode::kData, error.what());
  }
  fail(ExitCode::kData, "{}: the file is not what was written: its content from byte {} on has another digest", name_,
       layout_.body_at);
}

}  // namespace

std::unique_ptr<TokenFile> open_token_file(Files& files, const std::filesystem::path& path, std::int64_t end_token) {
  // A data file that is absent or unreadable is a data fault, not one of model files.
  try {
    std::unique_ptr<ReadableFile> file = files.open(path);
    const TokenLayout layout = read_token_layout(*file, path.string());
    auto stored = std::make_unique<StoredTokens>(std::move(file), path.string(), layout);
    if (layout.samples >= 0) {
      stored->load_starts();
    } else if (end_token >= 0) {
      stored->cut_samples(end_token);
    } else {
      stored->one_sample();
    }
    return stored;
  } catch (const Error& error) {
    throw Error(ExitCode::kData, error.what());
  }
}

void check_vocabulary(const TokenFile& tokens, std::int64_t vocabulary, const std::string& file) {
  PROTRAIN_CHECK(vocabulary > 0);
  std::vector<std::int32_t> block(static_cast<std::size_t>(std::min(kScanTokens, tokens.tokens())));
  for (std::int64_t first = 0; first < tokens.tokens(); first += kScanTokens) {
    const std::int64_t count = std::min(kScanTokens, tokens.tokens() - first);
    tokens.read(first, count, block.data(), nullptr);
    const auto end = block.begin() + count;
    const auto bad = std::find_if(block.begin(), end, [&](std::int32_t id) { return id < 0 || id >= vocabulary; });
    if (bad == end) continue;
    const std::int64_t index = first + (bad - block.begin());
    std::int64_t low = 0, high = tokens.samples();  // the last sample that starts at or before the token
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (tokens.sample_start(middle) <= index ? low : high) = middle;
    }
    fail(ExitCode::kData, "{}: token {} (number {} of sample {}, from 0) has id {}, but the model's vocabulary has {}",
         file, index, index - tokens.sample_start(low), low, *bad, vocabulary);
  }
}

}  // namespace protrain
