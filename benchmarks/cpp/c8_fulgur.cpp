// C8: from fit() with a checkpoint to the first training step, for one at the begin and one late in an epoch.
//
//   c8_fulgur --samples 1000000 --rounds 5 --scratch FOLDER --report FILE
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

#include "bench.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/optim/adam.h"
#include "fulgur/trainer/trainer.h"

namespace fs = std::filesystem;
using fulgur::Tensor;

namespace {

constexpr int64_t kBatch = 100;

struct Classifier : fulgur::LightningModule {
  torch::nn::Linear layer{nullptr};
  double started_s = 0, first_step_s = 0;
  Classifier() { layer = register_module("layer", torch::nn::Linear(16, 4)); }
  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override {
    if (first_step_s == 0) first_step_s = bench::wall_seconds() - started_s;
    return at::cross_entropy_loss(layer->forward(batch[0]), batch[1]);
  }
  fulgur::OptimizerPlan configure_optimizers() override {
    return std::make_shared<fulgur::AdamW>(fulgur::AdamW::Options{});
  }
};

void run(const bench::Arguments& arguments) {
  const int64_t samples = arguments.number("samples"), steps = samples / kBatch;
  at::manual_seed(1);
  const auto dataset = std::make_shared<fulgur::TensorDataset>(
      fulgur::Batch{at::randn({samples, 16}), at::randint(4, {samples}, at::kLong)});
  const fs::path folder = fs::path(arguments.text("scratch")) / "c8";
  const auto fit = [&](int64_t max_steps, const fulgur::CheckpointChoice& from, Classifier& module) {
    fulgur::TrainerOptions options;
    options.accelerator = "cpu";
    options.max_epochs = 1;
    options.max_steps = max_steps;
    options.default_root_dir = folder;
    options.enable_progress_bar = options.enable_model_summary = false;
    options.log_every_n_steps = 1000;
    fulgur::TrainerComponents components;
    components.seed = 1;
    module.started_s = bench::wall_seconds();
    const auto loader =
        std::make_shared<fulgur::DataLoader>(dataset, fulgur::DataLoaderOptions{.batch_size = kBatch, .shuffle = true});
    // The module is the caller's.
    return fulgur::Trainer(options, components)
        .fit(std::shared_ptr<fulgur::LightningModule>(&module, [](auto*) {}), fulgur::DataSource(loader), from);
  };
  const auto fresh = [] {
    at::manual_seed(2);
    return Classifier();
  };
  Classifier whole = fresh();
  fit(steps, {}, whole);

  nlohmann::json rows;
  bool equal = true;
  for (const auto& [name, at] : {std::pair{"fulgur_start", int64_t{1}}, std::pair{"fulgur_late", steps * 9 / 10}}) {
    Classifier stopped = fresh();
    const fulgur::FitReport report = fit(at, {}, stopped);
    const fs::path checkpoint = folder / (std::string(name) + ".ckpt");
    fs::rename(*report.last_checkpoint, checkpoint);
    for (int64_t round = 0; round < arguments.number("rounds"); ++round) {
      Classifier resumed = fresh();
      fit(at + 1, checkpoint.string(), resumed);
      rows[name].push_back({{"wall_s", resumed.first_step_s}});
    }
    Classifier resumed = fresh();
    fit(steps, checkpoint.string(), resumed);
    equal = equal && resumed.layer->weight.equal(whole.layer->weight);
  }
  fs::remove_all(folder);
  bench::write_report(arguments, {{"rows", rows}, {"equal", equal}});
}

}  // namespace

int main(int count, char** values) { return bench::run(count, values, run); }
