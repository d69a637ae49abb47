// C12, Fulgur's Trainer with captured steps and EarlyStopping at the goal; peers/c12_net.py is the same in Python.
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdlib>

#include "bench.h"
#include "fulgur/callbacks/early_stopping.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/contracts/module.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/optim/adam.h"
#include "fulgur/trainer/trainer.h"
#include "given_order.h"

namespace {

using at::Tensor;

constexpr int64_t kBatch = 128, kEvalBatch = 1000;
constexpr double kRate = 1e-3;
constexpr size_t kComparedLosses = 20;

torch::nn::Conv2dOptions convolution(int64_t in, int64_t out) {
  return torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false);
}

class Classifier : public fulgur::LightningModule {
 public:
  Classifier() {
    register_module("conv0", conv0_);
    register_module("norm0", norm0_);
    register_module("conv1", conv1_);
    register_module("norm1", norm1_);
    register_module("hidden", hidden_);
    register_module("last", last_);
  }

  Tensor forward(const Tensor& images) {
    Tensor x = norm0_->forward_max_pool_relu(conv0_(images));
    x = norm1_->forward_max_pool_relu(conv1_(x));
    return last_(hidden_(x.flatten(1)).relu_());
  }
  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override {
    const Tensor loss = at::cross_entropy_loss(forward(batch[0]), batch[1]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  fulgur::Outputs validation_step(const fulgur::Batch& batch, int64_t, int64_t) override {
    log("val_acc", forward(batch[0]).argmax(1).eq(batch[1]).to(at::kFloat).mean(), {.prog_bar = true});
    return {};
  }
  fulgur::OptimizerPlan configure_optimizers() override {
    fulgur::AdamW::Options options;
    options.lr = kRate;
    return std::make_shared<fulgur::AdamW>(options);
  }

 private:
  torch::nn::Conv2d conv0_{convolution(1, 32)}, conv1_{convolution(32, 64)};
  fulgur::nn::BatchNorm2d norm0_{fulgur::nn::BatchNormOptions(32)}, norm1_{fulgur::nn::BatchNormOptions(64)};
  torch::nn::Linear hidden_{64 * 7 * 7, 128}, last_{128, 10};
};

double since_start() {
  static const double began = 1e-9 * static_cast<double>(std::atoll(std::getenv("BENCH_START_NS")));
  return bench::wall_seconds() - began;
}

struct Watch : fulgur::Callback {
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput& output, const fulgur::Batch&,
                          int64_t) override {
    if (first_losses.size() < kComparedLosses) first_losses.push_back(output.loss.item<double>());
  }
  void on_train_epoch_end(fulgur::RunContext&) override { ends.push_back(since_start()); }
  // As in peers/c12_net.py.
  double three_epochs() const {
    std::vector<double> later;
    for (size_t i = 1; i < ends.size(); ++i) later.push_back(ends[i] - ends[i - 1]);
    if (later.empty()) later = ends;
    std::ranges::sort(later);
    return ends.front() + later[(later.size() - 1) / 2] + later[later.size() / 2];
  }
  std::vector<double> first_losses, ends;
};

struct Inputs {
  std::map<std::string, Tensor> data, start;
  explicit Inputs(const bench::Arguments& arguments) {
    const std::string folder = arguments.text("inputs");
    for (const auto& [name, value] : fulgur::read_safetensors(folder + "/data.safetensors").tensors) data[name] = value;
    for (const auto& [name, value] :
         fulgur::read_safetensors(folder + "/start" + arguments.text("seed") + ".safetensors").tensors)
      start[name] = value;
    Tensor train = data.at("train_x").to(at::kFloat).div_(255);
    const Tensor mean = train.mean(), std = train.std();
    data["train_x"] = train.sub_(mean).div_(std);
    data["test_x"] = data.at("test_x").to(at::kFloat).div_(255).sub_(mean).div_(std);
  }

  void load(Classifier& module) const {
    const at::NoGradGuard no_grad;
    for (auto& item : module.named_parameters())
      if (start.contains(item.key())) item.value().copy_(start.at(item.key()));
  }
  std::shared_ptr<fulgur::DataLoader> loader(const std::string& set, fulgur::DataLoaderOptions options) const {
    const auto dataset =
        std::make_shared<fulgur::TensorDataset>(fulgur::Batch{data.at(set + "_x"), data.at(set + "_y")});
    return std::make_shared<fulgur::DataLoader>(dataset, std::move(options));
  }
};

void train(const bench::Arguments& arguments) {
  const Inputs inputs(arguments);
  auto module = std::make_shared<Classifier>();
  inputs.load(*module);
  const double goal = std::stod(arguments.text("goal"));

  fulgur::TrainerOptions options;
  options.accelerator = "cpu";
  options.max_epochs = arguments.number("epochs");
  options.precision = fulgur::Spec<fulgur::Precision>(arguments.text("precision"));
  options.memory_format = fulgur::MemoryFormat::channels_last;
  options.capture = true;
  options.default_root_dir = arguments.text("scratch");
  fulgur::TrainerComponents components;
  components.add(
      std::make_shared<fulgur::EarlyStopping>(fulgur::EarlyStopping::Options{.monitor = "val_acc",
                                                                             .patience = arguments.number("epochs"),
                                                                             .mode = fulgur::MonitorMode::max,
                                                                             .stopping_threshold = goal - 1e-6}));
  const auto watch = std::make_shared<Watch>();
  components.add(watch);
  const fulgur::DataSource data(
      inputs.loader("train",
                    {.batch_size = kBatch, .sampler = std::make_shared<bench::GivenOrder>(inputs.start.at("order"))}),
      {inputs.loader("test", {.batch_size = kEvalBatch})});
  const fulgur::FitReport report = fulgur::Trainer(options, components).fit(module, data);

  double accuracy = 0;
  for (const auto& [name, value] : report.metrics)
    if (name == "val_acc") accuracy = value;
  const nlohmann::json sample = {{"wall_s", since_start()},
                                 {"three_epochs_s", watch->three_epochs()},
                                 {"cpu_s", bench::cpu_seconds()},
                                 {"epochs", report.epochs}};
  bench::write_report(arguments, {{"samples", {sample}},
                                  {"reached", accuracy >= goal - 1e-6},
                                  {"accuracy", accuracy},
                                  {"first_losses", watch->first_losses}});
}

}  // namespace

int main(int count, char** values) { return bench::run(count, values, train); }
