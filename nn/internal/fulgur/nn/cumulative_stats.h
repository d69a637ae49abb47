#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::nn {

/// Resets the running statistics of the batch norms in a module (LibTorch's and Fulgur's) that are in training mode.
/// While it lives, they are the mean over all training forwards, each with the same weight. The module must outlive it.
class CumulativeStats {
 public:
  explicit CumulativeStats(const torch::nn::Module& module);
  ~CumulativeStats();
  CumulativeStats(const CumulativeStats&) = delete;
  CumulativeStats& operator=(const CumulativeStats&) = delete;

  /// Whether the module has such a layer.
  static bool has_any(const torch::nn::Module& module);
  /// Gives the buffers the values that they had before.
  void put_back();
  /// The dotted names of the buffers that are recomputed; empty if there is no such layer.
  const std::vector<std::string>& names() const { return names_; }
  /// Their running means and variances, without the counters.
  const std::vector<Tensor>& statistics() const { return statistics_; }

 private:
  std::vector<std::string> names_;
  std::vector<Tensor> statistics_;
  std::vector<std::pair<Tensor, Tensor>> before_;  // the buffers, with their values
  std::vector<std::function<void()>> restore_momentum_;
};

}  // namespace fulgur::nn
