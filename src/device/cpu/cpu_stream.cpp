#include "device/cpu/cpu_stream.h"

#include <pthread.h>

#include <cstring>
#include <utility>

#include "base/error.h"

namespace protrain {

bool CpuEventState::ready() const {
  const std::lock_guard lock(mutex_);
  return set_;
}

void CpuEventState::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return set_; });
  if (error_) std::rethrow_exception(error_);
}

void CpuEventState::set(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  PROTRAIN_CHECK(!set_, "an event passes once");
  set_ = true;
  time_ = Clock::now();
  error_ = std::move(error);
  changed_.notify_all();
}

HostTimedEvent::Clock::time_point CpuEventState::time() const {
  const std::lock_guard lock(mutex_);
  PROTRAIN_CHECK(set_, "the event has not passed yet");
  return time_;
}

CpuStream::CpuStream(std::string lane, std::shared_ptr<Links> links)
    : lane_(std::move(lane)), links_(std::move(links)), worker_([this] { serve(); }) {
  // For debuggers; the kernel keeps 15 characters.
  ::pthread_setname_np(worker_.native_handle(), lane_.substr(0, 15).c_str());
}

CpuStream::~CpuStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  worker_.join();
}

void CpuStream::push(std::function<void()> operation) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(operation));
  }
  work_.notify_one();
}

void CpuStream::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> operation = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    operation();
    lock.lock();
    running_ = false;
    if (queue_.empty()) drained_.notify_all();
  }
}

namespace {

// Runs one operation unless an earlier one failed; keeps the first error.
template <typename Fn>
void attempt(std::mutex& mutex, std::exception_ptr& error, const Fn& fn) {
  {
    const std::lock_guard lock(mutex);
    if (error) return;
  }
  try {
    fn();
  } catch (...) {
    const std::lock_guard lock(mutex);
    error = std::current_exception();
  }
}

}  // namespace

void CpuStream::copy(std::byte* to, const std::byte* from, Bytes bytes) {
  PROTRAIN_CHECK(bytes >= 0 && (bytes == 0 || (to != nullptr && from != nullptr)), "copy of {} bytes", bytes);
  if (bytes == 0) return;
  push([=, this] { attempt(mutex_, error_, [&] { links_->transfer(to, from, bytes); }); });
}

void CpuStream::zero(std::byte* to, Bytes bytes) {
  PROTRAIN_CHECK(bytes >= 0 && (bytes == 0 || to != nullptr), "zeroing of {} bytes", bytes);
  if (bytes == 0) return;
  push([=, this] { attempt(mutex_, error_, [&] { std::memset(to, 0, static_cast<std::size_t>(bytes)); }); });
}

void CpuStream::wait(const Event& event) {
  if (!event.state()) return;
  // Also after an error: what runs after errors (marks, the events of others) keeps its order.
  push([event, this] {
    try {
      event.wait();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  });
}

Event CpuStream::record() {
  auto state = std::make_shared<CpuEventState>();
  {
    std::unique_lock lock(mutex_);
    if (queue_.empty() && !running_) {
      // Nothing is ahead of it: it passes now, without a trip through the worker.
      const std::exception_ptr error = error_;
      lock.unlock();
      state->set(error);
      return Event(std::move(state));
    }
  }
  push([state, this] {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = error_;
    }
    state->set(std::move(error));
  });
  return Event(std::move(state));
}

void CpuStream::call(const std::function<void()>& fn) {
  synchronize();
  fn();
}

void CpuStream::mark(const std::function<void()>& fn) { push(fn); }

void CpuStream::synchronize() {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [this] { return queue_.empty() && !running_; });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace protrain
