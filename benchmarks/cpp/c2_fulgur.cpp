// C2, Fulgur as it is used: `--mode default` with all that a Trainer does by default (CSV and JSONL logs, checkpoints,
// progress bar, summary) and one logged value per step; `--mode captured` with captured steps besides; `--mode
// barebones` with none of it.
#include "fulgur/core/contracts/module.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/optim/adam.h"
#include "fulgur/trainer/trainer.h"
#include "given_order.h"
#include "mlp.h"

namespace {

using at::Tensor;

class Classifier : public fulgur::LightningModule {
 public:
  Classifier() { register_module("net", net); }

  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override {
    const Tensor loss = net->loss(batch[0], batch[1]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  fulgur::OptimizerPlan configure_optimizers() override {
    fulgur::AdamW::Options options;
    options.lr = bench::kRate;
    return std::make_shared<fulgur::AdamW>(options);
  }

  std::shared_ptr<bench::Mlp> net = std::make_shared<bench::Mlp>();
};

struct Measured final : fulgur::Callback {
  void on_train_epoch_start(fulgur::RunContext&) override { laps.stamp(); }
  void on_train_end(fulgur::RunContext&) override { laps.stamp(); }
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput& output, const fulgur::Batch&,
                          int64_t) override {
    losses.add(output.loss);
  }

  bench::Losses losses;
  bench::Laps laps;
};

}  // namespace

int main(int count, char** values) {
  const bench::Arguments arguments(count, values);
  bench::prepare();
  const bench::Inputs inputs(arguments);
  auto module = std::make_shared<Classifier>();
  module->net->load(arguments.text("inputs") + "/weights.safetensors");

  fulgur::TrainerOptions options;
  options.accelerator = "cpu";
  options.max_epochs = arguments.number("epochs");
  options.default_root_dir = arguments.text("scratch");
  options.barebones = arguments.text("mode") == "barebones";
  options.capture = arguments.text("mode") == "captured";
  const auto dataset = std::make_shared<fulgur::TensorDataset>(fulgur::Batch{inputs.x, inputs.y});
  const auto loader = std::make_shared<fulgur::DataLoader>(
      dataset, fulgur::DataLoaderOptions{.batch_size = bench::kBatch,
                                         .sampler = std::make_shared<bench::GivenOrder>(inputs.order)});
  const auto measured = std::make_shared<Measured>();
  fulgur::TrainerComponents components;
  components.add(measured);
  const fulgur::FitReport report = fulgur::Trainer(options, components).fit(module, fulgur::DataSource(loader));
  if (options.capture && report.not_captured) throw std::runtime_error(*report.not_captured);

  bench::write_report(
      arguments, {{"samples", measured->laps.samples()}, {"losses", measured->losses.report(*module->net, inputs)}});
}
