// A plug-in for `trainer` with a network and data that can be trained the wrong way, for benchmarks/techniques.sh: what
// is always right in Fulgur has no option there to switch it off.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/sample_dataset.h"
#include "fulgur/data/tensor_data_module.h"
#include "fulgur/models/classifier.h"
#include "fulgur/nn/batch_norm.h"

namespace {

using fulgur::Batch;
using fulgur::Fields;
using fulgur::Tensor;

constexpr int64_t kSide = 28, kClasses = 10;

/// Convolutions with batch norm, pooling and ReLU (none where `channels` is empty), and two linear layers, on 28 x 28
/// grey images.
class TechniqueNet : public fulgur::Classifier {
 public:
  struct Options {
    std::vector<int64_t> channels = {32, 64};
    int64_t hidden = 128;
    bool bias = false;
    bool item_per_step = false;
    bool zero_gradients = false;
    bool validation_gradients = false;
    void fields(Fields& f) {
      f(channels, "channels", "Channels of the convolutions; each is followed by batch norm and 2x2 pooling.")
          .at_least(1);
      f(hidden, "hidden", "Width of the layer before the last.").at_least(1);
      f(bias, "bias", "A bias in convolutions, which the batch norm after it removes.");
      f(item_per_step, "item_per_step", "Reads the loss of each step.");
      f(zero_gradients, "zero_gradients", "Gradients are filled with zeros instead of set to none.");
      f(validation_gradients, "validation_gradients", "Validation builds the graph; with inference_mode false.");
    }
  };

  explicit TechniqueNet(const Options& options) : options_(options) {
    int64_t in = 1, side = kSide;
    for (size_t i = 0; i < options.channels.size(); ++i) {
      const int64_t out = options.channels[i];
      convolutions_.push_back(
          register_module(fulgur::cat("conv", i),
                          torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(options.bias))));
      norms_.push_back(register_module(fulgur::cat("norm", i), fulgur::nn::BatchNorm2d(out)));
      in = out;
      side /= 2;
    }
    hidden_ = register_module("hidden", torch::nn::Linear(in * side * side, options.hidden));
    last_ = register_module("last", torch::nn::Linear(options.hidden, kClasses));
  }

  Tensor forward(const Tensor& images) override {
    Tensor x = images;
    for (size_t i = 0; i < convolutions_.size(); ++i)
      x = at::max_pool2d(norms_[i]->forward(convolutions_[i](x)), 2).relu_();
    return last_(hidden_(x.flatten(1)).relu_());
  }
  fulgur::StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    fulgur::StepOutput output = Classifier::training_step(batch, batch_idx);
    if (options_.item_per_step) read_ += output.loss.item<double>();
    return output;
  }
  fulgur::Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t loader_idx) override {
    const c10::AutoGradMode mode(options_.validation_gradients);
    return Classifier::validation_step(batch, batch_idx, loader_idx);
  }
  void optimizer_zero_grad(int64_t epoch, int64_t batch_idx, fulgur::Optimizer& optimizer) override {
    if (!options_.zero_gradients) return Classifier::optimizer_zero_grad(epoch, batch_idx, optimizer);
    for (Tensor& gradient : optimizer.gradients()) gradient.zero_();
  }

 private:
  Options options_;
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<fulgur::nn::BatchNorm2d> norms_;
  torch::nn::Linear hidden_{nullptr}, last_{nullptr};
  double read_ = 0;
};
FULGUR_REGISTER(fulgur::LightningModule, TechniqueNet, "A classifier that can be trained the wrong way.");

/// The same with a transfer hook of its own: batches are not copied to the device ahead of time.
class TechniqueNetOwnTransfer final : public TechniqueNet {
 public:
  using TechniqueNet::TechniqueNet;
  Batch on_before_batch_transfer(Batch batch, int64_t) override { return batch; }
};
FULGUR_REGISTER(fulgur::LightningModule, TechniqueNetOwnTransfer,
                "TechniqueNet, whose batches are copied when they are wanted.");

/// Samples that cost some time each, as decoding a file does.
class CostlySamples : public fulgur::DataModule {
 public:
  struct Options {
    int64_t samples = 5120;
    int64_t terms = 4000;
    int64_t batch_size = 128;
    fulgur::LoadingOptions loading;
    void fields(Fields& f) {
      f(samples, "samples", "Of an epoch.").at_least(1);
      f(terms, "terms", "Sines that are added up for a sample.").at_least(0);
      f(batch_size, "batch_size", "Samples of a batch.").at_least(1);
      loading.fields(f);
    }
  };
  explicit CostlySamples(const Options& options) : options_(options) {}
  std::vector<std::shared_ptr<fulgur::Loader>> loaders(fulgur::RunningStage stage) override {
    if (stage != fulgur::RunningStage::train) return {};
    fulgur::DataLoaderOptions how{.batch_size = options_.batch_size, .shuffle = true, .name = "train"};
    options_.loading.apply(how);
    return {std::make_shared<fulgur::DataLoader>(std::make_shared<Samples>(options_), how)};
  }

 private:
  class Samples : public fulgur::SampleDataset {
   public:
    explicit Samples(const Options& options) : options_(options) {}
    int64_t size() const override { return options_.samples; }
    fulgur::Sample get(int64_t index, const fulgur::SampleContext&) const override {
      double sum = 0;
      for (int64_t i = 0; i < options_.terms; ++i) sum += std::sin(static_cast<double>(index * i));
      return {{"image", at::full({1, kSide, kSide}, sum, at::kFloat)}, {"label", index % kClasses}};
    }

   private:
    Options options_;
  };
  Options options_;
};
FULGUR_REGISTER(fulgur::DataModule, CostlySamples, "Samples that cost some time each.");

/// A program's own array of images, trained on as it lies (`from_blob`) or after a copy.
class OwnBuffer : public fulgur::TensorDataModule {
 public:
  struct Options {
    int64_t samples = 100'000;
    int64_t batch_size = 128;
    bool copy = false;
    void fields(Fields& f) {
      f(samples, "samples", "In the array.").at_least(1);
      f(batch_size, "batch_size", "Samples of a batch.").at_least(1);
      f(copy, "copy", "The tensor is a copy of the array.");
    }
  };
  explicit OwnBuffer(const Options& options)
      : TensorDataModule({.batch_size = options.batch_size}), options_(options) {}
  void setup(fulgur::TrainerFn) override {
    const int64_t values = options_.samples * kSide * kSide;
    buffer_.resize(static_cast<size_t>(values));
    for (size_t i = 0; i < buffer_.size(); ++i) buffer_[i] = static_cast<float>(i % 251) / 251;
    Tensor images = at::from_blob(buffer_.data(), {options_.samples, 1, kSide, kSide}, at::kFloat);
    if (options_.copy) images = images.clone();
    set_data({.train = Batch({Batch::Entry{"image", images},
                              Batch::Entry{"label", at::randint(kClasses, {options_.samples}, at::kLong)}})});
  }

 private:
  Options options_;
  std::vector<float> buffer_;
};
FULGUR_REGISTER(fulgur::DataModule, OwnBuffer, "An array of the program's own.");

}  // namespace
