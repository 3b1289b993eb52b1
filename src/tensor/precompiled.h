// Precompiled header of every LibTorch file: what most of them need and nothing that changes.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/TensorOptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/autograd/autograd.h>
#include <fmt/core.h>

#include <memory>
#include <string>
#include <vector>
