#include "optimizer/scalar_lanes.h"
#include "optimizer/simd_loops.h"

namespace protrain {

constinit const SimdKernels kScalarKernels = arithmetic::Loops<arithmetic::ScalarLanes>::kTable;

}  // namespace protrain
