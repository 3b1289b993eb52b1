// Memory-cheap reading of prepared token files (.ptk) and of llm.c / LLMQ .bin files: tokens, sample bounds, loss mask.
// Read through Files, so nothing stays mapped. Const methods are thread-safe.
//
// .ptk, little endian, every section at a multiple of 64 bytes, in this order:
//   header  "PTKTOK1\0", u32 version 1, u32 token bytes (2 or 4), u64 tokens, u64 samples, u64 vocabulary,
//           u64 max sample tokens, 4 x u64 section offsets (tokens, sample starts, mask, json), u64 json bytes,
//           u64 file bytes, u64 xxh64 (seed 0) of the header so far, u64 digest of all that follows: 2^32 + its CRC-32
//           as zlib has it (0: an older file has none)
//   tokens  u16 or u32 [tokens]
//   starts  u64 [samples + 1], first 0, last = tokens, not decreasing
//   mask    u8 [ceil(tokens / 8)], bit i (LSB first) = token i is supervised (a loss is taken where it is the target)
//   json    what it was made from: source names and sizes, tokenizer, form, options
// llm.c .bin: 256 x int32 header (magic 20240520 version 1: uint16 tokens; magic 20240801 version 7: uint32 tokens;
// then the count), then the tokens. LLMQ .bin: 1024-byte header "BIN.TOK\n", int32 version (1, 2), token bytes (4),
// tokens, vocabulary and has-masks (version 2), then int32 tokens, then mask bits as above.
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
  virtual std::int64_t vocabulary() const = 0;                       // 0: the file does not say
  virtual std::int64_t sample_start(std::int64_t sample) const = 0;  // sample in [0, samples]
  // Tokens and mask (0 or 1) of [first, first + count), which lies in [0, tokens]. Either may be null. The ids are in
  // [0, vocabulary), or [0, 2^31) when the file does not say, else Error(kData) naming the token's index and byte; so
  // is what the system cannot read any more.
  virtual void read(std::int64_t first, std::int64_t count, std::int32_t* tokens, std::uint8_t* supervised) const = 0;
  // Of ids, mask and where samples end, whatever the format and the names in the JSON; resume refuses other data. The
  // first call reads the file.
  virtual std::uint64_t fingerprint() const = 0;
  // Error(kData) when the file is not what was written, by its digest; nothing where it has none. Reads the file once.
  virtual void check_digest() const = 0;
};

// Opens by content (.ptk, llm.c, LLMQ). Error(kData) naming the file and the byte offset of what is wrong. A .bin file
// has one sample unless `end_token` >= 0, which ends a sample. Keeps the sample bounds in memory, 8 bytes each, no
// tokens.
std::unique_ptr<TokenFile> open_token_file(Files&, const std::filesystem::path&, std::int64_t end_token = -1);
// Every id in [0, vocabulary), else Error(kData) naming file, token index and id. Reads the file once.
void check_vocabulary(const TokenFile&, std::int64_t vocabulary, const std::string& file);

}  // namespace protrain
