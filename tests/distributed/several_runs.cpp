// A user's program: several runs after each other in one process, each over all ranks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/core/text/errors.h>
#include <fulgur/data/data_loader.h>
#include <fulgur/data/tensor_dataset.h>
#include <fulgur/optim/sgd.h>
#include <fulgur/trainer/trainer.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

using namespace fulgur;

namespace {

struct Net : LightningModule {
  Net() { register_module("layer", layer); }
  StepOutput training_step(const Batch& batch, int64_t) override { return loss(batch); }
  Outputs test_step(const Batch& batch, int64_t, int64_t) override {
    log("test_loss", loss(batch));
    return {};
  }
  OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.1}); }
  Tensor loss(const Batch& batch) { return at::mse_loss(layer(batch[0]), batch[1]); }
  torch::nn::Linear layer{3, 1};
};

std::shared_ptr<Loader> loader() {
  at::Generator generator = at::detail::createCPUGenerator(1);
  const Tensor x = at::randn({16, 3}, generator);
  Batch samples({Batch::Entry{"x", x}, Batch::Entry{"y", x.slice(1, 0, 1)}});
  return std::make_shared<DataLoader>(std::make_shared<TensorDataset>(std::move(samples)),
                                      DataLoaderOptions{.batch_size = 4});
}

}  // namespace

int main() {
  TrainerOptions options;
  options.accelerator = "cpu";
  options.strategy = Spec<Strategy>("ddp");
  options.devices = 2;
  options.max_epochs = 2;
  options.enable_progress_bar = options.enable_model_summary = false;
  try {
    Trainer trainer(options);
    const auto module = std::make_shared<Net>();
    const FitReport first = trainer.fit(module, loader());
    DataSource held_out;
    held_out.test = {loader()};
    const EvalReport tested = trainer.test(module, held_out);
    const FitReport second = Trainer(options).fit(std::make_shared<Net>(), loader());
    std::cout << first.global_step << ' ' << tested.samples << ' ' << second.global_step << '\n';
    return 0;
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}
