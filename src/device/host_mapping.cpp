#include "device/host_mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "base/cgroup.h"
#include "base/error.h"

namespace protrain {
namespace {

constexpr Bytes kSmallPage = 4 * kKiB;

}  // namespace

HostMapping::HostMapping(Bytes bytes) : bytes_(round_up(bytes, kHugePage)) {
  PROTRAIN_CHECK(bytes > 0, "{} bytes", bytes);
  if (const Bytes limit = host_memory_limit(); bytes > limit) {
    fail(ExitCode::kDoesNotFit, "{} of host memory are needed, this process may have {}", format_bytes(bytes),
         format_bytes(limit));
  }
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

// Note [Pages and nodes]: a page lies on the NUMA node whose core touches it first. Huge pages go to the nodes in turn,
// because a chunk's update reads and writes all of its bytes with the cores of all nodes at once, chunk after chunk: so
// every chunk has the bandwidth of all memories, and so has a copy over the link. To give each node a part of the arena
// instead would leave all but one memory idle for most chunks. Touched by bound threads rather than by a memory policy
// of the kernel's, which containers often forbid.
void HostMapping::touch() { touch(allowed_nodes()); }

void HostMapping::touch(const std::vector<Node>& nodes) {
  const auto pages = bytes_ / kHugePage;
  const auto node_count = static_cast<Bytes>(nodes.size());
  // Page `first`, and every `stride`th after it.
  const auto touch_pages = [this, pages](Bytes first, Bytes stride) {
    for (Bytes page = first; page < pages; page += stride) {
      for (Bytes offset = page * kHugePage; offset < (page + 1) * kHugePage; offset += kSmallPage) {
        volatile std::byte* const at = data_ + offset;
        *at = *at;
      }
    }
  };
  std::vector<std::jthread> threads;
  for (Bytes n = 0; n < node_count; ++n) {
    const Node& node = nodes[static_cast<std::size_t>(n)];
    const auto workers =
        std::min(static_cast<Bytes>(node.cores.size()), ceil_div(std::max<Bytes>(pages - n, 0), node_count));
    for (Bytes worker = 0; worker < workers; ++worker) {
      threads.emplace_back([&touch_pages, &node, n, worker, workers, node_count] {
        if (node_count > 1) run_on(node.cores);
        touch_pages(n + worker * node_count, workers * node_count);
      });
    }
  }
}

}  // namespace protrain
