// A fixed team of threads for CPU kernels and readers. No OpenMP, so it is clean under TSan and unaffected by
// OMP_NUM_THREADS. One parallel_for at a time a pool (a second caller waits); fn must not call back into the pool.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

namespace protrain {

int allowed_cores();  // cores in this process's affinity mask, capped by the cgroup's CPU quota; at least 1

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1; the caller of parallel_for is one of them
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
