#include "train/host_model.h"

#include <algorithm>
#include <array>

#include "base/cgroup.h"
#include "base/error.h"
#include "base/host_memory.h"

namespace protrain {

HostModel::HostModel(const ModelSpec& spec)
    : plan_(resident_plan(spec, shape_, Plan{}.chunk_bytes)),
      chunks_(make_chunks(spec, plan_.chunk_bytes, DType::kF32)),
      layout_(parts_layout(chunks_, DType::kF32, std::array{Part::kWeight})),
      device_(make_cpu_device()) {
  const Bytes bytes = layout_.bytes(Tier::kDevice);
  if (const Bytes limit = std::max<Bytes>(0, host_memory_limit() - host_memory().resident); bytes > limit) {
    fail(ExitCode::kDoesNotFit, "the model's weights need {} ({} bytes) of host memory, {} ({} bytes) are available",
         format_bytes(bytes), bytes, format_bytes(limit), limit);
  }
  arena_ = std::make_unique<Arena>(*device_, Tier::kDevice, bytes);
  Arenas arenas{};
  arenas[static_cast<std::size_t>(Tier::kDevice)] = arena_.get();
  store_ = std::make_unique<ChunkStore>(spec, chunks_, layout_, shape_, plan_, *device_, arenas);
}

}  // namespace protrain
