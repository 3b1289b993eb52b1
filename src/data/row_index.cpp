#include "data/row_index.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "data/shuffle.h"

namespace protrain {
namespace {

constexpr std::int64_t kMaskTokens = 1 << 20;
// Packs open at a time. More fill rows better and mix farther apart samples; 64 leaves about 1 % empty on mixed
// lengths.
constexpr std::size_t kOpenPacks = 64;
// The order in which samples meet packs; epochs count from 0, so none has it.
constexpr std::uint64_t kPackingStream = ~std::uint64_t{0};

// Answers "is any token of this range supervised?" for ranges in rising order, reading the mask once.
class MaskScan {
 public:
  explicit MaskScan(const TokenFile& file) : file_(file) {}

  bool any(std::int64_t first, std::int64_t end) {
    while (first < end) {
      if (first < begin_ || first >= end_) load(first);
      const std::int64_t last = std::min(end, end_);
      if (std::memchr(mask_.data() + (first - begin_), 1, static_cast<std::size_t>(last - first)) != nullptr)
        return true;
      first = last;
    }
    return false;
  }

 private:
  void load(std::int64_t first) {
    begin_ = first;
    end_ = std::min(first + kMaskTokens, file_.tokens());
    mask_.resize(static_cast<std::size_t>(end_ - begin_));
    file_.read(begin_, end_ - begin_, nullptr, mask_.data());
  }

  const TokenFile& file_;
  std::vector<std::uint8_t> mask_;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

std::vector<Piece> cut_pieces(const TokenFile& file, const SamplingOptions& options, std::int64_t* dropped) {
  std::vector<Piece> pieces;
  MaskScan mask(file);
  for (std::int64_t sample = 0; sample < file.samples(); ++sample) {
    const std::int64_t begin = file.sample_start(sample);
    const std::int64_t end = file.sample_start(sample + 1);
    bool kept = false;
    for (std::int64_t first = begin; first < end; first += options.cutoff_len) {
      const std::int64_t length = std::min(options.cutoff_len, end - first);
      const bool continues = options.split_long && first + length < end;
      // The first token of a piece is never a target in it: nothing comes before it, or another piece has it as a
      // label.
      if (mask.any(first + 1, first + length + (continues ? 1 : 0))) {
        pieces.push_back({first, static_cast<std::int32_t>(length), continues});
        kept = true;
      }
      if (!options.split_long) break;
    }
    if (!kept) ++*dropped;
  }
  return pieces;
}

// First fit: a piece goes to the oldest open pack with room for it; with none and the window full, the fullest pack
// closes. Returns the pack of each piece, packs numbered as they were opened.
std::vector<std::int64_t> assign_packs(const std::vector<Piece>& pieces, const std::vector<std::int64_t>& order,
                                       std::int64_t cutoff_len, std::int64_t* packs) {
  struct Open {
    std::int64_t pack;
    std::int64_t room;
    std::int64_t samples_left;
  };
  std::vector<Open> open;
  std::vector<std::int64_t> pack_of(pieces.size());
  *packs = 0;
  for (const std::int64_t i : order) {
    const std::int64_t length = pieces[static_cast<std::size_t>(i)].length;
    auto fit = std::find_if(open.begin(), open.end(), [&](const Open& pack) { return pack.room >= length; });
    if (fit == open.end()) {
      if (open.size() == kOpenPacks) {
        open.erase(
            std::min_element(open.begin(), open.end(), [](const Open& a, const Open& b) { return a.room < b.room; }));
      }
      open.push_back({(*packs)++, cutoff_len, samples_per_pack(cutoff_len)});
      fit = open.end() - 1;
    }
    pack_of[static_cast<std::size_t>(i)] = fit->pack;
    fit->room -= length;
    if (--fit->samples_left == 0 || fit->room == 0) open.erase(fit);
  }
  return pack_of;
}

void measure_rows(RowIndex& index) {
  for (std::size_t row = 0; row + 1 < index.begins.size(); ++row) {
    std::int64_t tokens = 0;
    for (std::int64_t i = index.begins[row]; i < index.begins[row + 1]; ++i) {
      tokens += index.pieces[static_cast<std::size_t>(i)].length;
    }
    index.longest_row = std::max(index.longest_row, tokens);
    index.most_pieces = std::max(index.most_pieces, index.begins[row + 1] - index.begins[row]);
  }
}

}  // namespace

std::int64_t samples_per_pack(std::int64_t cutoff_len) { return std::max<std::int64_t>(4, ceil_div(cutoff_len, 16)); }

RowIndex index_rows(const TokenFile& file, const SamplingOptions& options) {
  RowIndex index;
  std::vector<Piece> pieces = cut_pieces(file, options, &index.dropped_samples);
  if (!options.packing) {
    index.pieces = std::move(pieces);
    index.begins.resize(index.pieces.size() + 1);
    std::iota(index.begins.begin(), index.begins.end(), std::int64_t{0});
    measure_rows(index);
    return index;
  }

  const auto count = static_cast<std::int64_t>(pieces.size());
  std::vector<std::int64_t> order;
  if (options.shuffle) {
    order = permutation(count, options.seed, kPackingStream);
  } else {
    order.resize(pieces.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
  }
  std::int64_t packs = 0;
  const std::vector<std::int64_t> pack_of = assign_packs(pieces, order, options.cutoff_len, &packs);

  // Counting sort by pack; inside a pack, in the order in which the pieces came.
  index.begins.assign(static_cast<std::size_t>(packs) + 1, 0);
  for (const std::int64_t pack : pack_of) ++index.begins[static_cast<std::size_t>(pack) + 1];
  std::partial_sum(index.begins.begin(), index.begins.end(), index.begins.begin());
  std::vector<std::int64_t> next(index.begins.begin(), index.begins.end() - 1);
  index.pieces.resize(pieces.size());
  for (const std::int64_t i : order) {
    const auto pack = static_cast<std::size_t>(pack_of[static_cast<std::size_t>(i)]);
    index.pieces[static_cast<std::size_t>(next[pack]++)] = pieces[static_cast<std::size_t>(i)];
  }
  measure_rows(index);
  return index;
}

}  // namespace protrain
