// Pairwise covering sets for tests of many options: rows such that every pair of levels of every two factors stands in
// at least one of them. Greedy; the same rows for the same seed.
#pragma once
#include <cstddef>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace protrain {

// levels[f]: how many levels factor f has. A row holds one level a factor.
inline std::vector<std::vector<int>> covering_set(const std::vector<int>& levels, unsigned seed) {
  using Pair = std::tuple<std::size_t, int, std::size_t, int>;
  std::set<Pair> open;
  for (std::size_t f = 0; f < levels.size(); ++f) {
    for (std::size_t g = f + 1; g < levels.size(); ++g) {
      for (int i = 0; i < levels[f]; ++i) {
        for (int j = 0; j < levels[g]; ++j) open.insert({f, i, g, j});
      }
    }
  }
  const auto pairs_of = [&](const std::vector<int>& row) {
    std::vector<Pair> pairs;
    for (std::size_t f = 0; f < row.size(); ++f) {
      for (std::size_t g = f + 1; g < row.size(); ++g) pairs.push_back({f, row[f], g, row[g]});
    }
    return pairs;
  };
  std::mt19937 random(seed);
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    // The best of some rows, each of which has an open pair.
    std::vector<int> best;
    std::size_t most = 0;
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<int> row;
      for (const int count : levels) row.push_back(static_cast<int>(random() % static_cast<unsigned>(count)));
      const auto& [f, i, g, j] = *open.begin();
      row[f] = i;
      row[g] = j;
      std::size_t covered = 0;
      for (const Pair& pair : pairs_of(row)) covered += open.count(pair);
      if (covered > most) {
        most = covered;
        best = row;
      }
    }
    for (const Pair& pair : pairs_of(best)) open.erase(pair);
    rows.push_back(best);
  }
  return rows;
}

// All combinations.
inline std::vector<std::vector<int>> full_product(const std::vector<int>& levels) {
  std::vector<std::vector<int>> rows = {{}};
  for (const int count : levels) {
    std::vector<std::vector<int>> longer;
    for (const auto& row : rows) {
      for (int level = 0; level < count; ++level) {
        longer.push_back(row);
        longer.back().push_back(level);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

}  // namespace protrain
