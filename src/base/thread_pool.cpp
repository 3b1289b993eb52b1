#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace protrain {
namespace {

constexpr std::int64_t kSlicesOfAThread = 16;

}  // namespace

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

  std::mutex mutex;  // guards what is below, but for `next`
  std::condition_variable work;
  std::condition_variable done;
  std::uint64_t round = 0;
  bool stop = false;
  const std::function<void(std::int64_t, std::int64_t)>* fn = nullptr;  // null: no round takes helpers
  std::int64_t n = 0;
  std::int64_t slice = 0;
  std::atomic<std::int64_t> next = 0;
  int helping = 0;  // threads that are at work on the round
  std::exception_ptr error;

  std::vector<std::thread> threads;

  // Slices go to whoever is free: a core that other programs hold for a while delays one slice, not its whole share.
  void run_slices(const std::function<void(std::int64_t, std::int64_t)>& run) {
    try {
      for (;;) {
        const std::int64_t begin = next.fetch_add(slice);
        if (begin >= n) return;
        run(begin, std::min(n, begin + slice));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void serve() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stop || round != seen; });
      if (stop) return;
      seen = round;
      if (fn == nullptr) continue;  // woken too late: it is done
      const auto& run = *fn;
      ++helping;
      lock.unlock();
      run_slices(run);
      lock.lock();
      if (--helping == 0) done.notify_one();
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
    state_->threads.emplace_back([state = state_.get(), home = std::move(home)] {
      run_on(home);
      state->serve();
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
    state.slice = round_up(ceil_div(n, kSlicesOfAThread * threads()), grain);
    state.next = 0;
    state.error = nullptr;
    ++state.round;
  }
  state.work.notify_all();
  state.run_slices(fn);
  std::unique_lock lock(state.mutex);
  state.fn = nullptr;
  state.done.wait(lock, [&] { return state.helping == 0; });
  if (state.error) std::rethrow_exception(std::exchange(state.error, nullptr));
}

}  // namespace protrain
