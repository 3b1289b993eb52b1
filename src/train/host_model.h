// A model's weights alone, fp32 in host memory: for commands that convert or make weights. One thread.
#pragma once
#include <memory>
#include <vector>

#include "device/device.h"
#include "runtime/chunk_store.h"

namespace protrain {

class HostModel {
 public:
  explicit HostModel(const ModelSpec&);  // outlives it. Error(kDoesNotFit).
  HostModel(const HostModel&) = delete;
  HostModel& operator=(const HostModel&) = delete;
  ChunkStore& store() { return *store_; }

 private:
  RunShape shape_;
  Plan plan_;
  std::vector<Chunk> chunks_;
  Layout layout_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<ChunkStore> store_;
};

}  // namespace protrain
