#include "plan/plan.h"

namespace protrain {

DType part_dtype(Part part, DType compute) {
  switch (part) {
    case Part::kWeight:
    case Part::kGradient: return compute;
    case Part::kResidual: return DType::kI16;
    case Part::kM:
    case Part::kV:
    case Part::kAccumulator: return DType::kF32;
  }
  return DType::kF32;
}

std::string_view part_name(Part part) {
  switch (part) {
    case Part::kWeight: return "weight";
    case Part::kResidual: return "residual";
    case Part::kM: return "m";
    case Part::kV: return "v";
    case Part::kGradient: return "gradient";
    case Part::kAccumulator: return "accumulator";
  }
  return "?";
}

std::string_view region_name(Region region) {
  switch (region) {
    case Region::kState: return "state";
    case Region::kWeightHome: return "weight_home";
    case Region::kWeightSlot: return "weight_slot";
    case Region::kGradientSlot: return "gradient_slot";
    case Region::kBatch: return "batch";
    case Region::kLosses: return "losses";
    case Region::kNorms: return "norms";
    case Region::kControl: return "control";
    case Region::kTables: return "tables";
    case Region::kLibrary: return "library";
    case Region::kBatchStaging: return "batch_staging";
    case Region::kResults: return "results";
    case Region::kAccumulator: return "accumulator";
    case Region::kWireGradient: return "wire_gradient";
    case Region::kBlockInput: return "block_input";
    case Region::kInputGradient: return "input_gradient";
    case Region::kSaved: return "saved";
    case Region::kWorkspace: return "workspace";
    case Region::kHostInput: return "host_input";
    case Region::kHostSaved: return "host_saved";
  }
  return "?";
}

std::string_view region_tag(Region region, Id index) {
  switch (region) {
    case Region::kState:
      switch (static_cast<Part>(index % kParts)) {
        case Part::kWeight: return "weights";
        case Part::kGradient:
        case Part::kAccumulator: return "gradients";
        case Part::kResidual:
        case Part::kM:
        case Part::kV: return "optimizer state";
      }
      return "?";
    case Region::kWeightHome:
    case Region::kWeightSlot: return "weights";
    case Region::kGradientSlot:
    case Region::kAccumulator:
    case Region::kWireGradient: return "gradients";
    case Region::kBlockInput:
    case Region::kInputGradient:
    case Region::kSaved:
    case Region::kHostInput:
    case Region::kHostSaved: return "activations";
    case Region::kWorkspace:
    case Region::kTables:
    case Region::kLibrary: return "workspace";
    case Region::kBatch:
    case Region::kBatchStaging: return "batches";
    case Region::kLosses:
    case Region::kNorms:
    case Region::kControl:
    case Region::kResults: return "control";
  }
  return "?";
}

}  // namespace protrain
