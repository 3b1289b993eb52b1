// Where the parts of a token file lie, read from its header with every bound checked against the file's size.
#pragma once
#include <string>

#include "base/files.h"

// Fuzz builds set this to the number of one check to leave out, to prove that the fuzz target sees its absence.
#ifndef PROTRAIN_FUZZ_DROP_CHECK
#define PROTRAIN_FUZZ_DROP_CHECK 0
#endif

namespace protrain {

constexpr bool checked(int check) { return PROTRAIN_FUZZ_DROP_CHECK != check; }

struct TokenLayout {
  std::int64_t tokens = 0;
  std::int64_t samples = -1;         // -1: the format has no sample bounds
  std::int64_t vocabulary = 0;       // 0: the file does not say
  std::int64_t longest_sample = -1;  // as the header claims; -1: it does not
  Bytes token_bytes = 0;             // 2 or 4, little endian
  Bytes tokens_at = 0;
  Bytes starts_at = -1;      // u64 [samples + 1]
  Bytes mask_at = -1;        // bits; -1: every token is supervised
  Bytes body_at = 0;         // what `digest` is of, up to the file's end
  std::uint64_t digest = 0;  // 0: none
};

// `name` is the file's name in messages. Error(kData). All offsets and sizes returned lie inside the file.
TokenLayout read_token_layout(const ReadableFile&, const std::string& name);

}  // namespace protrain
