#pragma once

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "fulgur/nn/placed.h"
#include "fulgur/trainer/yaml.h"
#include "virtual_devices/parted.h"

namespace fulgur::test {

/// Two linear layers.
struct Half : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::Dropout drop{nullptr};
  Half(int64_t from, int64_t hidden, int64_t to, double dropout) {
    in = register_module("in", torch::nn::Linear(from, hidden));
    drop = register_module("drop", torch::nn::Dropout(dropout));
    out = register_module("out", torch::nn::Linear(hidden, to));
  }
  Tensor forward(const Tensor& x) { return out->forward(drop->forward(in->forward(x).relu())); }
};

/// An encoder and a decoder that can be placed, and a scale between them that cannot.
struct Pair : LightningModule {
  struct Options {
    double dropout = 0;
    int64_t hidden = 8;
    int64_t code = 6;
    double lr = 0.01;
    void fields(Fields& f) {
      f(dropout, "dropout", "Share of values that are set to zero.");
      f(hidden, "hidden", "Width.");
      f(code, "code", "Width between the two.");
      f(lr, "lr", "Learning rate.");
    }
  };
  Options options;
  nn::Placed<Half> encoder, decoder;
  Tensor scale;
  explicit Pair(const Options& given) : options(given) {
    encoder = nn::register_placed<Half>(*this, "encoder", int64_t{4}, options.hidden, options.code, options.dropout);
    scale = register_parameter("scale", at::ones({options.code}));
    decoder = nn::register_placed<Half>(*this, "decoder", options.code, options.hidden, int64_t{2}, options.dropout);
  }
  virtual Tensor forward(const Tensor& x) {
    const Tensor code = encoder(x);
    return decoder(code * scale.to(code.device()));
  }
  Tensor loss_of(const Batch& batch) {
    const Tensor y = forward(batch[0]);
    return at::mse_loss(y, batch[1].to(y.device()));
  }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = loss_of(batch);
    log("train_loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    log("val_loss", loss_of(batch));
    return {};
  }
  Outputs predict_step(const Batch& batch, int64_t, int64_t) override { return {{"y", forward(batch[0])}}; }
  OptimizerPlan configure_optimizers() override {
    AdamW::Options adam;
    adam.lr = options.lr;
    return std::make_shared<AdamW>(adam);
  }
};

/// A strategy with its options, on virtual devices.
inline TrainerOptions placed(const TemporaryFolder& folder, const std::string& strategy, int devices,
                             const std::string& init_args) {
  TrainerOptions options = on_virtual(folder, strategy, devices);
  Problems problems;
  options.strategy.read(parse_yaml("{class_path: " + strategy + ", init_args: " + init_args + "}", "test", problems),
                        problems, "trainer.strategy");
  problems.throw_if_any();
  return options;
}

}  // namespace fulgur::test
