// Activations, alone and gated, forward and backward: one pass over memory.
#include <type_traits>

#include "ops/cuda/vector.cuh"

namespace protrain::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kUnroll = 2;  // packs of a thread, all loaded before the first is used

// bf16 results have 8 bits: the fast exponential and division are exact enough there.
template <typename T>
__device__ inline float logistic(float x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0F, 1.0F + __expf(-x));
  } else {
    return 1.0F / (1.0F + expf(-x));
  }
}

constexpr float kSqrtTwoOverPi = 0.7978845608028654F, kGeluCubic = 0.044715F;
constexpr float kSqrtHalf = 0.7071067811865476F, kInverseSqrtTwoPi = 0.3989422804014327F;

// value = act(x), slope = act'(x).
template <typename T, Activation kKind>
__device__ inline void evaluate(float x, float& value, float& slope) {
  if constexpr (kKind == Activation::kSilu) {
    const float s = logistic<T>(x);
    value = x * s;
    slope = s * (1.0F + x * (1.0F - s));
  } else if constexpr (kKind == Activation::kGeluTanh) {
    // (1 + tanh(u)) / 2 is the logistic of 2u, which keeps its relative precision where it is small.
    const float s = logistic<T>(2.0F * kSqrtTwoOverPi * (x + kGeluCubic * x * x * x));
    value = x * s;
    slope = s + 2.0F * x * s * (1.0F - s) * kSqrtTwoOverPi * (1.0F + 3.0F * kGeluCubic * x * x);
  } else if constexpr (kKind == Activation::kGelu) {
    const float cdf = 0.5F * (1.0F + erff(x * kSqrtHalf));
    value = x * cdf;
    slope = cdf + x * kInverseSqrtTwoPi * expf(-0.5F * x * x);
  } else {
    value = x > 0 ? x : 0;
    slope = x > 0 ? 1 : 0;
  }
}

// Block: kThreads x kUnroll packs of one row. `chunks` blocks a row.
template <typename T, Activation kKind, int kPack, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    gated_kernel(const T* gate_up, const T* gradient, T* out, std::int64_t columns, unsigned chunks) {
  const std::int64_t row = blockIdx.x / chunks;
  const std::int64_t first = (std::int64_t{blockIdx.x % chunks} * kThreads * kUnroll + threadIdx.x) * kPack;
  const T* gates = gate_up + row * 2 * columns;
  Pack<T, kPack> gate[kUnroll], up[kUnroll], dy[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t column = first + u * kThreads * kPack;
    if (column < columns) {
      gate[u] = *reinterpret_cast<const Pack<T, kPack>*>(gates + column);
      up[u] = *reinterpret_cast<const Pack<T, kPack>*>(gates + columns + column);
      if constexpr (kBackward) dy[u] = *reinterpret_cast<const Pack<T, kPack>*>(gradient + row * columns + column);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t column = first + u * kThreads * kPack;
    if (column >= columns) return;
    float g[kPack], x[kPack];
    widen_pack(gate[u], g);
    widen_pack(up[u], x);
    if constexpr (kBackward) {
      float d[kPack];
      widen_pack(dy[u], d);
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        float value, slope;
        evaluate<T, kKind>(g[j], value, slope);
        g[j] = d[j] * x[j] * slope;
        x[j] = d[j] * value;
      }
      store(out + row * 2 * columns + column, g);
      store(out + row * 2 * columns + columns + column, x);
    } else {
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        float value, slope;
        evaluate<T, kKind>(g[j], value, slope);
        g[j] = value * x[j];
      }
      store(out + row * columns + column, g);
    }
  }
}

template <typename T, Activation kKind, int kPack, bool kBackward>
__global__ void __launch_bounds__(kThreads) plain_kernel(const T* x, const T* gradient, T* out, std::int64_t elements) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * kThreads * kUnroll + threadIdx.x) * kPack;
  Pack<T, kPack> in[kUnroll], dy[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t at = first + u * kThreads * kPack;
    if (at < elements) {
      in[u] = *reinterpret_cast<const Pack<T, kPack>*>(x + at);
      if constexpr (kBackward) dy[u] = *reinterpret_cast<const Pack<T, kPack>*>(gradient + at);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t at = first + u * kThreads * kPack;
    if (at >= elements) return;
    float v[kPack], d[kPack];
    widen_pack(in[u], v);
    if constexpr (kBackward) widen_pack(dy[u], d);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      float value, slope;
      evaluate<T, kKind>(v[j], value, slope);
      v[j] = kBackward ? d[j] * slope : value;
    }
    store(out + at, v);
  }
}

// fn(kind) with the activation as a constant.
template <typename F>
void with_activation(Activation kind, const F& fn) {
  switch (kind) {
    case Activation::kSilu: return fn(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kGeluTanh: return fn(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kGelu: return fn(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kRelu: return fn(std::integral_constant<Activation, Activation::kRelu>{});
  }
}

template <bool kBackward>
void gated(Element element, Activation kind, const void* gate_up, const void* gradient, void* out, std::int64_t rows,
           std::int64_t columns, StreamHandle stream) {
  if (rows == 0) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    with_activation(kind, [&](auto constant) {
      constexpr Activation kKind = decltype(constant)::value;
      const auto launch = [&](auto pack) {
        constexpr int kPack = decltype(pack)::value;
        const unsigned chunks = blocks_for(columns, kThreads * kUnroll * kPack);
        gated_kernel<T, kKind, kPack, kBackward><<<static_cast<unsigned>(rows * chunks), kThreads, 0, stream>>>(
            as<T>(gate_up), as<T>(gradient), as<T>(out), columns, chunks);
      };
      if (packs<T>(columns, {gate_up, gradient, out})) {
        launch(std::integral_constant<int, kVector<T>>{});
      } else {
        launch(std::integral_constant<int, 1>{});
      }
    });
  });
  check_launch("gated_activation");
}

template <bool kBackward>
void plain(Element element, Activation kind, const void* x, const void* gradient, void* out, std::int64_t elements,
           StreamHandle stream) {
  if (elements == 0) return;
  with_element(element, [&](auto tag) {
    using T = decltype(tag);
    with_activation(kind, [&](auto constant) {
      constexpr Activation kKind = decltype(constant)::value;
      const auto launch = [&](auto pack) {
        constexpr int kPack = decltype(pack)::value;
        plain_kernel<T, kKind, kPack, kBackward>
            <<<blocks_for(elements, kThreads * kUnroll * kPack), kThreads, 0, stream>>>(as<T>(x), as<T>(gradient),
                                                                                        as<T>(out), elements);
      };
      if (packs<T>(elements, {x, gradient, out})) {
        launch(std::integral_constant<int, kVector<T>>{});
      } else {
        launch(std::integral_constant<int, 1>{});
      }
    });
  });
  check_launch("activation");
}

}  // namespace

void gated_activation(Element element, Activation kind, const void* gate_up, void* out, std::int64_t rows,
                      std::int64_t columns, StreamHandle stream) {
  gated<false>(element, kind, gate_up, nullptr, out, rows, columns, stream);
}

void gated_activation_backward(Element element, Activation kind, const void* gate_up, const void* gradient,
                               void* gate_up_gradient, std::int64_t rows, std::int64_t columns, StreamHandle stream) {
  gated<true>(element, kind, gate_up, gradient, gate_up_gradient, rows, columns, stream);
}

void activation(Element element, Activation kind, const void* x, void* out, std::int64_t elements,
                StreamHandle stream) {
  plain<false>(element, kind, x, nullptr, out, elements, stream);
}

void activation_backward(Element element, Activation kind, const void* x, const void* gradient, void* dx,
                         std::int64_t elements, StreamHandle stream) {
  plain<true>(element, kind, x, gradient, dx, elements, stream);
}

}  // namespace protrain::ops::cuda
