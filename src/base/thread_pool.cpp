#include "base/thread_pool.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace protrain {

struct ThreadPool::State {
  // Also when the system refused a thread and the pool's constructor gives up.
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    work.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  std::mutex callers;  // held for the whole of one parallel_for

  std::mutex mutex;  // guards everything below
  std::condition_variable work;
  std::condition_variable done;
  std::uint64_t round = 0;
  bool stop = false;
  int busy = 0;
  const std::function<void(std::int64_t, std::int64_t)>* fn = nullptr;
  std::int64_t n = 0;
  std::int64_t share = 0;
  std::exception_ptr error;

  std::vector<std::thread> threads;

  // Fixed equal cuts: thread k always gets the k-th share, which keeps pages near the core that touched them first.
  void run_share(int index) {
    const std::int64_t begin = std::min(n, index * share);
    const std::int64_t end = std::min(n, begin + share);
    if (begin >= end) return;
    try {
      (*fn)(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void serve(int index) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stop || round != seen; });
      if (stop) return;
      seen = round;
      lock.unlock();
      run_share(index);
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads, Placement placement) : state_(std::make_unique<State>()) {
  PROTRAIN_CHECK(threads >= 1, "{} threads", threads);
  std::vector<const std::vector<int>*> homes;  // of each allowed core: the cores of its node
  std::vector<Node> nodes;
  if (placement == Placement::kByNode) nodes = allowed_nodes();
  if (nodes.size() > 1) {
    for (const Node& node : nodes) homes.insert(homes.end(), node.cores.size(), &node.cores);
  }
  for (int index = 1; index < threads; ++index) {
    std::vector<int> home;
    if (!homes.empty())
      home = *homes[homes.size() * static_cast<std::size_t>(index) / static_cast<std::size_t>(threads)];
    state_->threads.emplace_back([state = state_.get(), index, home = std::move(home)] {
      run_on(home);
      state->serve(index);
    });
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::parallel_for(std::int64_t n, std::int64_t grain,
                              const std::function<void(std::int64_t, std::int64_t)>& fn) {
  PROTRAIN_CHECK(n >= 0 && grain > 0, "n {}, grain {}", n, grain);
  if (n == 0) return;
  State& state = *state_;
  if (state.threads.empty() || n <= grain) {
    const std::lock_guard callers(state.callers);
    fn(0, n);
    return;
  }
  const std::lock_guard callers(state.callers);
  {
    const std::lock_guard lock(state.mutex);
    state.fn = &fn;
    state.n = n;
    state.share = round_up(ceil_div(n, threads()), grain);
    state.error = nullptr;
    state.busy = static_cast<int>(state.threads.size());
    ++state.round;
  }
  state.work.notify_all();
  state.run_share(0);
  std::unique_lock lock(state.mutex);
  state.done.wait(lock, [&] { return state.busy == 0; });
  if (state.error) std::rethrow_exception(std::exchange(state.error, nullptr));
}

}  // namespace protrain
