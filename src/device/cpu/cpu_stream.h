// A stream of the simulated device: one worker thread that runs its queue in order.
//
// The first error of an operation stays with the stream: later operations are skipped (not waits: marks and events keep
// their order), later events carry it, and so do streams that wait for those events. The destructor runs what is
// queued, then ends the thread.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "device/cpu/link.h"
#include "device/host_stream.h"

namespace protrain {

class CpuEventState : public HostTimedEvent {
 public:
  bool ready() const override;
  void wait() const override;
  void set(std::exception_ptr error);  // once
  Clock::time_point time() const override;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool set_ = false;
  Clock::time_point time_;
  std::exception_ptr error_;
};

class CpuStream : public Stream {
 public:
  CpuStream(std::string lane, std::shared_ptr<Links> links);
  ~CpuStream() override;

  void copy(std::byte* to, const std::byte* from, Bytes) override;
  void zero(std::byte* to, Bytes) override;
  void wait(const Event&) override;
  Event record() override;
  void call(const std::function<void()>& fn) override;
  void mark(const std::function<void()>& fn) override;
  void synchronize() override;
  void* native() const override { return nullptr; }

 private:
  void push(std::function<void()> operation);
  void serve();

  std::string lane_;
  std::shared_ptr<Links> links_;

  std::mutex mutex_;  // guards everything below
  std::condition_variable work_;
  std::condition_variable drained_;
  std::deque<std::function<void()>> queue_;
  bool running_ = false;  // an operation is being executed
  bool stop_ = false;
  std::exception_ptr error_;

  std::thread worker_;
};

}  // namespace protrain
