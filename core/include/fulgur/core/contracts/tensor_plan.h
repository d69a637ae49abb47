#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/options/enum_names.h"

namespace fulgur {

/// How the ranks along the axis `tensor` of a mesh divide a layer.
enum class TensorSplit {
  column,           ///< a linear layer by its outputs, which each rank has a part of
  gathered_column,  ///< the same, and all ranks get all outputs
  row,              ///< a linear layer by its inputs, of which each rank has a part; the ranks add their outputs
  vocabulary,       ///< an embedding by its rows, or a linear layer by its outputs, which only a cross entropy reads
  sequence,         ///< a norm: each rank computes it for a part of the tokens
  whole,            ///< not divided, whatever a later rule says
};
constexpr auto enum_names(TensorSplit) {
  return std::to_array<EnumName<TensorSplit>>({{TensorSplit::column, "column"},
                                               {TensorSplit::gathered_column, "gathered_column"},
                                               {TensorSplit::row, "row"},
                                               {TensorSplit::vocabulary, "vocabulary"},
                                               {TensorSplit::sequence, "sequence"},
                                               {TensorSplit::whole, "whole"}});
}

/// Outputs of a linear layer that are divided apart from its others: each rank gets its share of each.
struct FULGUR_API FusedPart {
  int64_t outputs = 0;
  int64_t units = 0;      ///< that stay on one rank, such as heads; divides `outputs`
  std::string unit = {};  ///< what errors call them, such as the option with their number
};

/// What the ranks do with layers whose names match a pattern.
struct FULGUR_API TensorRule {
  std::string pattern;  ///< of names of modules; `*` stands for any characters
  TensorSplit split = TensorSplit::whole;
  /// For `column`: the parts of the outputs, in order; empty: one.
  std::vector<FusedPart> parts = {};
};

/// How ranks divide a module; of several rules that match a layer, the first counts (`LightningModule::tensor_plan`).
using TensorPlan = std::vector<TensorRule>;

}  // namespace fulgur
