// A fixed team of threads for CPU kernels and readers. No OpenMP, so it is clean under TSan and unaffected by
// OMP_NUM_THREADS. One parallel_for at a time a pool (a second caller waits); fn must not call back into the pool.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "base/cores.h"

namespace protrain {

enum class Placement : std::uint8_t {
  kAnywhere,
  // Each thread stays on the allowed cores of one NUMA node; the threads are spread over the nodes as those cores are.
  // To a node and not to a core: other programs may run on any one core. The caller of parallel_for is not moved.
  kByNode,
};

class ThreadPool {
 public:
  // threads >= 1; the caller of parallel_for is one of them.
  explicit ThreadPool(int threads, Placement = Placement::kAnywhere);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Calls fn(begin, end) on disjoint ranges that cover [0, n), each start a multiple of `grain`. Returns when all
  // ended; rethrows the first exception. What a range computes must not depend on where the cuts fall.
  void parallel_for(std::int64_t n, std::int64_t grain, const std::function<void(std::int64_t, std::int64_t)>& fn);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace protrain
