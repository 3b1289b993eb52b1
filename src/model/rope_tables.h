// Rotary tables of a model, shared by its layers. Private to model/; one thread at a time.
#pragma once
#include "arch/architecture.h"
#include "device/device.h"
#include "ops/ops.h"

namespace protrain::model {

class RopeTables {
 public:
  // Without rotary positions the tables stay undefined.
  RopeTables(const Architecture&, DeviceKind, std::int64_t positions);
  // Tables for at least that many positions: kept ones, or new ones when they are too short.
  const ops::Rope& at_least(std::int64_t positions);

 private:
  void make(std::int64_t positions);

  bool rotary_;
  RopeTable table_;
  DeviceKind device_;
  ops::Rope rope_;
};

}  // namespace protrain::model
