// A fit on a GPU gives what a fit on the CPU gives. A copy that nothing waits for, or a tensor on the wrong device,
// gives other weights, or an error.
#include <ATen/ops/allclose.h>
#include <fulgur/core/state/rng.h>
#include <fulgur/data/synthetic.h>
#include <fulgur/models/mlp_classifier.h>
#include <fulgur/trainer/trainer.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

std::vector<at::Tensor> weights_after_fit(const std::string& accelerator) {
  fulgur::seed_everything(1);  // the same weights at the beginning
  const auto module = std::make_shared<fulgur::MlpClassifier>(
      fulgur::MlpClassifier::Options{.in_features = 16, .hidden = {32}, .num_classes = 4});
  fulgur::SyntheticDataModule::Options made{.num_train = 96, .num_val = 32, .num_classes = 4, .shape = {16}};
  made.batch_size = 16;
  made.loading.pin_memory = accelerator == "cuda";

  fulgur::TrainerOptions options;
  options.accelerator = accelerator;
  options.max_epochs = 2;
  options.logger.enabled = false;
  options.enable_checkpointing = false;
  options.enable_progress_bar = options.enable_model_summary = false;
  fulgur::TrainerComponents components;
  components.seed = 1;
  components.optimizer = fulgur::Spec<fulgur::Optimizer>("AdamW");
  fulgur::Trainer trainer(options, components);
  const std::shared_ptr<fulgur::DataModule> data = std::make_shared<fulgur::SyntheticDataModule>(made);
  trainer.fit(module, data);

  std::vector<at::Tensor> weights;
  for (const at::Tensor& weight : module->parameters()) weights.push_back(weight.detach().cpu());
  return weights;
}

}  // namespace

int main() try {
  const std::vector<at::Tensor> on_cpu = weights_after_fit("cpu"), on_gpu = weights_after_fit("cuda");
  for (size_t i = 0; i < on_cpu.size(); ++i)
    if (!at::allclose(on_cpu[i], on_gpu[i], 1e-4, 1e-5)) {
      std::printf("parameter %zu of the GPU is not the CPU's\n", i);
      return 1;
    }
  std::puts("a fit on the GPU gives what the CPU gives");
  return 0;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
