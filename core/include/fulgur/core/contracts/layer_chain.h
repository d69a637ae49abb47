#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// The computation of a training step as a chain of layers, which a pipeline divides among ranks
/// (`LightningModule::stages`). The first layer gets `input` of the batch, each other layer what the one before it
/// returns, and `loss` what the last one returns:
///
///     fulgur::LayerChain Classifier::stages() {
///       fulgur::LayerChain chain;
///       chain.input = [](const fulgur::Batch& batch) { return std::vector{batch[0]}; };
///       chain.add("body", {"body"}, [this](const at::Tensor& x) { return body_(x); });
///       chain.add("head", {"head"}, [this](const at::Tensor& x) { return head_(x); });
///       chain.loss = [this](const std::vector<at::Tensor>& outputs, const fulgur::Batch& batch) {
///         at::Tensor loss = at::cross_entropy_loss(outputs[0], batch[1]);
///         log("train_loss", loss);
///         return loss;
///       };
///       return chain;
///     }
struct FULGUR_API LayerChain {
  using Values = std::vector<Tensor>;
  struct FULGUR_API Layer {
    std::string name;  ///< what the option `cuts` of the strategy calls it; unique in the chain
    /// Dotted names of the modules or parameters that `forward` reads. Several layers may read the same ones.
    std::vector<std::string> modules;
    /// Reads nothing of the batch but its arguments. The shapes of its results depend on those of its arguments only.
    std::function<Values(const Values&)> forward;
  };

  std::function<Values(const Batch&)> input;
  std::vector<Layer> layers;
  /// The loss of a part of a batch, a mean over its samples. It may log, and reads no parameters except those of the
  /// last layer's modules.
  std::function<Tensor(const Values&, const Batch&)> loss;

  /// Adds a layer that takes one tensor and returns one. Its forward throws an Error if it is given several.
  void add(std::string name, std::vector<std::string> modules, std::function<Tensor(const Tensor&)> forward);
};

}  // namespace fulgur
