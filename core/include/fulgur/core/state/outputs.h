#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Named tensors that a step returns; may be empty.
class FULGUR_API Outputs {
 public:
  using Entry = std::pair<std::string, Tensor>;
  Outputs() = default;
  Outputs(std::initializer_list<Entry> entries) : entries_(entries) {}
  void add(std::string name, Tensor value) { entries_.emplace_back(std::move(name), std::move(value)); }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  bool contains(std::string_view name) const;
  /// Throws an Error that lists the names if no output has this name.
  const Tensor& operator[](std::string_view name) const;
  /// A copy whose tensors are all detached from the graph.
  Outputs detach() const;
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::vector<Entry> entries_;
};

/// What `training_step` returns: the loss (a scalar with a graph) and anything callbacks should see of the step. An
/// undefined loss skips the step.
struct FULGUR_API StepOutput {
  Tensor loss;
  Outputs extra;
  StepOutput() = default;
  StepOutput(Tensor loss_) : loss(std::move(loss_)) {}
  StepOutput(Tensor loss_, Outputs extra_) : loss(std::move(loss_)), extra(std::move(extra_)) {}
};

}  // namespace fulgur
