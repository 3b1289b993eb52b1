// The model on its device before there is a plan: blocks, and what each of their calls asks of memory. Order matters:
// the allocator is installed before anything of LibTorch's or CUDA's starts, and calls are recorded on the thread that
// will run them. One thread.
#pragma once
#include <memory>
#include <vector>

#include "device/device.h"
#include "model/model.h"
#include "plan/plan.h"
#include "schedule/rates.h"
#include "train/config.h"
#include "train/data_sources.h"
#include "train/model_source.h"
#include "train/run_kernels.h"

namespace protrain {

struct MeasuredModel {
  std::unique_ptr<Device> device;
  int compute_threads = 1;
  RunShape shape;
  std::shared_ptr<model::RopeTables> tables;
  std::shared_ptr<TraceBook> traces;
  std::vector<std::unique_ptr<Block>> blocks;
  RunKernels kernels;
  Profile profile;
  Rates rates;              // of this machine; after change_shape() without the calls of training
  Bytes process_bytes = 0;  // RssAnon + RssShmem, with all that recording has made
  Bytes outside_bytes = 0;  // CUDA: of the device, as the driver says
};

// Error(kConfig) for a device that is not there; Error(kDoesNotFit) when a block of one micro-batch has not enough
// memory to run.
MeasuredModel measure_model(const TrainConfig&, const ModelSource&, const DataSources&);
// process_bytes and outside_bytes as they are now: after anything else was measured.
void settle(MeasuredModel&);
// What the calls ask for with other shapes, as far as there is memory for one block's.
Profile measure_again(const MeasuredModel&, const ModelSource&, const RunShape&);

// From here on with another micro-batch: its shape and memory, and of the rates what does not depend on it, if they are
// there. Errors as measure_model().
void change_shape(MeasuredModel&, const ModelSource&, RunShape);
// Memory has run out, whoever says so.
bool ran_out_of_memory(const std::exception&);

DeviceKind device_kind(const TrainConfig&);
// bf16: auto: on CUDA, and on CPUs that multiply bf16 in hardware.
DType compute_dtype(const TrainConfig&, DeviceKind);
bool cpu_multiplies_bf16();

}  // namespace protrain
