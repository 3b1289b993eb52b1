// Precompiled header of every LibTorch file: what most of them need and nothing that changes.
#pragma once
#include <ATen/TensorOptions.h>
#include <ATen/core/Tensor.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <vector>
