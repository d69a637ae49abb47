// A network, a data set and a callback of one's own. main() and the command line come from fulgur::main; registering a
// class is enough for the YAML file to name it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <fulgur/core/contracts/callback.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/data/tensor_data_module.h>
#include <torch/nn/modules/linear.h>

using fulgur::Batch;
using fulgur::Tensor;

/// Two hidden layers that tell the arms of a spiral apart.
class SpiralClassifier : public fulgur::LightningModule {
 public:
  struct Options {
    int64_t hidden = 32;
    int64_t num_classes = 3;
    void fields(fulgur::Fields& f) {
      f(hidden, "hidden", "Width of the hidden layers.").at_least(1);
      f(num_classes, "num_classes", "Arms of the spiral.").at_least(2);
    }
  };

  explicit SpiralClassifier(const Options& o)
      : in_(2, o.hidden), middle_(o.hidden, o.hidden), out_(o.hidden, o.num_classes) {
    register_module("in", in_);
    register_module("middle", middle_);
    register_module("out", out_);
  }

  Tensor forward(const Tensor& x) { return out_(at::tanh(middle_(at::tanh(in_(x))))); }

  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    const auto [x, y] = batch.unpack<2>();
    const Tensor loss = at::cross_entropy_loss(forward(x), y);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  fulgur::Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    const auto [x, y] = batch.unpack<2>();
    const Tensor logits = forward(x);
    log("val_loss", at::cross_entropy_loss(logits, y));
    log("val_acc", logits.argmax(1).eq(y).to(at::kFloat).mean(), {.prog_bar = true});
    return {};
  }

 private:
  torch::nn::Linear in_, middle_, out_;
};
FULGUR_REGISTER(fulgur::LightningModule, SpiralClassifier, "A small network for points in the plane.");

/// Points (N, 2) on the arms of a spiral, with their arm (N).
class SpiralDataModule : public fulgur::TensorDataModule {
 public:
  struct Options {
    int64_t arms = 3;
    int64_t points = 300;
    double noise = 0.05;
    void fields(fulgur::Fields& f) {
      f(arms, "arms", "Arms of the spiral, the classes.").at_least(2);
      f(points, "points", "Training points on each arm; a third as many for validation.").at_least(3);
      f(noise, "noise", "Standard deviation of a point around its arm.").at_least(0);
    }
  };

  explicit SpiralDataModule(const Options& options) : TensorDataModule({.batch_size = 32}), options_(options) {}

  void setup(fulgur::TrainerFn) override {
    set_data({.train = spiral(options_.points, 0), .val = spiral(options_.points / 3, 1)});
  }
  fulgur::StateTree exported_values() const override {
    return fulgur::StateTree::map({{"num_classes", options_.arms}});
  }

 private:
  Batch spiral(int64_t points, uint64_t seed) const {
    const Tensor i = at::arange(points * options_.arms);
    const Tensor arm = i.remainder(options_.arms);
    const Tensor radius = (i.div(options_.arms, "floor") + 1).to(at::kFloat) / static_cast<double>(points);
    const Tensor angle = radius * 5 + arm * (6.2832 / static_cast<double>(options_.arms));
    const Tensor noise = at::randn({i.size(0), 2}, at::detail::createCPUGenerator(seed)) * options_.noise;
    return Batch{Batch::Entry{"point", at::stack({radius * angle.cos(), radius * angle.sin()}, 1) + noise},
                 Batch::Entry{"arm", arm}};
  }

  Options options_;
};
FULGUR_REGISTER(fulgur::DataModule, SpiralDataModule, "Points on the arms of a spiral.");

/// Logs the norm over all gradients before each optimizer step.
class GradientNorm : public fulgur::Callback {
 public:
  void on_before_optimizer_step(fulgur::RunContext& run, fulgur::Optimizer& optimizer) override {
    const std::vector<Tensor> gradients = optimizer.gradients();
    if (gradients.empty()) return;
    // Stays on the device: the run reads it when it writes a row.
    run.log("grad_norm", at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients))));
  }
};
FULGUR_REGISTER(fulgur::Callback, GradientNorm, "Logs the norm over all gradients.");
