// A module of which one rank does something else than the others.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <fulgur/core/contracts/collectives.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/core/contracts/registry.h>
#include <fulgur/optim/sgd.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

namespace {

using fulgur::Batch;
using fulgur::Fields;
using fulgur::LogOptions;
using fulgur::OptimizerHandle;
using fulgur::Tensor;

/// Two layers, each with an optimizer, stepped by the module itself. Rank 1 differs from step `from` on.
class DivergingPair : public fulgur::LightningModule {
 public:
  struct Options {
    std::string how = "not";
    int64_t from = 0;
    void fields(Fields& f) {
      f(how, "how", "What is wrong.")
          .one_of({"not", "unsynced", "synced_late", "averaged_by_hand", "other_optimizer", "fewer_steps"});
      f(from, "from", "From this batch on.");
    }
  };
  explicit DivergingPair(const Options& options) : options_(options), first_(5, 4), last_(4, 2) {
    register_module("first", first_);
    register_module("last", last_);
  }
  bool automatic_optimization() const override { return false; }

  fulgur::OptimizerPlan configure_optimizers() override {
    const auto of = [](const torch::nn::Linear& part, const std::string& name) {
      auto optimizer = std::make_shared<fulgur::SGD>(fulgur::SGD::Options{.lr = 0.05});
      optimizer->attach(
          {{.name = name, .params = {part->weight, part->bias}, .names = {name + ".weight", name + ".bias"}}});
      return optimizer;
    };
    return fulgur::OptimizerPlan::several({{of(first_, "first"), {}}, {of(last_, "last"), {}}});
  }

  fulgur::StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const auto [x, y] = batch.unpack<2>();
    const Tensor loss = at::mse_loss(last_(first_(x)), y);
    const bool wrong = batch_idx >= options_.from;
    const bool differs = wrong && global_rank() == 1;
    const bool quiet =
        wrong && (options_.how == "unsynced" || options_.how == "synced_late" || options_.how == "averaged_by_hand");
    if (quiet) {
      const auto alone = no_sync();
      manual_backward(loss);
    } else {
      manual_backward(loss);
    }
    if (options_.how == "synced_late") sync_gradients(optimizers(0)), sync_gradients(optimizers(1));
    if (options_.how == "averaged_by_hand")
      for (Tensor& parameter : parameters())
        parameter.mutable_grad() = run().collectives().all_reduce(parameter.grad(), fulgur::ReduceOp::mean);
    const bool fewer = differs && options_.how == "fewer_steps" && batch_idx % 2 == 0;
    const bool other = differs && options_.how == "other_optimizer";
    if (!fewer) optimizers(other ? 1 : 0).step();
    for (OptimizerHandle* each : {&optimizers(0), &optimizers(1)}) each->zero_grad();
    return {};
  }

 private:
  Options options_;
  torch::nn::Linear first_, last_;
};
FULGUR_REGISTER(fulgur::LightningModule, DivergingPair, "Ranks that step otherwise.");

/// A layer that the Trainer steps; rank 1 does something that the others do not, at one step.
class DivergingLayer : public fulgur::LightningModule {
 public:
  struct Options {
    std::string how = "not";
    int64_t at = 2;
    void fields(Fields& f) {
      f(how, "how", "What is wrong.")
          .one_of({"not", "rate", "weights", "save", "accumulation", "barrier", "gather", "gather_in_validation",
                   "log_options", "log_options_in_epoch"});
      f(at, "at", "After so many steps.");
    }
  };
  explicit DivergingLayer(const Options& options) : options_(options), layer_(5, 2) {
    register_module("layer", layer_);
  }

  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    const auto [x, y] = batch.unpack<2>();
    const Tensor loss = at::mse_loss(layer_(x), y);
    if (global_rank() == 1 && global_step() == options_.at) differ();
    const bool other = options_.how == "log_options" && global_rank() == 1;
    log("loss", loss, LogOptions{.on_step = true, .on_epoch = other});
    return loss;
  }
  fulgur::Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    const auto [x, y] = batch.unpack<2>();
    if (options_.how == "gather_in_validation" && global_rank() == 1 && global_step() >= options_.at)
      (void)all_gather(y);
    log("val_loss", at::mse_loss(layer_(x), y));
    return {};
  }
  void on_train_epoch_end() override {
    if (options_.how == "log_options_in_epoch")
      log("of_epoch", 1.0, LogOptions{.reduce_fx = global_rank() == 1 ? fulgur::Reduce::max : fulgur::Reduce::mean});
  }

 private:
  void differ() {
    const at::NoGradGuard no_grad;
    if (options_.how == "rate") optimizers().groups().front().lr *= 2;
    if (options_.how == "weights") layer_->bias.add_(0.01);
    if (options_.how == "save") {
      fulgur::CheckpointRequest request;
      request.name = "alone";
      run().request_checkpoint(std::move(request));
    }
    if (options_.how == "accumulation") run().set_accumulation(2);
    if (options_.how == "barrier") run().collectives().barrier("one rank comes");
    if (options_.how == "gather") (void)all_gather(at::full({3}, 1.0));
  }

  Options options_;
  torch::nn::Linear layer_;
};
FULGUR_REGISTER(fulgur::LightningModule, DivergingLayer, "A rank that does something else.");

}  // namespace
