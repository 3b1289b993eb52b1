#include "device/host_mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"

namespace protrain {
namespace {

constexpr Bytes kSmallPage = 4 * kKiB;

}  // namespace

HostMapping::HostMapping(Bytes bytes) : bytes_(round_up(bytes, kHugePage)) {
  PROTRAIN_CHECK(bytes > 0, "{} bytes", bytes);
  // The kernel aligns to small pages: map one huge page more and give the ends back.
  const auto size = static_cast<std::size_t>(bytes_ + kHugePage);
  void* const raw = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    fail(ExitCode::kDoesNotFit, "the system refuses {} of host memory: {}", format_bytes(bytes),
         std::generic_category().message(errno));
  }
  auto* const start = static_cast<std::byte*>(raw);
  const Bytes misplaced = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(start) % kHugePage);
  const Bytes before = misplaced == 0 ? 0 : kHugePage - misplaced;
  data_ = start + before;
  if (before > 0) ::munmap(start, static_cast<std::size_t>(before));
  ::munmap(data_ + bytes_, static_cast<std::size_t>(kHugePage - before));
  // Advice only: without huge pages everything works, more slowly.
  ::madvise(data_, static_cast<std::size_t>(bytes_), MADV_HUGEPAGE);
}

HostMapping::~HostMapping() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
}

HostMapping::HostMapping(HostMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostMapping& HostMapping::operator=(HostMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void HostMapping::touch(int threads) {
  ThreadPool pool(threads);
  pool.parallel_for(bytes_, kHugePage, [this](std::int64_t begin, std::int64_t end) {
    for (Bytes offset = begin; offset < end; offset += kSmallPage) {
      volatile std::byte* const page = data_ + offset;
      *page = *page;
    }
  });
}

}  // namespace protrain
