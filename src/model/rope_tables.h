// Rotary tables of a model, shared by its layers. One thread at a time.
#pragma once
#include "arch/architecture.h"
#include "device/device.h"
#include "ops/ops.h"

namespace protrain::model {

class RopeTables {
 public:
  // In memory of LibTorch's. Without rotary positions the tables stay undefined and take no bytes.
  RopeTables(const Architecture&, DeviceKind, std::int64_t positions);
  // Tables for at least that many positions: kept ones, or new ones when they are too short (InternalError once
  // placed).
  const ops::Rope& at_least(std::int64_t positions);
  Bytes bytes() const;
  // Moves the tables to device memory of bytes(), kAlignment aligned, which outlives their use; their own is let go.
  void place(std::byte* memory, Stream&);

 private:
  void make(std::int64_t positions);

  bool rotary_;
  bool placed_ = false;
  RopeTable table_;
  DeviceKind device_;
  ops::Rope rope_;
};

}  // namespace protrain::model
