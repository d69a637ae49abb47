// A user's program: several runs after each other in one process, each over all ranks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/core/text/errors.h>
#include <fulgur/data/data_loader.h>
#include <fulgur/data/tensor_dataset.h>
#include <fulgur/optim/sgd.h>
#include <fulgur/strategies/fsdp.h>
#include <fulgur/trainer/trainer.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

using namespace fulgur;

namespace {

struct Net : LightningModule {
  explicit Net(std::shared_ptr<SGD> optimizer = std::make_shared<SGD>(SGD::Options{.lr = 0.1}))
      : own(std::move(optimizer)) {
    register_module("layer", layer);
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return loss(batch); }
  Outputs test_step(const Batch& batch, int64_t, int64_t) override {
    log("test_loss", loss(batch));
    return {};
  }
  OptimizerPlan configure_optimizers() override { return own; }
  Tensor loss(const Batch& batch) { return at::mse_loss(layer(batch[0]), batch[1]); }
  torch::nn::Linear layer{3, 1};
  std::shared_ptr<SGD> own;
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
    // The module keeps its optimizer, which fsdp has divided in the meantime.
    const auto other = std::make_shared<Net>();
    FSDPStrategy::Options divided;
    options.strategy = Spec<Strategy>::of<FSDPStrategy>("fsdp", divided);
    Trainer(options).fit(other, loader());
    const Tensor after = other->layer->weight.detach().clone();
    options.strategy = Spec<Strategy>("ddp");
    Trainer(options).fit(other, loader());
    if (other->layer->weight.equal(after)) throw Error("the second fit of an optimizer has changed nothing");
    options.strategy = Spec<Strategy>::of<FSDPStrategy>("fsdp", divided);
    Trainer(options).fit(other, loader());
    std::cout << first.global_step << ' ' << tested.samples << ' ' << second.global_step << '\n';
    return 0;
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}
