#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/tensor_plan.h"

namespace fulgur::detail {

/// A parameter of which each of some ranks has a part.
struct DividedParameter {
  std::string name;
  std::string layer;  ///< the module that has it
  Tensor value;       ///< the module's
  TensorSplit split = TensorSplit::column;
  bool is_weight = true;  ///< or the bias
  std::vector<int64_t> sizes;
  int64_t dim = 0;  ///< that is divided
  /// Sizes of the parts of this dimension that are divided apart from each other.
  std::vector<int64_t> parts;
  /// Consecutive elements that no rank divides, the same number in all parts, such as those of a head.
  int64_t unit = 1;
};

/// The elements `begin`, …, `begin + count - 1`.
struct OwnRange {
  int64_t begin = 0, count = 0;
};
/// Those of `size` elements that one of `ranks` ranks has. All have the same number, except for the last ranks if it is
/// not a multiple.
OwnRange own_range(int64_t size, int64_t rank, int64_t ranks);
/// What a rank has of a tensor with the parameter's sizes; contiguous, in memory that it shares with no other.
Tensor own_part(const DividedParameter& parameter, const Tensor& whole, int64_t rank, int64_t ranks);

/// What a plan divides.
struct DividedLayers {
  std::vector<DividedParameter> parameters;
  /// Parameters of norms that each rank computes for a part of the tokens.
  std::vector<Tensor> of_norms;
};

/// What `ranks` ranks divide by `options`, whose keys are patterns of names of modules, and by the
/// module's own plan, for layers that no pattern of `options` matches. Throws a ConfigError for a pattern that matches
/// no layer with parameters, for layers that cannot be divided so, and for sizes that `ranks` does not divide.
DividedLayers plan_divided_layers(const LightningModule& module, const std::map<std::string, TensorSplit>& options,
                                  int64_t ranks);

}  // namespace fulgur::detail
