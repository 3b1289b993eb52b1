// Memory-cheap reading of prepared token files (.ptk) and of llm.c / LLMQ .bin files: tokens, sample bounds, loss mask.
// Read through Files, so nothing stays mapped. Const methods are thread-safe.
//
// .ptk, little endian, every section at a multiple of 64 bytes:
//   header  "PTKTOK1\0", u32 version 1, u32 token bytes (2 or 4), u64 tokens, u64 samples, u64 vocabulary,
//           u64 max sample tokens, 4 x u64 section offsets (tokens, sample starts, mask, json), u64 json bytes,
//           u64 file bytes, u64 xxh64 of the header so far
//   tokens  u16 or u32 [tokens]
//   starts  u64 [samples + 1], first 0, last = tokens, not decreasing
//   mask    u8 [ceil(tokens / 8)], bit i (LSB first) = token i is supervised (a loss is taken where it is the target)
//   json    what it was made from: source names and sizes, tokenizer, form, options
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"

namespace protrain {

class TokenFile {
 public:
  virtual ~TokenFile() = default;
  virtual std::int64_t tokens() const = 0;
  virtual std::int64_t samples() const = 0;
  virtual std::int64_t vocabulary() const = 0;                  // 0: the file does not say
  virtual std::int64_t sample_start(std::int64_t sample) const = 0;  // sample in [0, samples]
  // Tokens and mask of [first, first + count).
  virtual void read(std::int64_t first, std::int64_t count, std::int32_t* tokens, std::uint8_t* supervised) const = 0;
  virtual std::uint64_t fingerprint() const = 0;                // of the content; resume refuses other data
};

// Opens by content (.ptk, llm.c, LLMQ). Error(kData) naming the file and the byte offset of what is wrong. A .bin file has
// one sample unless `end_token` >= 0, which ends a sample.
std::unique_ptr<TokenFile> open_token_file(Files&, const std::filesystem::path&, std::int64_t end_token = -1);
// Every id in [0, vocabulary), else Error(kData) naming file, token index and id.
void check_vocabulary(const TokenFile&, std::int64_t vocabulary, const std::string& file);

}  // namespace protrain
