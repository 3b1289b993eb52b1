#include "tensor/replay.h"

namespace protrain {

struct ScratchScope::State {};

ScratchScope::ScratchScope(Bytes) {}
ScratchScope::~ScratchScope() = default;

}  // namespace protrain
