#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/optimizer.h"

namespace torch::optim {
class Optimizer;
}

namespace fulgur {

/// A class of `torch::optim` as the optimizer of a run. `torch_optimizer` creates it. Schedules change its rate, groups
/// may have their own rate and weight decay. State is saved for Adam, AdamW, SGD, RMSprop and Adagrad; for other
/// classes `state()` throws a CheckpointError, since their state is unknown. It steps each parameter separately, slower
/// than the optimizers of this folder, and waits for the device if a gradient scaler is used.
class FULGUR_API TorchOptimizer final : public Optimizer {
 public:
  /// Creates the optimizer over these parameters, in one group.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor> parameters)>;
  explicit TorchOptimizer(Factory factory);
  ~TorchOptimizer() override;
  /// The default rate of the class; 0 before `attach`.
  double default_lr() const override;
  /// The name of the class, such as `torch::optim::Adam`; known only after `attach`.
  std::string name() const override;
  std::optional<double> momentum() const override;
  void set_momentum(double momentum) override;
  std::optional<double> weight_decay(const ParamGroup& group) const override;
  void step(const std::optional<Tensor>& found_inf = std::nullopt) override;
  /// The optimizer itself; throws an Error before `attach`.
  torch::optim::Optimizer& wrapped() const;

 protected:
  StateTree parameter_state(const Tensor& parameter) const override;
  void load_parameter_state(const Tensor& parameter, const StateTree& state) override;
  void check_parameter_state(const std::string& name, const Tensor& parameter, const StateTree& state) const override;
  void on_attached() override;

 private:
  Factory factory_;
  std::unique_ptr<torch::optim::Optimizer> torch_;
};

/// Creates one in `configure_optimizers`: `return
/// torch_optimizer<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-3));`
template <class T, class TorchOptions>
std::shared_ptr<TorchOptimizer> torch_optimizer(TorchOptions options) {
  return std::make_shared<TorchOptimizer>(
      [options](std::vector<Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<T>(std::move(parameters), options);
      });
}

}  // namespace fulgur
