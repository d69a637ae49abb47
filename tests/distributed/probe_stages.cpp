// A module of stages, for tests of pipelines; its layers may sleep in place of a long computation.
#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tanh.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/core/contracts/registry.h>
#include <fulgur/core/text/errors.h>
#include <fulgur/core/text/log.h>
#include <fulgur/core/text/text.h>
#include <fulgur/models/gpt.h>
#include <fulgur/nn/batch_norm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using fulgur::Batch;
using fulgur::cat;
using fulgur::Tensor;

// A linear map of x, whose forward takes a time, and so does each of the gradients of its inputs.
struct SlowLinear : torch::autograd::Function<SlowLinear> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& weight, double ms) {
    context->save_for_backward({x, weight});
    context->saved_data["ms"] = ms;
    wait(ms);
    return x.matmul(weight.t());
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<Tensor>& gradients) {
    const auto saved = context->get_saved_variables();
    const double ms = context->saved_data["ms"].toDouble();
    Tensor of_x, of_weight;
    if (context->needs_input_grad(0)) {
      wait(ms);
      of_x = gradients[0].matmul(saved[1]);
    }
    if (context->needs_input_grad(1)) {
      wait(ms);
      of_weight = gradients[0].t().matmul(saved[0]);
    }
    return {of_x, of_weight, Tensor()};
  }
  static void wait(double ms) {
    if (ms <= 0) return;
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
    slept += std::chrono::steady_clock::now() - begin;
  }
  static inline std::chrono::duration<double, std::milli> slept{0};
};

/// A chain of `layers` equal layers between two others; with `ties`, the first and the last of them share a weight.
class ProbeStages : public fulgur::LightningModule {
 public:
  struct Options {
    int64_t layers = 4, width = 8;
    double dropout = 0, sleep_ms = 0;
    bool ties = false, norm = false, chooses_shapes = false, forgets = false, manual = false;
    bool scales = false, drops = false, shuffles = false, reads_memory = false;
    bool adds = false;
    int64_t awaits_average = 0;
    std::string trouble = "none", mistake = "none";
    void fields(fulgur::Fields& f) {
      f(layers, "layers", "Layers between the first and the last.").at_least(1);
      f(width, "width", "Their width.");
      f(dropout, "dropout", "Share of values set to zero.");
      f(sleep_ms, "sleep_ms", "Time of a forward of a layer, and of each half of its backward.");
      f(ties, "ties", "The first and the last of the layers have one weight.");
      f(norm, "norm", "Batch norm in the second layer.");
      f(chooses_shapes, "chooses_shapes", "A layer chooses the shape of its output by the step.");
      f(forgets, "forgets", "A layer does not name its module.");
      f(manual, "manual", "Manual optimization.");
      f(scales, "scales", "The last layer multiplies by a parameter without dimensions.");
      f(drops, "drops", "A hook sets the gradients of biases to zero after backward.");
      f(reads_memory, "reads_memory", "The constructor reads the memory of a weight.");
      f(awaits_average, "awaits_average",
        "On ranks that are multiples of it, the backward of layer0 waits until the gradient of layer1 is an average.");
      f(adds, "adds",
        "The weight of layer1 is the sum of a parameter seen through a view, and of one that gets its gradient later.");
      f(shuffles, "shuffles", "A hook changes the order of the samples of a batch, at random.");
      f(mistake, "mistake", "What the third layer of the chain does.")
          .one_of({"none", "counts", "in_place", "undefined", "fails"});
      f(trouble, "trouble", "What happens in step 3, or in each step.")
          .one_of({"none", "nan", "nan_once", "kill", "read_all", "writes", "gathers_in_layer", "holds_in_layer",
                   "gathers_early", "reorders", "reorders_later", "reorders_evaluations", "skips_layers",
                   "reads_more"});
    }
  };
  explicit ProbeStages(const Options& options) : options_(options) {
    first_ = register_module("first", torch::nn::Linear(5, options.width));
    for (int64_t i = 0; i < options.layers; ++i)
      layers_.push_back(register_module(
          cat("layer", i), torch::nn::Linear(torch::nn::LinearOptions(options.width, options.width).bias(false))));
    last_ = register_module("last", torch::nn::Linear(options.width, 2));
    if (options.reads_memory) static_cast<void>(layers_.front()->weight.data_ptr<float>());
    if (options.adds) added_ = register_parameter("added", at::linspace(-0.1, 0.1, options.width * options.width));
    if (options.scales) scale_ = register_parameter("scale", at::full({}, 1.5));
    if (options.mistake == "counts") count_ = register_buffer("count", at::zeros({}));
    if (options.norm) norm_ = register_module("norm", fulgur::nn::BatchNorm1d(options.width));
    if (!options.ties) return;
    layers_.back()->weight = layers_.front()->weight;
    fulgur::tie_parameters(*this, "layer0.weight", cat("layer", options.layers - 1, ".weight"));
  }

  bool automatic_optimization() const override { return !options_.manual; }

  void setup(fulgur::TrainerFn) override {
    if (options_.trouble == "gathers_early") static_cast<void>(run().gather(layers_[0]->weight));
  }

  fulgur::LayerChain stages() override {
    fulgur::LayerChain chain;
    chain.input = [](const Batch& batch) { return std::vector{batch[0]}; };
    chain.add("first", {"first"}, [this](const Tensor& x) {
      if (options_.trouble == "writes" && global_step() == 3 && global_rank() == 0) first_->weight.data().add_(1);
      if (options_.trouble == "gathers_in_layer" && global_step() == 3) static_cast<void>(run().gather(first_->weight));
      if (options_.trouble == "holds_in_layer" && global_step() == 3)
        static_cast<void>(run().run_weights().whole_parameters());
      return first_(x).tanh();
    });
    for (size_t i = 0; i < layers_.size(); ++i) {
      std::vector<std::string> modules{cat("layer", i)};
      if (i == 1 && options_.norm) modules.emplace_back("norm");
      if (i == 1 && options_.adds) modules.emplace_back("added");
      if (i == 1 && options_.forgets) modules.clear();
      chain.add(cat("layer", i), modules, [this, i](const Tensor& x) { return layer(i, x); });
      if (i == 2 && options_.mistake != "none")
        chain.layers.back().forward = [this](const std::vector<Tensor>& values) { return mistaken(values[0]); };
    }
    std::vector<std::string> of_last{"last"};
    if (options_.scales) of_last.emplace_back("scale");
    chain.add("last", of_last, [this](const Tensor& x) { return output(x); });
    chain.loss = [this](const std::vector<Tensor>& outputs, const Batch& batch) { return loss_of(outputs[0], batch); };
    return chain;
  }

  int on_train_batch_start(const Batch&, int64_t) override {
    begin_ = std::chrono::steady_clock::now();
    SlowLinear::slept = {};
    if (options_.trouble == "kill" && global_step() == 3 && global_rank() == 1) std::quick_exit(9);
    return 0;
  }
  void on_train_batch_end(const fulgur::StepOutput& output, const Batch&, int64_t) override {
    if (options_.trouble == "read_all" && global_step() == 3)
      for (const Tensor& parameter : parameters()) fulgur::log::info(cat("sum ", parameter.sum().item<double>()));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin_;
    fulgur::log::info(cat("a step took ", fulgur::format_fixed(took.count(), 3), " ms, of which it slept ",
                          fulgur::format_fixed(SlowLinear::slept.count(), 3)));
    fulgur::log::info(cat("loss known here: ", fulgur::format_double(output.loss.item<double>())));
  }

  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    const bool reorders =
        options_.trouble == "reorders" || (options_.trouble == "reorders_later" && global_step() == 3);
    const bool skips = options_.trouble == "skips_layers" && global_rank() + 1 == run().world_size();
    const Tensor x = first_(batch[0]).tanh();
    const Tensor out = output(skips ? layer(0, x) : through_layers(x, reorders));
    if (options_.trouble == "reads_more" && global_rank() + 1 == run().world_size()) layer(2, x.detach());
    return loss_of(out, batch);
  }
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    if (!options_.shuffles || !is_training()) return batch;
    const Tensor order = at::randperm(batch.size());
    for (size_t i = 0; i < batch.entries(); ++i) batch.set(i, batch[i].index_select(0, order));
    return batch;
  }
  void on_after_backward() override {
    if (!options_.drops) return;
    for (const Tensor& parameter : parameters())
      if (parameter.dim() == 1 && parameter.grad().defined()) parameter.grad().zero_();
  }
  fulgur::Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    const Tensor x = through_layers(first_(batch[0]).tanh(), options_.trouble == "reorders_evaluations");
    log("val_loss", at::mse_loss(output(x), batch[1]));
    return {};
  }

 private:
  // `reorders`: on the last rank, the layers compute in the reverse order.
  Tensor through_layers(Tensor x, bool reorders) {
    const bool here = reorders && global_rank() + 1 == run().world_size();
    for (size_t i = 0; i < layers_.size(); ++i) x = layer(here ? layers_.size() - 1 - i : i, x);
    return x;
  }
  Tensor output(const Tensor& x) { return scale_.defined() ? last_(x) * scale_ : last_(x); }
  std::vector<Tensor> mistaken(const Tensor& x) {
    if (options_.mistake == "in_place") const_cast<Tensor&>(x).detach().mul_(2);
    if (options_.mistake == "fails") at::matmul(x, at::zeros({3, 3}));
    if (options_.mistake == "undefined") return {Tensor()};
    if (options_.mistake == "counts") count_.add_(1);
    return {layer(2, x)};
  }
  Tensor layer(size_t index, const Tensor& input) {
    Tensor weight = layers_[index]->weight;
    if (index == 1 && added_.defined()) {
      const Tensor own = weight.tanh();
      // The gradient of the sum has been given to the other parameter before.
      if (own.requires_grad()) own.register_hook([](const Tensor&) { SlowLinear::wait(100); });
      weight = own + added_.view(weight.sizes());
    }
    Tensor x = SlowLinear::apply(input, weight, options_.sleep_ms);
    if (index == 1 && norm_) x = norm_(x);
    if (options_.awaits_average > 0 && global_rank() % options_.awaits_average == 0 && index == 0 && is_training())
      await_average(x);
    if (options_.dropout > 0) x = at::dropout(x, options_.dropout, is_training());
    if (options_.chooses_shapes && index == 0 && is_training() && global_step() == 2) x = x.unsqueeze(1);
    return x.tanh();
  }
  void await_average(const Tensor& output) {
    if (!own_.defined()) layers_[1]->weight.register_hook([this](const Tensor& gradient) { own_ = gradient.clone(); });
    own_ = at::zeros({});
    output.register_hook([this](const Tensor&) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (own_.dim() == 0 || layers_[1]->weight.grad().equal(own_)) {
        if (std::chrono::steady_clock::now() > end)
          throw fulgur::Error("[probe] the gradient of layer1 is no average while backward computes");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  Tensor loss_of(const Tensor& output, const Batch& batch) {
    Tensor loss = at::mse_loss(output, batch[1]);
    const bool once = options_.trouble == "nan_once" && global_step() == 3 && !std::exchange(had_trouble_, true);
    if (once || (options_.trouble == "nan" && global_step() == 3))
      loss = loss * std::numeric_limits<double>::quiet_NaN();
    log("loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }

  Options options_;
  bool had_trouble_ = false;
  torch::nn::Linear first_{nullptr}, last_{nullptr};
  std::vector<torch::nn::Linear> layers_;
  fulgur::nn::BatchNorm1d norm_{nullptr};
  Tensor scale_, count_, own_, added_;
  std::chrono::steady_clock::time_point begin_;
};

/// A GPT that logs its loss of all ranks, and what this rank keeps.
class ProbeGpt : public fulgur::GPT {
 public:
  using fulgur::GPT::GPT;
  // The memory of parameters and of what optimizers step, each once, and their states.
  int64_t bytes_kept() const {
    std::set<const c10::StorageImpl*> seen;
    int64_t bytes = 0;
    const auto add = [&](const Tensor& tensor) {
      c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
      if (storage->_mutable_data_ptr_no_checks().get() != nullptr && seen.insert(storage).second)
        bytes += static_cast<int64_t>(storage->nbytes());
    };
    for (const Tensor& parameter : parameters()) add(parameter);
    for (const fulgur::ParamGroup& group : optimizers(0).optimizer().groups())
      for (const Tensor& shard : group.params) {
        add(shard);
        bytes += 2 * static_cast<int64_t>(shard.nbytes());  // Adam's
      }
    return bytes;
  }
  int on_train_batch_start(const Batch&, int64_t) override {
    int64_t here = 0;
    for (const Tensor& parameter : parameters()) here += parameter.numel();
    if (global_step() == 1) {
      fulgur::log::info(cat("parameters here: ", here));
      fulgur::log::info(cat("bytes kept between steps: ", bytes_kept()));
    }
    return 0;
  }
  void on_train_batch_end(const fulgur::StepOutput& output, const Batch&, int64_t) override {
    log("mean_loss", output.loss, {.sync_dist = true});
  }
};

const bool registered_gpt =
    fulgur::Registry<fulgur::LightningModule>::add<ProbeGpt>("ProbeGpt", "A GPT that logs its loss of all ranks.");
const bool registered_stages =
    fulgur::Registry<fulgur::LightningModule>::add<ProbeStages>("ProbeStages", "A chain of layers.");

}  // namespace
