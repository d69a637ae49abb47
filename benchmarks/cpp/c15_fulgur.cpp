// C15: steps of small networks, by hand (`--mode by_hand`) and with Fulgur's Trainer (`eager`, `captured`);
// peers/c15_nets.py is the same in Python.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <cmath>

#include "bench.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/models/gpt.h"
#include "fulgur/optim/adam.h"
#include "fulgur/trainer/trainer.h"

namespace {

using at::Tensor;
using fulgur::Batch;

constexpr int64_t kBatches = 16, kWarmups = 20, kLaps = 3;
constexpr double kRate = 1e-3;

// Numbers that every peer makes in the same way.
Tensor filled(at::IntArrayRef shape, double phase) {
  const Tensor i = at::arange(c10::multiply_integers(shape), at::kDouble);
  return at::sin(i * 0.37 + i * i * 1e-3 + phase).reshape(shape);
}
Tensor inputs(at::IntArrayRef shape, int64_t batch) {
  return filled(shape, 1000.0 + static_cast<double>(batch)).to(at::kFloat);
}
Tensor labels(at::IntArrayRef shape, int64_t batch, int64_t classes) {
  return ((at::arange(c10::multiply_integers(shape), at::kLong) * 7 + batch * 3) % classes).reshape(shape);
}

struct Net : fulgur::LightningModule {
  virtual Tensor loss(const Batch& batch) = 0;
  virtual Tensor predict(const Batch&) { throw std::logic_error("this network is only trained"); }
  virtual Batch make_batch(int64_t samples, int64_t number) const = 0;
  fulgur::StepOutput training_step(const Batch& batch, int64_t) override { return loss(batch); }
  fulgur::Outputs predict_step(const Batch& batch, int64_t, int64_t) override { return {{"output", predict(batch)}}; }
  fulgur::OptimizerPlan configure_optimizers() override {
    fulgur::AdamW::Options options;
    options.lr = kRate;
    return std::make_shared<fulgur::AdamW>(options);
  }
  void fill() {
    const at::NoGradGuard no_grad;
    std::map<std::string, Tensor> sorted;
    for (const auto& item : named_parameters())
      if (!item.key().ends_with("lm_head.weight")) sorted[item.key()] = item.value();  // that one is tied
    double phase = 0;
    for (auto& [name, value] : sorted) {
      if (value.dim() == 1)
        value.fill_(name.ends_with("weight") ? 1 : 0);
      else
        value.copy_(filled(value.sizes(), phase) / std::sqrt(static_cast<double>(value.numel() / value.size(0))));
      ++phase;
    }
  }
};

struct Layers : torch::nn::Module {
  explicit Layers(const std::vector<int64_t>& widths) {
    for (size_t i = 0; i + 1 < widths.size(); ++i)
      layers.push_back(register_module(fulgur::cat("layer", i), torch::nn::Linear(widths[i], widths[i + 1])));
  }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < layers.size(); ++i) x = layers[i](i == 0 ? x : at::relu(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

struct Mlp final : Net {
  explicit Mlp(std::vector<int64_t> sizes) : widths(std::move(sizes)) {
    net = register_module("net", std::make_shared<Layers>(widths));
  }
  Tensor loss(const Batch& batch) override { return at::cross_entropy_loss(predict(batch), batch[1]); }
  Tensor predict(const Batch& batch) override { return net->forward(batch[0]); }
  Batch make_batch(int64_t samples, int64_t number) const override {
    return {inputs({samples, widths.front()}, number), labels({samples}, number, widths.back())};
  }
  std::vector<int64_t> widths;
  std::shared_ptr<Layers> net;
};

struct Lstm final : Net {
  static constexpr int64_t kLength = 32, kInputs = 8, kWidth = 64;
  Lstm() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(kInputs, kWidth).batch_first(true)));
    last = register_module("last", torch::nn::Linear(kWidth, 1));
  }
  Tensor loss(const Batch& batch) override {
    return at::mse_loss(last(std::get<0>(lstm(batch[0])).select(1, kLength - 1)), batch[1]);
  }
  Batch make_batch(int64_t samples, int64_t number) const override {
    return {inputs({samples, kLength, kInputs}, number), inputs({samples, 1}, number + 500)};
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear last{nullptr};
};

// Each operation of a cell is one of LibTorch's: no kernel computes a whole layer.
struct Cells final : Net {
  static constexpr int64_t kLength = 12, kInputs = 16, kWidth = 32;
  Cells() {
    first = register_module("first", torch::nn::LSTMCell(kInputs, kWidth));
    second = register_module("second", torch::nn::LSTMCell(kWidth, kWidth));
    last = register_module("last", torch::nn::Linear(kWidth, 1));
  }
  Tensor loss(const Batch& batch) override {
    std::optional<std::tuple<Tensor, Tensor>> of_first, of_second;
    for (const Tensor& x : batch[0].unbind(1)) {
      of_first = first(x, of_first);
      of_second = second(std::get<0>(*of_first), of_second);
    }
    return at::mse_loss(last(std::get<0>(*of_second)), batch[1]);
  }
  Batch make_batch(int64_t samples, int64_t number) const override {
    return {inputs({samples, kLength, kInputs}, number), inputs({samples, 1}, number + 500)};
  }
  torch::nn::LSTMCell first{nullptr}, second{nullptr};
  torch::nn::Linear last{nullptr};
};

struct ConvNet final : Net {
  static constexpr int64_t kSide = 16;
  ConvNet() {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1)));
    last = register_module("last", torch::nn::Linear(16 * kSide * kSide / 16, 10));
  }
  Tensor loss(const Batch& batch) override {
    Tensor x = at::max_pool2d(at::relu(first(batch[0])), 2);
    x = at::max_pool2d(at::relu(second(x)), 2);
    return at::cross_entropy_loss(last(x.flatten(1)), batch[1]);
  }
  Batch make_batch(int64_t samples, int64_t number) const override {
    return {inputs({samples, 1, kSide, kSide}, number), labels({samples}, number, 10)};
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear last{nullptr};
};

// One update of deep Q-learning: the target network follows the other one.
struct Dqn final : Net {
  Dqn() {
    online = register_module("online", std::make_shared<Layers>(std::vector<int64_t>{4, 64, 64, 2}));
    target = register_module("target", std::make_shared<Layers>(std::vector<int64_t>{4, 64, 64, 2}));
    for (Tensor& value : target->parameters()) value.set_requires_grad(false);
  }
  Tensor loss(const Batch& batch) override {
    Tensor expected;
    {
      const at::NoGradGuard no_grad;
      at::_foreach_lerp_(target->parameters(), online->parameters(), 0.005);
      const Tensor best = std::get<0>(target->forward(batch["next"]).max(1));
      expected = batch["reward"] + batch["goes_on"] * best * 0.99;
    }
    const Tensor values = online->forward(batch["state"]).gather(1, batch["action"]).squeeze(1);
    return at::smooth_l1_loss(values, expected);
  }
  Batch make_batch(int64_t samples, int64_t number) const override {
    return {{"state", inputs({samples, 4}, number)},
            {"action", labels({samples, 1}, number, 2)},
            {"reward", inputs({samples}, number + 500)},
            {"next", inputs({samples, 4}, number + 900)},
            {"goes_on", labels({samples}, number, 5).ne(0).to(at::kFloat)}};
  }
  std::shared_ptr<Layers> online, target;
};

struct Gpt final : Net {
  Gpt(int64_t classes_, int64_t tokens_, int64_t blocks, int64_t heads, int64_t channels)
      : classes(classes_), tokens(tokens_) {
    const fulgur::GPT::Options options{
        .vocab_size = classes, .block_size = 4 * tokens, .n_layer = blocks, .n_head = heads, .n_embd = channels};
    gpt = register_module("gpt", std::make_shared<fulgur::GPT>(options));
  }
  Tensor loss(const Batch& batch) override {
    return at::cross_entropy_loss(gpt->forward(batch[0]).flatten(0, 1), batch[1].flatten());
  }
  Batch make_batch(int64_t samples, int64_t number) const override {
    return {labels({samples, tokens}, number, classes), labels({samples, tokens}, number + 1, classes)};
  }
  int64_t classes, tokens;
  std::shared_ptr<fulgur::GPT> gpt;
};

template <class N, int64_t... Sizes>
std::shared_ptr<Net> make_net() {
  return std::make_shared<N>(Sizes...);
}
template <int64_t... Widths>
std::shared_ptr<Net> make_mlp() {
  return std::make_shared<Mlp>(std::vector<int64_t>{Widths...});
}

struct Kind {
  const char* title;
  std::shared_ptr<Net> (*make)();
  std::vector<int64_t> batches;
  int64_t steps;  // of a lap at batch 1
  bool predicts = false;
};
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"MLP 32-16-10", make_mlp<32, 16, 10>, {1, 8, 64}, 4000},
      {"MLP 128-64-64-8", make_mlp<128, 64, 64, 8>, {1, 8, 64}, 2000},
      {"MLP 784-128-10", make_mlp<784, 128, 10>, {1, 8, 64}, 1000},
      {"LSTM of width 64, 32 steps", make_net<Lstm>, {1, 8, 64}, 200},
      {"LSTM cells, 2 layers of width 32, 12 steps", make_net<Cells>, {1, 8, 64}, 100},
      {"conv net 16 x 16", make_net<ConvNet>, {1, 8, 64}, 400},
      {"DQN update", make_net<Dqn>, {1, 8, 64}, 1000},
      {"GPT of 2 blocks of width 32, 16 tokens", make_net<Gpt, 64, 16, 2, 4, 32>, {1, 4, 64}, 200},
      {"GPT of 6 blocks, 64 tokens", make_net<Gpt, 256, 64, 6, 6, 384>, {1}, 6},
      {"predict through MLP 32-16-10", make_mlp<32, 16, 10>, {1}, 20000, /*predicts=*/true},
  };
  return all;
}

class Cycle final : public fulgur::Loader {
 public:
  Cycle(std::vector<Batch> batches, int64_t steps) : batches_(std::move(batches)), steps_(steps) {}
  std::optional<int64_t> size() const override { return steps_; }
  std::optional<int64_t> samples() const override { return steps_ * batches_[0].size(); }
  int64_t batch_size() const override { return batches_[0].size(); }
  void start_epoch(int64_t) override { next_ = 0; }
  bool next(Batch& out) override {
    if (next_ == steps_) return false;
    out = batches_[static_cast<size_t>(next_++ % kBatches)];
    return true;
  }
  void unread() override { --next_; }
  void configure(uint64_t, int64_t, int64_t) override {}
  fulgur::StateTree state() const override { return {}; }
  void load_state(const fulgur::StateTree&) override {}

 private:
  std::vector<Batch> batches_;
  int64_t steps_, next_ = 0;
};

// The losses of the first steps, or the mean squares of predictions, then a stamp after each lap.
class Measured : public fulgur::Callback {
 public:
  explicit Measured(int64_t steps_of_lap) : steps(steps_of_lap) {}
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput& output, const Batch&, int64_t index) override {
    see(index, output.loss);
  }
  bool writes_predictions() const override { return true; }  // so that the Trainer keeps none
  void on_predict_batch_end(fulgur::RunContext&, const fulgur::Outputs& outputs, const Batch&, int64_t index,
                            int64_t) override {
    see_prediction(index, outputs["output"]);
  }
  void see_prediction(int64_t index, const Tensor& output) {
    see(index, index < kWarmups ? output.square().mean() : output);
  }
  void see(int64_t index, const Tensor& loss) {
    if (index < kWarmups) losses.push_back(loss.item<double>());
    if (index + 1 >= kWarmups && (index + 1 - kWarmups) % steps == 0) laps.stamp();
  }
  int64_t steps;
  bench::Laps laps;
  std::vector<double> losses;
};

void train_by_hand(Net& net, const std::vector<Batch>& batches, int64_t steps, Measured& measured) {
  std::vector<Tensor> params, averages, squares, counts;
  for (const auto& [name, p] : fulgur::unique_parameters(net)) {
    if (!p.requires_grad()) continue;
    params.push_back(p);
    averages.push_back(at::zeros_like(p));
    squares.push_back(at::zeros_like(p));
    counts.push_back(at::zeros({}));
  }
  std::vector<Tensor> grads(params.size());
  for (int64_t i = 0; i < steps; ++i) {
    const Tensor loss = net.loss(batches[static_cast<size_t>(i % kBatches)]);
    loss.backward();
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < params.size(); ++p) grads[p] = params[p].grad();
    at::_foreach_add_(counts, 1);
    at::_fused_adamw_(params, grads, averages, squares, {}, counts, kRate, 0.9, 0.999, 0.01, 1e-8, false, false,
                      std::nullopt, std::nullopt);
    for (const Tensor& p : params) p.mutable_grad().reset();
    measured.see(i, loss);
  }
}

void predict_by_hand(Net& net, const std::vector<Batch>& batches, int64_t steps, Measured& measured) {
  const c10::InferenceMode no_gradients;
  for (int64_t i = 0; i < steps; ++i)
    measured.see_prediction(i, net.predict(batches[static_cast<size_t>(i % kBatches)]));
}

void run(const bench::Arguments& arguments, const std::shared_ptr<Net>& net, const std::vector<Batch>& batches,
         int64_t steps, bool predicts, const std::shared_ptr<Measured>& measured) {
  const std::string& mode = arguments.text("mode");
  if (mode == "by_hand")
    return predicts ? predict_by_hand(*net, batches, steps, *measured) : train_by_hand(*net, batches, steps, *measured);
  fulgur::TrainerOptions options;
  options.accelerator = "cpu";
  options.num_threads = 1;
  options.capture = mode == "captured";
  options.max_epochs = 1;
  options.default_root_dir = arguments.text("scratch");
  options.logger.enabled = options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary =
      false;
  fulgur::TrainerComponents components;
  components.add(measured);
  fulgur::DataSource data;
  (predicts ? data.predict : data.train).push_back(std::make_shared<Cycle>(batches, steps));
  fulgur::Trainer trainer(options, components);
  const std::optional<std::string> not_captured =
      predicts ? trainer.predict(net, data).not_captured : trainer.fit(net, data).not_captured;
  if (options.capture && not_captured) throw std::runtime_error(*not_captured);
}

}  // namespace

int main(int count, char** values) {
  return bench::run(count, values, [](const bench::Arguments& arguments) {
    fulgur::log::set_level(fulgur::log::Level::error);
    nlohmann::json report;
    for (const Kind& kind : kinds()) {
      if (arguments.has("only") && arguments.text("only") != kind.title) continue;  // for a profiler
      for (const int64_t samples : kind.batches) {
        const auto net = kind.make();
        net->fill();
        std::vector<Batch> batches;
        for (int64_t i = 0; i < kBatches; ++i) batches.push_back(net->make_batch(samples, i));
        const int64_t steps = std::max<int64_t>(kind.steps / arguments.number("divide"), 2);
        const auto measured = std::make_shared<Measured>(steps);
        run(arguments, net, batches, kWarmups + kLaps * steps, kind.predicts, measured);
        const std::string name = fulgur::cat(kind.title, ", batch ", samples);
        report["cases"][name] = measured->laps.samples();
        for (auto& sample : report["cases"][name])
          for (auto& [key, seconds] : sample.items()) seconds = seconds.get<double>() / static_cast<double>(steps);
        report["losses"][name] = measured->losses;
      }
    }
    bench::write_report(arguments, report);
  });
}
