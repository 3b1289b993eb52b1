// Speed of the kernels on one GPU at LLaMA-3-8B's shapes, printed. For cuda_ops_test with PROTRAIN_BENCH.
#pragma once
#include <ATen/ops/arange.h>

#include <chrono>

#include "ops/kernels.h"
#include "ops/test_support.h"

namespace protrain::ops::test::bench {

// Seconds of one call: the host waits by reading back a value that the stream produces last.
template <typename F>
double seconds_of(const F& fn, int repeats = 30) {
  const at::Tensor mark = at::zeros({1}, at::TensorOptions().device(at::kCUDA));
  const auto now = [&] {
    mark.add_(1).cpu();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  for (int i = 0; i < 5; ++i) fn();
  const double start = now();
  for (int i = 0; i < repeats; ++i) fn();
  return (now() - start) / repeats;
}

template <typename F>
void report(const char* what, double bytes, const F& fn) {
  const double seconds = seconds_of(fn);
  fmt::print("{:<32} {:8.3f} ms {:8.0f} GB/s\n", what, seconds * 1e3, bytes / seconds / 1e9);
}

inline void memory_bound_kernels() {
  const std::int64_t tokens = 16384, h = 4096, f = 14336, vocabulary = 128256, tile = 2048;
  const std::int64_t qkv_width = 48 * 128;
  Random random(kCudaBf16);
  const auto bf16 = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16), fp32 = bf16.dtype(at::kFloat);
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) {
    return at::empty({rows, columns}, bf16).fill_(0.5);
  };
  const double row_bytes = 2.0 * static_cast<double>(tokens);
  const cuda::StreamHandle stream = nullptr;
  const auto e = cuda::Element::kBf16;

  const at::Tensor x = matrix(tokens, h), r = matrix(tokens, h), s = matrix(tokens, h), n = matrix(tokens, h);
  const at::Tensor w = at::empty({h}, bf16).fill_(1), rstd = at::empty({tokens}, fp32).fill_(1),
                   mean = at::zeros({tokens}, fp32);
  const at::Tensor dx = matrix(tokens, h), dw = at::zeros({h}, fp32);
  const std::int64_t partial_rows = cuda::norm_partial_rows(e, tokens, h);
  const at::Tensor partials = at::empty({2, partial_rows, h}, fp32);
  for (const bool layer : {false, true}) {
    report(layer ? "add + layer norm" : "add + rms norm", 4 * row_bytes * h, [&] {
      cuda::add_norm({e, layer, x.data_ptr(), r.data_ptr(), w.data_ptr(), w.data_ptr(), s.data_ptr(), n.data_ptr(),
                      mean.data_ptr<float>(), rstd.data_ptr<float>(), tokens, h, 1e-5F},
                     stream);
    });
    report(layer ? "layer norm backward" : "rms norm backward", 4 * row_bytes * h, [&] {
      cuda::norm_backward(
          {e, layer, n.data_ptr(), s.data_ptr(), w.data_ptr(), r.data_ptr(), mean.data_ptr<float>(),
           rstd.data_ptr<float>(), dx.data_ptr(), partials.data_ptr<float>(), partials[1].data_ptr<float>(), tokens, h},
          stream);
      cuda::reduce_partials(partials.data_ptr<float>(), partial_rows, h, cuda::Element::kF32, dw.data_ptr(), true,
                            stream);
    });
  }
  const at::Tensor columns = at::empty({cuda::column_partial_rows(tokens), h}, fp32);
  report("column sums", row_bytes * h, [&] {
    cuda::column_partials(e, x.data_ptr(), tokens, h, columns.data_ptr<float>(), stream);
    cuda::reduce_partials(columns.data_ptr<float>(), columns.size(0), h, cuda::Element::kF32, dw.data_ptr(), true,
                          stream);
  });

  const at::Tensor qkv = matrix(tokens, qkv_width), dqkv = matrix(tokens, qkv_width);
  const at::Tensor q = matrix(tokens, h), k = matrix(tokens, 1024), v = matrix(tokens, 1024);
  const at::Tensor cos = at::zeros({4096, 64}, fp32).add_(1), sin = at::zeros({4096, 64}, fp32);
  const at::Tensor positions = at::arange(tokens, fp32).remainder(4096).to(at::kInt);
  const cuda::HeadsOf heads{tokens, 32, 8, 128};
  const cuda::RopeTables rope{cos.data_ptr<float>(), sin.data_ptr<float>(), positions.data_ptr<std::int32_t>(), 128};
  report("rope", 2 * row_bytes * 5120, [&] { cuda::rotate(e, heads, rope, qkv.data_ptr(), stream); });
  report("rope backward, gather", 2 * row_bytes * static_cast<double>(qkv_width),
         [&] { cuda::rotate_back(e, heads, rope, q.data_ptr(), k.data_ptr(), v.data_ptr(), dqkv.data_ptr(), stream); });
  const at::Tensor hw = at::empty({128}, bf16).fill_(1), hr = at::empty({tokens, 40}, fp32);
  const at::Tensor hp = at::empty({2, cuda::qk_norm_partial_rows(heads), 128}, fp32);
  report("q/k norm", 2 * row_bytes * static_cast<double>(qkv_width), [&] {
    cuda::qk_norm(e, heads, qkv.data_ptr(), hw.data_ptr(), hw.data_ptr(), 1e-6F, dqkv.data_ptr(), hr.data_ptr<float>(),
                  stream);
  });
  report("q/k norm backward", 2.83 * row_bytes * static_cast<double>(qkv_width), [&] {
    cuda::qk_norm_backward(e, heads, qkv.data_ptr(), qkv.data_ptr(), hw.data_ptr(), hw.data_ptr(), hr.data_ptr<float>(),
                           dqkv.data_ptr(), hp.data_ptr<float>(), hp[1].data_ptr<float>(), stream);
  });

  const at::Tensor gate_up = matrix(tokens, 2 * f), act = matrix(tokens, f), dgate_up = matrix(tokens, 2 * f);
  report("gated silu", 3 * row_bytes * static_cast<double>(f),
         [&] { cuda::gated_activation(e, Activation::kSilu, gate_up.data_ptr(), act.data_ptr(), tokens, f, stream); });
  report("gated silu backward", 5 * row_bytes * static_cast<double>(f), [&] {
    cuda::gated_activation_backward(e, Activation::kSilu, gate_up.data_ptr(), act.data_ptr(), dgate_up.data_ptr(),
                                    tokens, f, stream);
  });
  report("gelu tanh", 2 * row_bytes * static_cast<double>(f),
         [&] { cuda::activation(e, Activation::kGeluTanh, gate_up.data_ptr(), act.data_ptr(), tokens * f, stream); });
  report("dropout", 2 * row_bytes * h,
         [&] { cuda::dropout(e, {1, 2, 1U << 30, 0, 1.3F}, x.data_ptr(), s.data_ptr(), tokens, h, stream); });
  {
    const at::Tensor logits = matrix(tile, vocabulary), losses = at::empty({tile}, fp32);
    const at::Tensor labels = at::arange(tile, fp32).to(at::kInt);
    report("cross entropy of a tile", 2.0 * 2 * static_cast<double>(tile * vocabulary), [&] {
      cuda::cross_entropy(e, logits.data_ptr(), labels.data_ptr<std::int32_t>(), losses.data_ptr<float>(), tile,
                          vocabulary, vocabulary, 1e-3F, true, stream);
    });
  }
  const at::Tensor table = matrix(vocabulary, h), table_gradient = at::empty({vocabulary, h}, fp32);
  const at::Tensor ids = at::arange(tokens, fp32).mul(7919).remainder(static_cast<double>(vocabulary)).to(at::kInt);
  const at::Tensor anchor = at::zeros({1}, fp32).requires_grad_();
  report("embedding", 2 * row_bytes * h, [&] { embedding(ids, {table, {}, true}, {}); });
  report("embedding backward, added", 5 * row_bytes * h,
         [&] { gradients({embedding(ids, {table, table_gradient, false}, anchor)}, {anchor}, {x}); });
}

// One LLaMA-3-8B layer forward and backward, 2 or 4 rows of 4096; attention counted causal, 2.5 times as much backward.
inline void block() {
  const std::int64_t h = 4096, f = 14336, row_tokens = 4096;
  const HeadShape shape{32, 8, 128};
  Random random(kCudaBf16);
  const auto fp32 = at::TensorOptions().device(at::kCUDA).dtype(at::kFloat);
  const auto parameter = [&](at::IntArrayRef sizes, double scale) {
    const at::Tensor weight = at::empty(sizes, fp32).normal_(0, scale).to(at::kBFloat16);
    return Parameter{weight, at::zeros(sizes, fp32.dtype(at::kBFloat16)), true};
  };
  Parameter n1 = parameter({h}, 1), n2 = parameter({h}, 1), wqkv = parameter({6144, h}, 0.02),
            wo = parameter({h, h}, 0.005);
  Parameter wgu = parameter({2 * f, h}, 0.02), wd = parameter({h, f}, 0.005);
  const at::Tensor angle = at::empty({row_tokens, 64}, fp32).normal_();
  const Rope rope{angle.cos(), angle.sin()};
  for (const bool accumulate : {false, true}) {
    for (Parameter* p : {&n1, &n2, &wqkv, &wo, &wgu, &wd}) {
      if (accumulate) *p = {p->weight, at::zeros(p->weight.sizes(), fp32), false};
    }
    for (const std::int64_t rows : {2, 4}) {
      const std::int64_t tokens = rows * row_tokens;
      const at::Tensor positions = at::arange(tokens, fp32).remainder(row_tokens).to(at::kInt);
      const at::Tensor x = at::empty({tokens, h}, fp32).normal_().to(at::kBFloat16).requires_grad_();
      const at::Tensor dy = at::empty({tokens, h}, fp32).normal_(0, 1e-3).to(at::kBFloat16);
      const AttentionBatch batch{.rows = rows, .row_tokens = row_tokens, .positions = positions};
      const auto forward = [&] {
        const AddNorm first = add_rms_norm(x, {}, n1, 1e-5);
        const at::Tensor attended = rope_attention(linear(first.normed, wqkv), shape, rope, batch);
        const AddNorm second = add_rms_norm(linear(attended, wo), first.sum, n2, 1e-5);
        return linear(gated_activation(linear(second.normed, wgu), Activation::kSilu), wd, nullptr, second.sum);
      };
      const double linear_flops = 2.0 * static_cast<double>(tokens * h) * (6144.0 + 4096.0 + 3.0 * 14336.0);
      const double attention_flops = 4.0 * static_cast<double>(tokens * row_tokens * h) / 2;
      const double both = seconds_of([&] { gradients({forward()}, {x}, {dy}); }, 20);
      const double one = seconds_of([&] { forward(); }, 20);
      fmt::print(
          "layer, {:6} tokens, gradients {}: forward {:.2f} ms {:.0f} TFLOP/s, with backward {:.2f} ms {:.0f} "
          "TFLOP/s\n",
          tokens, accumulate ? "added in fp32" : "written in bf16", one * 1e3,
          (linear_flops + attention_flops) / one / 1e12, both * 1e3,
          (3 * linear_flops + 3.5 * attention_flops) / both / 1e12);
    }
  }
}

}  // namespace protrain::ops::test::bench
