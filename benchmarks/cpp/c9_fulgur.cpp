// C9, Fulgur's Trainer with `precision`; peers/c9_nets.py is the same in Python.
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <array>

#include "bench.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/models/gpt.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/optim/adam.h"
#include "fulgur/trainer/trainer.h"

namespace {

using at::Tensor;

constexpr int64_t kWarmups = 1;
constexpr double kRate = 3e-4;

struct Layer {
  int64_t in, out, stride;
};
constexpr std::array<Layer, 5> kLayout = {{{3, 64, 1}, {64, 64, 1}, {64, 128, 2}, {128, 256, 2}, {256, 256, 1}}};

class ConvNet : public fulgur::LightningModule {
 public:
  ConvNet() {
    for (size_t i = 0; i < kLayout.size(); ++i) {
      const auto how =
          torch::nn::Conv2dOptions(kLayout[i].in, kLayout[i].out, 3).stride(kLayout[i].stride).padding(1).bias(false);
      convolutions_.push_back(register_module(fulgur::cat("conv", i), torch::nn::Conv2d(how)));
      norms_.push_back(register_module(fulgur::cat("norm", i), fulgur::nn::BatchNorm2d(kLayout[i].out)));
    }
    last_ = register_module("last", torch::nn::Linear(kLayout.back().out, 10));
  }
  fulgur::StepOutput training_step(const fulgur::Batch& batch, int64_t) override {
    Tensor x = batch[0];
    for (size_t i = 0; i < kLayout.size(); ++i) x = norms_[i]->forward(convolutions_[i](x)).relu_();
    return at::cross_entropy_loss(last_(x.mean({2, 3})), batch[1]);
  }

 private:
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<fulgur::nn::BatchNorm2d> norms_;
  torch::nn::Linear last_{nullptr};
};

template <class Net>
class WithAdamW : public Net {
 public:
  using Net::Net;
  fulgur::OptimizerPlan configure_optimizers() override {
    fulgur::AdamW::Options options;
    options.lr = kRate;
    return std::make_shared<fulgur::AdamW>(options);
  }
};

class Stamps : public fulgur::Callback {
 public:
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput& output, const fulgur::Batch&,
                          int64_t) override {
    losses.push_back(output.loss.item<double>());
    laps.stamp();
  }
  bench::Laps laps;
  std::vector<double> losses;
};

/// A kind of network: its title, its batch size, how it is made.
struct Kind {
  std::string file, title;
  int64_t batch;
  std::shared_ptr<fulgur::LightningModule> (*make)();
};
const std::array<Kind, 2> kKinds = {{
    {"gpt", "GPT", 8,
     []() -> std::shared_ptr<fulgur::LightningModule> {
       const fulgur::GPT::Options options{
           .vocab_size = 256, .block_size = 256, .n_layer = 6, .n_head = 6, .n_embd = 384};
       return std::make_shared<WithAdamW<fulgur::GPT>>(options);
     }},
    {"conv", "conv net", 64,
     []() -> std::shared_ptr<fulgur::LightningModule> { return std::make_shared<WithAdamW<ConvNet>>(); }},
}};
constexpr std::array<std::array<const char*, 2>, 2> kPrecisions = {
    {{"32-true", "float32"}, {"bf16-mixed", "bf16-mixed"}}};

void train(const bench::Arguments& arguments, const Kind& kind, const char* precision, const std::string& name,
           nlohmann::json& report) {
  const std::string path = arguments.text("inputs") + "/" + kind.file;
  const auto module = kind.make();
  {
    const at::NoGradGuard no_grad;
    auto parameters = module->named_parameters();
    for (const auto& [parameter, value] : fulgur::read_safetensors(path + "_weights.safetensors").tensors)
      parameters[parameter].copy_(value);
  }
  std::map<std::string, Tensor> data;
  for (const auto& [entry, value] : fulgur::read_safetensors(path + "_data.safetensors").tensors) data[entry] = value;

  fulgur::TrainerOptions options;
  options.accelerator = "cpu";
  options.num_threads = 1;
  options.precision = fulgur::Spec<fulgur::Precision>(precision);
  if (kind.file == "conv") options.memory_format = fulgur::MemoryFormat::channels_last;
  options.max_steps = kWarmups + arguments.number("steps");
  options.default_root_dir = arguments.text("scratch");
  options.logger.enabled = options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary =
      false;
  const auto stamps = std::make_shared<Stamps>();
  fulgur::TrainerComponents components;
  components.add(stamps);
  const auto dataset = std::make_shared<fulgur::TensorDataset>(fulgur::Batch{data.at("x"), data.at("y")});
  const fulgur::DataSource source(
      std::make_shared<fulgur::DataLoader>(dataset, fulgur::DataLoaderOptions{.batch_size = kind.batch}));
  fulgur::Trainer(options, components).fit(module, source);

  auto samples = stamps->laps.samples();
  for (int64_t i = 1; i < kWarmups; ++i) samples.erase(samples.begin());
  report["cases"][name] = samples;
  report["losses"][name] = stamps->losses;
}

}  // namespace

int main(int count, char** values) {
  return bench::run(count, values, [](const bench::Arguments& arguments) {
    nlohmann::json report;
    for (const Kind& kind : kKinds)
      for (const auto& [precision, title] : kPrecisions)
        train(arguments, kind, precision, kind.title + ", " + title, report);
    bench::write_report(arguments, report);
  });
}
