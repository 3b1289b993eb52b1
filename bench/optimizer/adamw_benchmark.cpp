// Rate of the CPU's bf16 AdamW (26 bytes a parameter) beside the best that memory reaches with the same read:write mix,
// array sizes and threads, measured in turn in one run. Prints one JSON object; exits 1 when the ratio is below 0.75.
//   adamw_benchmark [threads [rounds]]
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "memory_mix.h"
#include "optimizer/kernels.h"

namespace protrain::bench {
namespace {

constexpr double kRequiredRatio = 0.75;
constexpr Bytes kBytesPerParameter = 26;
constexpr std::int64_t kCut = 1 << 18;  // elements a range of the reference streams; they gain from long ones

class InlineStream final : public Stream {
 public:
  void copy(std::byte*, const std::byte*, Bytes) override {}
  void zero(std::byte*, Bytes) override {}
  void wait(const Event&) override {}
  Event record() override { return {}; }
  void call(const std::function<void()>& fn) override { fn(); }
  void synchronize() override {}
  void* native() const override { return nullptr; }
};

// As the host tier's memory: huge pages, touched by the threads that use it. Lives as long as the process.
std::byte* allocate(Bytes bytes, ThreadPool& pool) {
  void* const memory =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(ExitCode::kDoesNotFit, "no {} of memory", format_bytes(bytes));
  madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  auto* const start = static_cast<std::byte*>(memory);
  pool.parallel_for(bytes, 2 * kMiB,
                    [=](std::int64_t begin, std::int64_t end) { std::fill(start + begin, start + end, std::byte{}); });
  return start;
}

StateBytes allocate_state(std::int64_t n, ThreadPool& pool) {
  StateBytes state;
  state.weight = allocate(2 * n, pool);
  state.residual = reinterpret_cast<std::int16_t*>(allocate(2 * n, pool));
  state.m = reinterpret_cast<float*>(allocate(4 * n, pool));
  state.v = reinterpret_cast<float*>(allocate(4 * n, pool));
  state.gradient = allocate(2 * n, pool);
  state.n = n;
  return state;
}

StateBytes part(const StateBytes& state, std::int64_t begin, std::int64_t end) {
  return {static_cast<std::uint16_t*>(state.weight) + begin,
          state.residual + begin,
          state.m + begin,
          state.v + begin,
          static_cast<const std::uint16_t*>(state.gradient) + begin,
          end - begin};
}

// Weights and gradients of a common size, so that no operation meets denormals.
void fill(const StateBytes& state, ThreadPool& pool) {
  pool.parallel_for(state.n, kCut, [&](std::int64_t begin, std::int64_t end) {
    std::mt19937 random(static_cast<std::uint32_t>(begin));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint32_t bits = random();
      static_cast<std::uint16_t*>(state.weight)[i] = static_cast<std::uint16_t>(0x3c00 | (bits & 0x80ff));
      static_cast<std::uint16_t*>(const_cast<void*>(state.gradient))[i] =
          static_cast<std::uint16_t>(0x3a00 | (bits >> 16 & 0x80ff));
      state.residual[i] = static_cast<std::int16_t>(bits >> 8);
      state.m[i] = 0;
      state.v[i] = 1e-6f;
    }
  });
}

Bytes last_cache_bytes() {
  Bytes bytes = 0;
  for (const int level :
       {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
    bytes = std::max<Bytes>(bytes, sysconf(level));
  }
  return bytes > 0 ? bytes : 64 * kMiB;
}

int run(int threads, int rounds) {
  ThreadPool pool(threads);
  const Bytes cache = last_cache_bytes();
  const std::int64_t n = round_up(4 * cache / 14, kCut);  // 14 bytes a parameter
  const StateBytes state = allocate_state(n, pool), other = allocate_state(n, pool);
  fill(state, pool);

  const auto kernels = make_cpu_kernels(pool);
  InlineStream stream;
  const StepControl control;
  const AdamWStep step = make_adamw_step({}, 1e-4, 0.1, 10);
  std::atomic<std::uint64_t> sink = 0;
  const std::map<std::string, std::function<void()>> kinds = {
      {"adamw", [&] { kernels->adamw(stream, step, &control, DType::kBf16, state); }},
      {"triad_in_place",
       [&] {
         pool.parallel_for(n, kCut, [&](std::int64_t begin, std::int64_t end) { triad_mix(part(other, begin, end)); });
       }},
      {"copy",
       [&] {
         pool.parallel_for(n, kCut, [&](std::int64_t begin, std::int64_t end) {
           sink += copy_mix(part(state, begin, end), part(other, begin, end));
         });
       }},
      {"copy_streaming_stores",
       [&] {
         pool.parallel_for(n, kCut, [&](std::int64_t begin, std::int64_t end) {
           sink += streaming_copy_mix(part(state, begin, end), part(other, begin, end));
         });
       }},
  };

  std::map<std::string, double> best;  // seconds
  for (int round = 0; round < rounds; ++round) {
    for (const auto& [name, body] : kinds) {
      const auto start = std::chrono::steady_clock::now();
      body();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best[name] = round ? std::min(best[name], seconds.count()) : seconds.count();
    }
  }

  nlohmann::ordered_json report;
  const double bytes = static_cast<double>(kBytesPerParameter * n);
  double reference = 0;
  for (const auto& [name, seconds] : best) {
    report["bytes_per_second"][name] = bytes / seconds;
    if (name != "adamw") reference = std::max(reference, bytes / seconds);
  }
  const double ratio = bytes / best["adamw"] / reference;
  report["adamw_bytes_per_second"] = bytes / best["adamw"];
  report["reference_bytes_per_second"] = reference;
  report["ratio"] = ratio;
  report["required_ratio"] = kRequiredRatio;
  report["threads"] = threads;
  report["rounds"] = rounds;
  report["parameters"] = n;
  report["last_cache_bytes"] = cache;
  report["simd"] = best_simd() == Simd::kAvx512 ? "avx512" : best_simd() == Simd::kAvx2 ? "avx2" : "scalar";
  std::printf("%s\n", report.dump(2).c_str());
  return ratio >= kRequiredRatio ? 0 : 1;
}

}  // namespace
}  // namespace protrain::bench

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : protrain::allowed_cores();
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  try {
    return protrain::bench::run(threads, rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
