#pragma once

#include <ATen/Context.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "fulgur/core/contracts/module.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/iterable_loader.h"
#include "fulgur/data/tensor_data_module.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/loggers/memory_logger.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/schedules.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/trainer/trainer.h"
#include "support/temporary_folder.h"

namespace fulgur::test {

/// The smallest module that learns: regression through two layers, with dropout on request.
struct BoringModule : LightningModule {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Dropout drop{nullptr};
  explicit BoringModule(double dropout = 0.0) {
    first = register_module("first", torch::nn::Linear(4, 8));
    drop = register_module("drop", torch::nn::Dropout(dropout));
    second = register_module("second", torch::nn::Linear(8, 2));
  }
  Tensor forward(const Tensor& x) { return second->forward(drop->forward(first->forward(x).relu())); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::mse_loss(forward(batch[0]), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    log("val_loss", at::mse_loss(forward(batch[0]), batch[1]));
    return {};
  }
  Outputs test_step(const Batch& batch, int64_t, int64_t) override {
    log("test_loss", at::mse_loss(forward(batch[0]), batch[1]));
    return {};
  }
  Outputs predict_step(const Batch& batch, int64_t, int64_t) override { return {{"y", forward(batch[0])}}; }
};

/// A BoringModule that plans its own SGD.
struct SelfPlanned : BoringModule {
  using BoringModule::BoringModule;
  OptimizerPlan configure_optimizers() override {
    return std::make_shared<SGD>(SGD::Options{.lr = 0.05, .momentum = 0.9});
  }
};

/// AdamW with a StepLR that counts optimizer steps.
inline OptimizerPlan adamw_with_step_lr(double lr, int64_t step_size, double gamma) {
  AdamW::Options options;
  options.lr = lr;
  StepLR::Options steps;
  steps.step_size = step_size;
  steps.gamma = gamma;
  return {std::make_shared<AdamW>(options),
          SchedulerConfig{.scheduler = std::make_shared<StepLR>(steps), .interval = ScheduleInterval::step}};
}

inline Batch regression(int64_t samples, uint64_t seed = 1) {
  at::manual_seed(seed);
  const Tensor x = at::randn({samples, 4});
  return Batch{{"x", x}, {"y", at::randn({samples, 2})}};
}

inline std::shared_ptr<DataModule> regression_data(int64_t train = 40, int64_t val = 12, int64_t batch_size = 4,
                                                   bool shuffle = true) {
  TensorDataModule::Sets sets;
  sets.train = regression(train, 1);
  if (val > 0) sets.val = sets.test = sets.predict = regression(val, 2);
  const auto data = std::make_shared<TensorDataModule>(
      std::move(sets), TensorDataOptions{.batch_size = batch_size, .eval_batch_size = {}, .shuffle = shuffle});
  // As one that fit() gets as what it is.
  fulgur::detail::ComponentAccess::find_overridden<DataModule>(*data);
  return data;
}

/// A stream of regression data.
struct RegressionStream : IterableDataset {
  int64_t samples, at = 0;
  explicit RegressionStream(int64_t count) : samples(count) {}
  void reset(const SampleContext&) override { at = 0; }
  std::optional<Batch> next(int64_t count, const SampleContext&) override {
    count = std::min(count, samples - at);
    if (count <= 0) return std::nullopt;
    at += count;
    return regression(count, static_cast<uint64_t>(at));
  }
  StateTree state() const override { return StateTree::map({{"at", at}}); }
  void load_state(const StateTree& state) override { at = state.at("at").as_int(); }
};

/// Loads a RegressionStream, in batches of 4.
inline std::shared_ptr<IterableLoader> regression_stream(int64_t samples) {
  return std::make_shared<IterableLoader>(std::make_shared<RegressionStream>(samples),
                                          IterableLoaderOptions{.batch_size = 4});
}

/// Options for tests: quiet, one epoch, its own folder; if steps are captured, those of short evaluations too.
inline TrainerOptions quiet(const TemporaryFolder& folder) {
  TrainerOptions options;
  options.accelerator = "cpu";
  options.default_root_dir = folder.path();
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.max_epochs = 1;
  options.num_sanity_val_steps = 0;
  options.log_every_n_steps = 1;
  options.capture_min_eval_batches = 2;
  return options;
}

inline std::map<std::string, Tensor> weights(const LightningModule& module) {
  std::map<std::string, Tensor> copy;
  for (const auto& [name, value] : unique_parameters(module)) copy[name] = value.detach().clone();
  for (const auto& item : module.named_buffers()) copy[item.key()] = item.value().clone();
  return copy;
}

inline bool same_weights(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, value] : a)
    if (!b.contains(name) || !value.equal(b.at(name))) return false;
  return true;
}

}  // namespace fulgur::test
