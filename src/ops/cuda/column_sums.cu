// Column sums in two fixed steps: partial sums of row tiles, then over the tiles. See Note [Fixed partial sums].
#include "ops/cuda/vector.cuh"

namespace protrain::ops::cuda {
namespace {

constexpr int kLanes = 32, kWarps = 8;
constexpr std::int64_t kMaxTiles = 64, kMinTileRows = 64;

// Block (column group, row tile): warp w adds rows w, w + kWarps, ... of the tile, then the warps are added in order.
template <typename T, int kPack>
__global__ void __launch_bounds__(kLanes* kWarps)
    column_partials_kernel(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t tile_rows,
                           float* partials) {
  __shared__ float parts[kWarps][kLanes * kPack];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const std::int64_t column = (std::int64_t{blockIdx.x} * kLanes + lane) * kPack;
  const std::int64_t first = blockIdx.y * tile_rows, last = min(rows, first + tile_rows);
  float sum[kPack] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = first + warp; row < last; row += kWarps) {
      float value[kPack];
      load(x + row * columns + column, value);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sum[j] += value[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j) parts[warp][lane * kPack + j] = sum[j];
  __syncthreads();
  for (int c = threadIdx.x; c < kLanes * kPack; c += kLanes * kWarps) {
    const std::int64_t at = std::int64_t{blockIdx.x} * kLanes * kPack + c;
    if (at >= columns) continue;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += parts[w][c];
    partials[blockIdx.y * columns + at] = total;
  }
}

// A block takes 32 columns; warp w adds partial rows w, w + kWarps, ..., then the warps are added in order.
template <typename T>
__global__ void __launch_bounds__(kLanes* kWarps)
    reduce_kernel(const float* partials, std::int64_t rows, std::int64_t columns, T* out, bool overwrite) {
  __shared__ float parts[kWarps][kLanes];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const std::int64_t column = std::int64_t{blockIdx.x} * kLanes + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = warp; row < rows; row += kWarps) sum += partials[row * columns + column];
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += parts[w][lane];
  out[column] = narrow<T>(overwrite ? total : widen(out[column]) + total);
}

std::int64_t tile_rows_for(std::int64_t rows) {
  const std::int64_t even = (rows + kMaxTiles - 1) / kMaxTiles;
  return even > kMinTileRows ? even : kMinTileRows;
}

}  // namespace

std::int64_t column_partial_rows(std::int64_t rows) {
  const std::int64_t tile = tile_rows_for(rows);
  return rows > 0 ? (rows + tile - 1) / tile : 1;
}

void column_partials(Element element, const void* x, std::int64_t rows, std::int64_t columns, float* partials,
                     StreamHandle stream) {
  const auto tiles = static_cast<unsigned>(column_partial_rows(rows));
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    if (packs<T>(columns, {x})) {
      const dim3 grid(blocks_for(columns, kLanes * kVector<T>), tiles);
      column_partials_kernel<T, kVector<T>>
          <<<grid, kLanes * kWarps, 0, stream>>>(as<T>(x), rows, columns, tile_rows_for(rows), partials);
    } else {
      const dim3 grid(blocks_for(columns, kLanes), tiles);
      column_partials_kernel<T, 1>
          <<<grid, kLanes * kWarps, 0, stream>>>(as<T>(x), rows, columns, tile_rows_for(rows), partials);
    }
  });
  check_launch("column_partials");
}

void reduce_partials(const float* partials, std::int64_t rows, std::int64_t columns, Element element, void* out,
                     bool overwrite, StreamHandle stream) {
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    reduce_kernel<<<blocks_for(columns, kLanes), kLanes * kWarps, 0, stream>>>(partials, rows, columns, as<T>(out),
                                                                               overwrite);
  });
  check_launch("reduce_partials");
}

}  // namespace protrain::ops::cuda
