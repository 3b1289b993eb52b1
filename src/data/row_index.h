// Which tokens make up each row: samples cut to length, those without a supervised token dropped, the rest packed. Held
// in memory: about 24 bytes a sample. Pure functions of (file, options).
#pragma once
#include <cstdint>
#include <vector>

#include "data/loader.h"

namespace protrain {

// Tokens [first, first + length) of the file, all of one sample.
struct Piece {
  std::int64_t first = 0;
  std::int32_t length = 0;
  bool continues = false;  // the sample goes on in another piece: the last label here is that piece's first token
};

struct RowIndex {
  std::vector<Piece> pieces;         // in row order
  std::vector<std::int64_t> begins;  // row r holds pieces [begins[r], begins[r + 1])
  std::int64_t dropped_samples = 0;
  std::int64_t longest_row = 0;  // tokens
  std::int64_t most_pieces = 0;  // of a row
  std::int64_t rows() const { return static_cast<std::int64_t>(begins.size()) - 1; }
};

// A pack closes at this many samples, so that the shape of its offsets is planned: room for an average of 16 tokens
// each.
std::int64_t samples_per_pack(std::int64_t cutoff_len);

RowIndex index_rows(const TokenFile&, const SamplingOptions&);

}  // namespace protrain
