// Precompiled header of every LibTorch file: what most of them need and nothing that changes.
#pragma once
// LibTorch's headers carry an {fmt} of their own, of another version than the system's library: here it is found first,
// and needs no library. Its inline namespace keeps the two apart.
#define FMT_HEADER_ONLY
#include <ATen/TensorOptions.h>
#include <ATen/core/Tensor.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <vector>
