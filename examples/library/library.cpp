// Fulgur as a library: the program creates everything itself. No YAML, no command line, no registration.
//   library FOLDER      the folder for logs and checkpoints
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <fulgur/callbacks/early_stopping.h>
#include <fulgur/callbacks/model_checkpoint.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/data/tensor_data_module.h>
#include <fulgur/optim/adam.h>
#include <fulgur/trainer/trainer.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <memory>

namespace {

/// A curve through points.
class Curve : public fulgur::LightningModule {
 public:
  Curve() {
    register_module("in", in_);
    register_module("out", out_);
  }
  fulgur::Tensor forward(const fulgur::Tensor& x) { return out_(at::tanh(in_(x))); }
  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override {
    const fulgur::Tensor loss = at::mse_loss(forward(batch["x"]), batch["y"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  fulgur::Outputs validation_step(const fulgur::Batch& batch, int64_t, int64_t) override {
    log("val_loss", at::mse_loss(forward(batch["x"]), batch["y"]));
    return {};
  }
  fulgur::OptimizerPlan configure_optimizers() override {
    return std::make_shared<fulgur::AdamW>(fulgur::AdamW::Options{.lr = 0.01});
  }

 private:
  torch::nn::Linear in_{1, 16}, out_{16, 1};
};

fulgur::Batch points(int64_t count, uint64_t seed) {
  const fulgur::Tensor x = at::randn({count, 1}, at::detail::createCPUGenerator(seed));
  return fulgur::Batch{fulgur::Batch::Entry{"x", x}, fulgur::Batch::Entry{"y", (x * 2).sin()}};
}

fulgur::Trainer make_trainer(const char* folder, int64_t epochs) {
  fulgur::TrainerOptions options;
  options.max_epochs = epochs;
  options.default_root_dir = folder;
  options.num_threads = int64_t{1};
  fulgur::ModelCheckpoint::Options checkpoints;
  checkpoints.monitor = "val_loss";
  fulgur::EarlyStopping::Options patience;
  patience.monitor = "val_loss";
  patience.patience = 10;
  fulgur::TrainerComponents components;
  components.seed = 7;
  components.add(std::make_shared<fulgur::ModelCheckpoint>(checkpoints));
  components.add(std::make_shared<fulgur::EarlyStopping>(patience));
  return fulgur::Trainer(options, components);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: library FOLDER\n");
    return 2;
  }
  const auto data = std::make_shared<fulgur::TensorDataModule>(
      fulgur::TensorDataModule::Sets{.train = points(640, 1), .val = points(160, 2)},
      fulgur::TensorDataOptions{.batch_size = 32});

  fulgur::Trainer trainer = make_trainer(argv[1], 5);
  trainer.prepare_process();  // seeds the generators before the weights are drawn
  const fulgur::FitReport first = trainer.fit(std::make_shared<Curve>(), data);

  // Another process would continue in the same way.
  const auto module = std::make_shared<Curve>();
  fulgur::Trainer longer = make_trainer(argv[1], 20);
  const fulgur::FitReport report = longer.fit(module, data, first.last_checkpoint->string());
  const fulgur::EvalReport validated = longer.validate(module, data, "best");
  std::printf("%lld epochs: val_loss %.4f, at best %.4f\n", static_cast<long long>(report.epochs),
              report.metric("val_loss"), validated.metric("val_loss"));
  return static_cast<int>(report.exit_code);
} catch (const fulgur::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return static_cast<int>(error.code());
}
