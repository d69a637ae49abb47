#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <utility>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/state/rng.h"
#include "fulgur/virtual_devices/virtual_devices.h"
#include "trainer/boring.h"

namespace fulgur::test {

/// A BoringModule with options, so that another can be made; `parts` is what the test looks at of each.
struct Parted : BoringModule {
  struct Options {
    double dropout = 0;
    bool norm = false;
    void fields(Fields& f) {
      f(dropout, "dropout", "Share of values that are set to zero.");
      f(norm, "norm", "With a BatchNorm.");
    }
  };
  torch::nn::BatchNorm1d norm{nullptr};
  explicit Parted(const Options& options) : BoringModule(options.dropout) {
    if (options.norm) norm = register_module("norm", torch::nn::BatchNorm1d(2));
  }
  Tensor out(const Tensor& x) {
    const Tensor y = forward(x);
    return norm ? norm->forward(y) : y;
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(out(batch[0]), batch[1]);
    log("train_loss", loss, {.on_step = true, .on_epoch = true});
    log("samples", static_cast<double>(batch.size()), {.on_step = false, .on_epoch = true, .reduce_fx = Reduce::sum});
    return {loss, {{"first", batch[0].select(1, 0)}, {"mean", batch[0].mean()}}};
  }
  OptimizerPlan configure_optimizers() override {
    AdamW::Options options;
    options.lr = 0.01;
    return std::make_shared<AdamW>(options);
  }
};

/// A run of Parted (or of a class like it) with these options, from fixed first weights.
template <class M = Parted>
struct Trained {
  std::shared_ptr<M> module;
  FitReport report;
  std::map<std::string, Tensor> weights;  // on the CPU
};

template <class M>
std::map<std::string, Tensor> weights_on_cpu(const M& module) {
  auto all = weights(module);
  for (auto& [name, value] : all) value = value.cpu();
  return all;
}

template <class M = Parted>
Trained<M> train(TrainerOptions options, const typename M::Options& model = {},
                 std::shared_ptr<DataModule> data = regression_data(), const CheckpointChoice& checkpoint = {},
                 TrainerComponents components = {}) {
  seed_everything(7);
  auto module = make_component<LightningModule, M>(model);
  if (!components.seed) components.seed = 7;
  Trained<M> trained{.module = module, .report = {}, .weights = {}};
  trained.report = Trainer(std::move(options), std::move(components))
                       .fit(std::shared_ptr<LightningModule>(module), std::move(data), checkpoint);
  trained.weights = weights_on_cpu(*module);
  return trained;
}

inline double largest_difference(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  double most = 0;
  if (a.size() != b.size()) return 1e9;
  for (const auto& [name, value] : a)
    most = std::max(most, (value.to(at::kDouble) - b.at(name).to(at::kDouble)).abs().max().template item<double>());
  return most;
}

inline TrainerOptions on_virtual(const TemporaryFolder& folder, const std::string& strategy, int devices) {
  TrainerOptions options = quiet(folder);
  options.accelerator = "virtual";
  options.devices = devices;
  options.strategy = Spec<Strategy>(strategy);
  return options;
}

inline double metric_of(const Metrics& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics)
    if (key == name) return value;
  FAIL("no metric " << name);
  return 0;
}

}  // namespace fulgur::test
