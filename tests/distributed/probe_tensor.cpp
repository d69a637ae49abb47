// A module of LibTorch's own layers, which a plan in YAML divides among ranks.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/prelu.h>
#include <ATen/ops/stack.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/core/contracts/registry.h>
#include <fulgur/core/text/log.h>
#include <fulgur/core/text/text.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <limits>
#include <string>
#include <utility>

namespace {

using fulgur::Batch;
using fulgur::cat;
using fulgur::Tensor;

struct OwnLinear : torch::autograd::Function<OwnLinear> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.matmul(weight.t());
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<Tensor>& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].matmul(saved[1]), gradients[0].t().matmul(saved[0])};
  }
};

class ProbeTensor : public fulgur::LightningModule {
 public:
  struct Options {
    int64_t hidden = 24, width = 5;
    double dropout = 0;
    bool deep = false, in_classes = false, shows_masks = false, own_backward = false, ties = false, gates = false,
         spare = false;
    std::string trouble = "none";
    void fields(fulgur::Fields& f) {
      f(hidden, "hidden", "Width between the layers.");
      f(width, "width", "Width of the layers.");
      f(dropout, "dropout", "Share of values set to zero, inside and after the layers.");
      f(deep, "deep", "Values have three dimensions.");
      f(in_classes, "in_classes", "The loss is a cross entropy.");
      f(shows_masks, "shows_masks", "Logs what dropout has set to zero.");
      f(own_backward, "own_backward", "The first layer is a torch::autograd::Function.");
      f(gates, "gates", "A parameter that all ranks have multiplies divided values, in their shape and type.");
      f(ties, "ties", "The head shares its weight with the embedding.");
      f(spare, "spare", "A parameter that is never used.");
      f(trouble, "trouble", "What reads divided values.")
          .one_of({"none", "reads_weight", "reads_logits", "nan", "nan_once", "chunks", "softmax", "own_norm", "joins",
                   "products", "slices_rows", "counts_tokens", "own_sizes", "gathers", "holds_in_step",
                   "holds_in_validation"});
    }
  };
  explicit ProbeTensor(const Options& options) : options_(options) {
    embedding_ = register_module("embedding", torch::nn::Embedding(16, options.width));
    up_ = register_module("up", torch::nn::Linear(options.width, options.hidden));
    slope_ = register_parameter("slope", at::ones({1}) * 0.25);
    down_ = register_module("down", torch::nn::Linear(options.hidden, options.width));
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
    head_ = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(options.width, options.in_classes ? 16 : 2).bias(!options.ties)));
    if (options.spare) register_parameter("spare", at::ones({3}));
    if (!options.ties) return;
    head_->weight = embedding_->weight;
    fulgur::tie_parameters(*this, "embedding.weight", "head.weight");
  }

  fulgur::LayerChain stages() override {
    fulgur::LayerChain chain;
    chain.input = [](const Batch& batch) { return std::vector{batch[0]}; };
    chain.add("embedding", {"embedding"}, [this](const Tensor& x) { return embed(x); });
    chain.add("body", {"up", "slope", "down"}, [this](const Tensor& x) { return body(x); });
    chain.add("head", {"norm", "head"}, [this](const Tensor& x) { return head(x); });
    chain.loss = [this](const std::vector<Tensor>& outputs, const Batch& batch) { return loss_of(outputs[0], batch); };
    return chain;
  }
  int on_train_batch_start(const Batch&, int64_t) override {
    int64_t here = 0;
    for (const Tensor& parameter : parameters()) here += parameter.numel();
    if (global_step() == 1)
      fulgur::log::info(cat("parameters here: ", here, ", of up: ", fulgur::shape_text(up_->weight.sizes())));
    return 0;
  }
  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    if (options_.trouble == "holds_in_step") static_cast<void>(run().run_weights().whole_parameters());
    return loss_of(scaled(head(body(embed(batch[0])))), batch);
  }
  fulgur::Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    if (options_.trouble == "holds_in_validation") static_cast<void>(run().run_weights().whole_parameters());
    log("val_out", scaled(head(body(embed(batch[0])))).mean());
    return {};
  }

 private:
  // By all elements of divided weights.
  Tensor scaled(const Tensor& y) {
    if (options_.trouble != "gathers") return y;
    return y * (run().gather(up_->weight).abs().mean() + run().gather(down_->weight).abs().mean());
  }
  Tensor embed(const Tensor& x) {
    Tensor y = x + embedding_((x.select(1, 0) * 4 + 8).clamp(0, 15).to(at::kLong));
    if (options_.trouble == "counts_tokens") return at::stack({y, y * 0.5, y, y * 0.5}, 1);
    return options_.deep ? at::stack({y, y * 0.5}, 1) : y;
  }
  // What dropout sets to zero in a row of ones.
  Tensor drop(const Tensor& x, const char* name) {
    if (options_.dropout == 0) return x;
    if (options_.shows_masks && is_training()) {
      const Tensor kept = at::dropout(at::ones_like(x), options_.dropout, true).ne(0).to(at::kLong).cpu().contiguous();
      std::string bits;
      // A rank reads its own part, which no operation of LibTorch could.
      for (int64_t i = 0; i < kept.numel(); ++i) bits += kept.const_data_ptr<int64_t>()[i] ? '1' : '0';
      fulgur::log::info(cat("mask of ", name, ": ", bits));
    }
    return at::dropout(x, options_.dropout, is_training());
  }
  Tensor body(const Tensor& x) {
    Tensor h = options_.own_backward ? OwnLinear::apply(x, up_->weight) : up_(x);
    if (options_.trouble == "reads_weight" && is_training()) h = h + up_->weight.sum();
    if (options_.gates) h = h * slope_.expand_as(h).type_as(h);
    h = drop(at::prelu(at::gelu(h), slope_), "parts");
    if (is_training()) h = troubled(h);
    Tensor y = down_(h);
    if (options_.trouble == "counts_tokens" && is_training()) y = y + at::ones({y.size(1), 1}, y.options());
    return x + drop(y, "all");
  }
  // What is along the divided width, or only looks so.
  Tensor troubled(const Tensor& h) const {
    if (options_.trouble == "chunks") {
      const std::vector<Tensor> halves = h.chunk(2, -1);
      return at::cat({halves[1], halves[0]}, -1);
    }
    if (options_.trouble == "softmax") return h.softmax(-1);
    if (options_.trouble == "own_sizes") return h.view({h.size(0), options_.hidden / 4, 4}).flatten(1);
    if (options_.trouble == "own_norm") return h / h.norm(2, {-1}, true);
    if (options_.trouble == "joins") return at::cat({h, h * 2}, -1).slice(-1, 0, h.size(-1));
    if (options_.trouble == "products") return h.matmul(h.transpose(-1, -2)).matmul(h);
    if (options_.trouble == "slices_rows") return at::cat({h.slice(0, 0, 2), h.slice(0, 2)}, 0);
    return h;
  }
  Tensor head(const Tensor& x) {
    if (options_.deep && is_training() && global_step() == 1) fulgur::log::info(cat("tokens of the norm: ", x.size(1)));
    return head_(norm_(x));
  }
  Tensor loss_of(const Tensor& output, const Batch& batch) {
    Tensor flat = options_.deep ? output.flatten(0, 1) : output;
    Tensor y = options_.deep ? batch[1].repeat_interleave(2, 0) : batch[1];
    if (options_.trouble == "reads_logits" && is_training()) flat = flat.softmax(-1);
    Tensor loss = options_.in_classes
                      ? at::cross_entropy_loss(flat, (y.select(1, 0) * 4 + 8).clamp(0, 15).to(at::kLong))
                      : at::mse_loss(flat, y);
    const bool once = options_.trouble == "nan_once" && global_step() == 3 && !std::exchange(had_trouble_, true);
    if (once || (options_.trouble == "nan" && global_step() == 3))
      loss = loss * std::numeric_limits<double>::quiet_NaN();
    log("loss", loss, {.on_step = true});
    log("samples", static_cast<double>(batch.size()),
        {.on_step = false, .on_epoch = true, .reduce_fx = fulgur::Reduce::sum});
    return loss;
  }
  void on_train_batch_end(const fulgur::StepOutput& output, const Batch&, int64_t) override {
    log("mean_loss", output.loss, {.sync_dist = true});
  }

  Options options_;
  bool had_trouble_ = false;
  torch::nn::Embedding embedding_{nullptr};
  torch::nn::Linear up_{nullptr}, down_{nullptr}, head_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  Tensor slope_;
};

const bool registered_tensor =
    fulgur::Registry<fulgur::LightningModule>::add<ProbeTensor>("ProbeTensor", "Layers of LibTorch.");

}  // namespace
