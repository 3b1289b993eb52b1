// Dropout by Note [Dropout masks]. A thread takes whole groups of four columns, one draw each.
#include "ops/cuda/vector.cuh"
#include "ops/philox.h"

namespace protrain::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 4;  // columns of a draw

template <typename T, int kPack>
__global__ void __launch_bounds__(kThreads)
    dropout_packs(DropoutMask mask, const T* x, T* out, std::int64_t rows, std::int64_t packs_per_row) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= rows * packs_per_row) return;
  const std::int64_t row = index / packs_per_row, column = (index - row * packs_per_row) * kPack;
  float value[kPack];
  load(x + index * kPack, value);
#pragma unroll
  for (int g = 0; g < kPack / kGroup; ++g) {
    const PhiloxWords words = dropout_words(mask.key, mask.site, mask.first_row + row, column / kGroup + g);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      float& v = value[g * kGroup + j];
      v = words.word[j] >= mask.threshold ? v * mask.scale : 0;
    }
  }
  store(out + index * kPack, value);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_any(DropoutMask mask, const T* x, T* out, std::int64_t rows, std::int64_t columns) {
  const std::int64_t groups = (columns + kGroup - 1) / kGroup;
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= rows * groups) return;
  const std::int64_t row = index / groups, group = index - row * groups;
  const PhiloxWords words = dropout_words(mask.key, mask.site, mask.first_row + row, group);
#pragma unroll
  for (int j = 0; j < kGroup; ++j) {
    const std::int64_t column = group * kGroup + j;
    if (column >= columns) return;
    const std::int64_t at = row * columns + column;
    out[at] = narrow<T>(words.word[j] >= mask.threshold ? widen(x[at]) * mask.scale : 0);
  }
}

}  // namespace

void dropout(Element element, const DropoutMask& mask, const void* x, void* out, std::int64_t rows,
             std::int64_t columns, StreamHandle stream) {
  if (rows == 0 || columns == 0) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    if (packs<T>(columns, {x, out})) {
      const std::int64_t per_row = columns / kVector<T>;
      dropout_packs<T, kVector<T>>
          <<<blocks_for(rows * per_row, kThreads), kThreads, 0, stream>>>(mask, as<T>(x), as<T>(out), rows, per_row);
    } else {
      const std::int64_t groups = (columns + kGroup - 1) / kGroup;
      dropout_any<<<blocks_for(rows * groups, kThreads), kThreads, 0, stream>>>(mask, as<T>(x), as<T>(out), rows,
                                                                                columns);
    }
  });
  check_launch("dropout");
}

}  // namespace protrain::ops::cuda
