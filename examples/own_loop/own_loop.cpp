// A training loop of one's own: Fabric places the network, gives each rank its batches, and saves.
//   own_loop EPOCHS [RANKS] [FOLDER]      continues from the newest checkpoint in FOLDER
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <fulgur/checkpoint/checkpoint_folder.h>
#include <fulgur/core/text/errors.h>
#include <fulgur/data/data_loader.h>
#include <fulgur/data/tensor_dataset.h>
#include <fulgur/optim/adam.h>
#include <fulgur/strategies/launcher.h>
#include <fulgur/trainer/fabric.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <cstdlib>
#include <string>

using fulgur::Batch;
using fulgur::Tensor;

namespace {

// Points in the plane; the class says whether one lies outside of a circle.
std::shared_ptr<fulgur::Loader> points(int64_t count, uint64_t seed, int64_t batch_size, bool shuffle) {
  const Tensor point = at::randn({count, 2}, at::detail::createCPUGenerator(seed));
  const Tensor is_outside = point.square().sum(1).gt(1.4).to(at::kLong);
  return std::make_shared<fulgur::DataLoader>(
      std::make_shared<fulgur::TensorDataset>(Batch{Batch::Entry{"point", point}, Batch::Entry{"class", is_outside}}),
      fulgur::DataLoaderOptions{.batch_size = batch_size, .shuffle = shuffle});
}

}  // namespace

int main(int argc, char** argv) try {
  const int64_t epochs = argc > 1 ? std::atoi(argv[1]) : 5;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 1;
  const std::filesystem::path folder = argc > 3 ? argv[3] : "own_loop_checkpoints";

  fulgur::FabricOptions options;
  options.devices = ranks;
  if (ranks > 1) {
    options.accelerator = "cpu";
    options.strategy = "ddp";
  }
  fulgur::Fabric fabric(options);
  if (const auto exit_code = fabric.launch(argc, argv)) return *exit_code;
  fabric.seed_everything(42);

  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 2));
  const auto optimizer = std::make_shared<fulgur::AdamW>(fulgur::AdamW::Options{.lr = 0.01});
  fabric.setup(net.ptr(), {optimizer});
  const auto train = fabric.setup_loader(points(4096, 1, 64 / fabric.world_size(), /*shuffle=*/true));
  const auto test = fabric.setup_loader(points(512, 2, 128, /*shuffle=*/false), fulgur::LoaderUse::evaluate);

  int64_t epoch = 0;
  if (const auto checkpoints = fulgur::list_checkpoints(folder); !checkpoints.empty())
    epoch = fabric.load(checkpoints.front().path).at("epoch").as_int();

  for (; epoch < epochs; ++epoch) {
    for (const Batch& batch : train->epoch(epoch)) {
      const Tensor loss =
          fabric.forward([&] { return at::cross_entropy_loss(net->forward(batch["point"]), batch["class"]); });
      fabric.backward(loss);
      fabric.clip_gradients(*optimizer, 1.0);
      fabric.step(*optimizer);
    }
    double right = 0;
    {
      const auto evaluation = fabric.evaluation();
      for (const Batch& batch : test->epoch(0))
        right += net->forward(batch["point"]).argmax(1).eq(batch["class"]).sum().item<double>();
    }
    right = fabric.all_reduce(at::scalar_tensor(right, at::kDouble), fulgur::ReduceOp::sum).item<double>();
    fabric.print("epoch " + std::to_string(epoch + 1) + ": " + std::to_string(static_cast<int>(right)) +
                 " of 512 are right");
    fabric.save(folder / ("epoch=" + std::to_string(epoch) + ".ckpt"), fulgur::StateTree::map({{"epoch", epoch + 1}}));
  }
  return 0;
} catch (const fulgur::Error& error) {
  fulgur::tell_launcher(error.what());
  std::fprintf(stderr, "error: %s\n", error.what());
  return static_cast<int>(error.code());
}
