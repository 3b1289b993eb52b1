// What each call of a model's blocks needs of memory, found by running them: one block of each kind, never the model.
#pragma once
#include <memory>
#include <span>

#include "plan/plan.h"
#include "tensor/trace_book.h"

namespace protrain {

// Runs every kind of call that a run of this shape can make, under any plan, and fills `book`, which the blocks were
// made with (make_blocks in model/), with their traces; the book's mode is plain before and after. Weights, inputs and
// tokens are random but fixed; no generator of LibTorch's is touched. Memory is plain and given back: at one time the
// weights and gradients of one block, and what its calls ask for. `tables` is passed on to the profile.
//
// On the calling thread, which is the one that will run the blocks; install_allocator() has come first.
Profile record_memory(const ModelSpec&, std::span<const std::unique_ptr<Block>>, TraceBook& book, const RunShape&,
                      Device&, Bytes tables = 0);

}  // namespace protrain
