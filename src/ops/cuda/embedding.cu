// Embedding: rows gathered, and their gradients summed by id in a fixed order.
//
// Note [Sums by id]
// Tokens sorted by id are cut into tiles of kTile. A block walks one tile in order and adds up runs of equal ids. A run
// that lies inside the tile is written at once. A run that crosses into the next tile is cut: the part that begins in
// this tile and the part that came from the last one are partial sums in memory, and a second kernel adds a run's parts
// in order. So each row of the gradient is written by one thread, and a frequent id costs no long chain.
#include "ops/cuda/vector.cuh"

namespace protrain::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kTile = 32;

template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const std::int32_t* ids, const T* table, T* out, std::int64_t columns) {
  const std::int64_t row = blockIdx.x;
  const T* from = table + std::int64_t{ids[row]} * columns;
  for (std::int64_t c = threadIdx.x * kPack; c < columns; c += kThreads * kPack) {
    *reinterpret_cast<Pack<T, kPack>*>(out + row * columns + c) = *reinterpret_cast<const Pack<T, kPack>*>(from + c);
  }
}

template <typename G, int kPack>
__device__ inline void put(G* to, const float (&sum)[kPack], bool overwrite) {
#pragma unroll
  for (int j = 0; j < kPack; ++j) to[j] = narrow<G>(overwrite ? sum[j] : widen(to[j]) + sum[j]);
}

template <int kPack>
__device__ inline void keep(float* to, const float (&sum)[kPack]) {
#pragma unroll
  for (int j = 0; j < kPack; ++j) to[j] = sum[j];
}

// Partials of tile t: row 2t, the part of a run that came from the tile before; row 2t + 1, the part that begins here
// and goes on. (A run through the whole tile is of the first kind.)
template <typename T, typename G, int kPack>
__global__ void __launch_bounds__(kThreads)
    sum_tiles(const std::int32_t* ids, const std::int64_t* order, const T* dy, std::int64_t rows, std::int64_t columns,
              G* gradient, bool overwrite, float* partials) {
  const std::int64_t first = blockIdx.x * kTile, last = min(rows, first + kTile);
  const std::int64_t column = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kPack;
  if (column >= columns) return;
  bool continued = first > 0 && ids[first - 1] == ids[first];
  float sum[kPack] = {};
  for (std::int64_t i = first; i < last; ++i) {
    float value[kPack];
    load(dy + order[i] * columns + column, value);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum[j] += value[j];
    const bool tile_ends = i + 1 == last;
    if (!tile_ends && ids[i + 1] == ids[i]) continue;
    const bool goes_on = tile_ends && last < rows && ids[last] == ids[i];
    if (continued) {
      keep(partials + 2 * blockIdx.x * columns + column, sum);
    } else if (goes_on) {
      keep(partials + (2 * blockIdx.x + 1) * columns + column, sum);
    } else {
      put(gradient + std::int64_t{ids[i]} * columns + column, sum, overwrite);
    }
    continued = false;
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum[j] = 0;
  }
}

// A block for each tile whose last run begins in it and goes on: adds the run's parts.
template <typename G, int kPack>
__global__ void __launch_bounds__(kThreads) join_tiles(const std::int32_t* ids, std::int64_t rows, std::int64_t columns,
                                                       G* gradient, bool overwrite, const float* partials) {
  const std::int64_t tile = blockIdx.x, last = (tile + 1) * kTile;
  if (last >= rows) return;
  const std::int32_t id = ids[last - 1];
  const std::int64_t first = tile * kTile;
  const bool begins_here = ids[first] != id || first == 0 || ids[first - 1] != id;
  if (ids[last] != id || !begins_here) return;
  const std::int64_t column = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kPack;
  if (column >= columns) return;
  float sum[kPack];
#pragma unroll
  for (int j = 0; j < kPack; ++j) sum[j] = partials[(2 * tile + 1) * columns + column + j];
  for (std::int64_t next = tile + 1; next * kTile < rows && ids[next * kTile] == id; ++next) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum[j] += partials[2 * next * columns + column + j];
  }
  put(gradient + std::int64_t{id} * columns + column, sum, overwrite);
}

template <typename T, typename G, int kPack>
void launch(const std::int32_t* ids, const std::int64_t* order, const T* dy, std::int64_t rows, std::int64_t columns,
            G* gradient, bool overwrite, float* partials, cudaStream_t stream) {
  const dim3 grid(blocks_for(rows, kTile), blocks_for(columns, kThreads * kPack));
  sum_tiles<T, G, kPack><<<grid, kThreads, 0, stream>>>(ids, order, dy, rows, columns, gradient, overwrite, partials);
  join_tiles<G, kPack><<<grid, kThreads, 0, stream>>>(ids, rows, columns, gradient, overwrite, partials);
}

}  // namespace

void gather_rows(Element element, const std::int32_t* ids, const void* table, void* out, std::int64_t rows,
                 std::int64_t columns, StreamHandle stream) {
  if (rows == 0) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    if (packs<T>(columns, {table, out})) {
      gather_kernel<T, kVector<T>>
          <<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(ids, as<T>(table), as<T>(out), columns);
    } else {
      gather_kernel<T, 1><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(ids, as<T>(table), as<T>(out), columns);
    }
  });
  check_launch("gather_rows");
}

std::int64_t embedding_partial_rows(std::int64_t rows) { return 2 * ((rows + kTile - 1) / kTile) + 2; }

void embedding_backward(Element element, const std::int32_t* sorted_ids, const std::int64_t* order, const void* dy,
                        std::int64_t rows, std::int64_t columns, Element gradient_element, void* gradient,
                        bool overwrite, float* partials, StreamHandle stream) {
  if (rows == 0) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    with_element(gradient_element, [&](auto gradient_tag) {
      using G = decltype(gradient_tag);
      if (packs<T>(columns, {dy})) {
        launch<T, G, kVector<T>>(sorted_ids, order, as<T>(dy), rows, columns, as<G>(gradient), overwrite, partials,
                                 stream);
      } else {
        launch<T, G, 1>(sorted_ids, order, as<T>(dy), rows, columns, as<G>(gradient), overwrite, partials, stream);
      }
    });
  });
  check_launch("embedding_backward");
}

}  // namespace protrain::ops::cuda
