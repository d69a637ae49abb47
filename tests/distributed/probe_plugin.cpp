// A module, a data set and a callback for tests of several processes: they do what they are configured to do, on the
// configured rank.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <fulgur/core/contracts/callback.h>
#include <fulgur/core/contracts/collectives.h>
#include <fulgur/core/contracts/data_module.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/core/contracts/registry.h>
#include <fulgur/core/text/log.h>
#include <fulgur/core/text/text.h>
#include <fulgur/data/data_loader.h>
#include <fulgur/data/iterable_loader.h>
#include <fulgur/data/tensor_dataset.h>
#include <fulgur/metrics/stat_scores.h>
#include <fulgur/nn/batch_norm.h>
#include <fulgur/optim/sgd.h>
#include <signal.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>

namespace {

using fulgur::Batch;
using fulgur::cat;
using fulgur::Fields;
using fulgur::Tensor;

/// Two layers; trouble of a kind, at a step, on a rank.
class ProbeNet : public fulgur::LightningModule {
 public:
  struct Options {
    int64_t hidden = 8;
    double dropout = 0;
    bool norm = false;
    bool spare = false;
    bool spread = false;
    std::string trouble = "none";
    int64_t trouble_rank = 1;
    int64_t trouble_step = 3;
    bool gathers = false, logs_rank = false, logs_metric = false;
    void fields(Fields& f) {
      f(hidden, "hidden", "Width of the hidden layer.").at_least(1);
      f(dropout, "dropout", "Share of hidden values set to zero.");
      f(norm, "norm", "Batch norm behind the first layer.");
      f(spare, "spare", "A parameter that is never used.");
      f(spread, "spread", "The last layer is on the second GPU, for model_parallel.");
      f(trouble, "trouble", "What happens.")
          .one_of({"none",
                   "skip_epoch",
                   "throw",
                   "bad_alloc",
                   "kill",
                   "stop",
                   "loop",
                   "exit",
                   "flip",
                   "nan",
                   "nan_once",
                   "spike",
                   "nan_input",
                   "nan_buffer",
                   "shape",
                   "no_loss",
                   "no_loss_every_fourth",
                   "no_loss_once",
                   "unused",
                   "unused_in_second_batch",
                   "throw_in_validation",
                   "kill_in_validation",
                   "throw_in_predict",
                   "predictions_in_the_way",
                   "other_predictions",
                   "kill_before",
                   "kill_behind",
                   "device_assert",
                   "device_assert_in_exchange",
                   "kill_between",
                   "stop_between",
                   "loop_between",
                   "flip_between",
                   "nan_between",
                   "out_of_memory",
                   "memory_of_two",
                   "memory_of_two_in_backward",
                   "slow",
                   "clamp_data",
                   "swap_data",
                   "read_whole",
                   "read_values_of_whole",
                   "write_whole",
                   "shrink_data",
                   "replace_memory",
                   "reads_values",
                   "reads_nan_values",
                   "copies_values",
                   "nan_constant_between",
                   "hook_of_rank",
                   "stop_and_throw"});
      f(trouble_rank, "trouble_rank", "On which rank.");
      f(trouble_step, "trouble_step", "At which step, or batch of validation.");
      f(logs_rank, "logs_rank", "Logs its rank where an epoch of validation ends.");
      f(logs_metric, "logs_metric", "Validation logs a metric object: is the larger output the right one?");
      f(gathers, "gathers", "The loss is of the outputs of all ranks, gathered with gradients.");
    }
  };

  explicit ProbeNet(const Options& options)
      : options_(options),
        first_(5, options.hidden),
        norm_(options.norm ? fulgur::nn::BatchNorm1d(fulgur::nn::BatchNormOptions(options.hidden)) : nullptr),
        last_(options.hidden, 2) {
    register_module("first", first_);
    if (options.norm) register_module("norm", norm_);
    register_module("last", last_);
    if (options.spare) spare_ = register_parameter("spare", at::full({3}, 1.0));
    // At the first start only, before there is a run.
    if (options.trouble == "kill_before" && told("RANK") == std::to_string(options.trouble_rank) &&
        told("FULGUR_RESTARTS") == "0")
      ::raise(SIGKILL);
  }
  ~ProbeNet() override {
    if (options_.trouble == "kill_behind" && trained_here_) ::raise(SIGKILL);
  }

  std::vector<std::shared_ptr<fulgur::Callback>> configure_callbacks() override {
    struct InsideStep final : fulgur::Callback {
      void on_after_backward(fulgur::RunContext&) override {}
    };
    if (options_.trouble == "hook_of_rank" && here()) return {std::make_shared<InsideStep>()};
    return {};
  }
  void configure_model() override {
    if (options_.trouble == "shape" && here()) register_parameter("extra", at::full({2}, 1.0));
    if (!options_.spread) return;
    first_->to(at::Device(at::kCUDA, 0));
    last_->to(at::Device(at::kCUDA, 1));
  }

  Tensor forward(const Tensor& x) {
    Tensor h = first_(x);
    // The gradients of the other layers are there by then.
    if (std::exchange(lacks_memory_in_backward_, false))
      h.register_hook([](const Tensor& gradient) {
        TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory for the gradients of more than two samples, as asked for");
        return gradient;
      });
    if (options_.norm) h = norm_(h);
    h = at::tanh(h);
    if (options_.dropout > 0) h = at::dropout(h, options_.dropout, is_training());
    return last_(h.to(last_->weight.device()));
  }

  // Between steps, of which captured ones do not run training_step.
  int on_train_batch_start(const Batch& batch, int64_t batch_idx) override {
    if (options_.trouble == "skip_epoch" && batch_idx == options_.trouble_step) return -1;
    // The other ranks have launched a step that waits for this one.
    if (options_.trouble == "stop_and_throw" && !here() && global_step() == options_.trouble_step + 1)
      throw std::runtime_error("trouble between steps, as asked for");
    if (!here() || global_step() != options_.trouble_step) return 0;
    if (options_.trouble == "stop_and_throw") ::raise(SIGSTOP);
    if (options_.trouble == "kill_between") ::raise(SIGKILL);
    if (options_.trouble == "stop_between") ::raise(SIGSTOP);
    if (options_.trouble == "replace_memory") last_->bias.set_data(at::zeros({2}));
    if (options_.trouble == "loop_between") hang();
    if (options_.trouble == "flip_between") flip();
    if (options_.trouble == "nan_between" || options_.trouble == "reads_nan_values")
      Tensor(batch[0]).fill_(std::numeric_limits<double>::quiet_NaN());
    if (options_.trouble == "nan_constant_between") Tensor(batch["index"]).fill_(-1);
    return 0;
  }

  void on_train_start() override {
    if (global_step() > 0) return;  // a resumed run draws no more than the whole one
    fulgur::log::info(cat("random number ", at::rand({1}).item<double>()));
  }

  fulgur::StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const Tensor& y = batch[1];
    const bool now = here() && global_step() == options_.trouble_step;
    Tensor x = batch[0];
    if (options_.trouble == "nan_input" && now) x = x * std::numeric_limits<double>::quiet_NaN();
    trained_here_ = here();
    // In batches with an odd number, which are the second of a window of two.
    lacks_memory_in_backward_ = options_.trouble == "memory_of_two_in_backward" && here() && batch_idx % 2 == 1 &&
                                global_step() >= options_.trouble_step && batch.size() > 2;
    if (options_.trouble == "slow" && here()) ::usleep(20'000);
    if (here() && global_step() == options_.trouble_step) {
      if (options_.trouble == "no_loss") return Tensor();
      make_trouble();
    }
    if (options_.trouble == "clamp_data") last_->weight.variable_data().clamp_(-0.05, 0.05);
    if (options_.trouble == "swap_data") last_->weight.variable_data().copy_(last_->weight.variable_data().flip({0}));
    if (options_.trouble == "read_whole") {
      const auto whole = run().run_weights().whole_parameters();
      x = x * last_->weight.detach().abs().mean();
    }
    if (options_.trouble == "read_values_of_whole") {
      const auto whole = run().run_weights().whole_parameters();
      x = x * last_->weight.sum().item<double>();
    }
    if (options_.trouble == "write_whole") {
      const auto whole = run().run_weights().whole_parameters();
      for (const Tensor& parameter : parameters()) parameter.variable_data().mul_(0.9);
    }
    Tensor out = forward(x), target = y.to(out.device());
    if (options_.trouble == "shrink_data")
      for (const Tensor& parameter : parameters()) parameter.variable_data().mul_(0.9);
    if (options_.trouble == "nan_buffer" && now)
      norm_->running_mean.variable_data().fill_(std::numeric_limits<double>::quiet_NaN());
    if (options_.gathers) {
      out = at::cat(all_gather(out, /*with_gradients=*/true));
      target = run().collectives().all_gather_same(y).flatten(0, 1);
    }
    Tensor loss = at::mse_loss(out, target);
    const bool unused =
        options_.trouble == "unused" || (options_.trouble == "unused_in_second_batch" && batch_idx == 1);
    if (unused && here()) loss = at::mse_loss(last_->bias.expand_as(y), y);
    if (options_.trouble == "nan" && here() && global_step() == options_.trouble_step)
      loss = loss * std::numeric_limits<double>::quiet_NaN();
    // A rollback repeats the step with other data.
    if ((options_.trouble == "nan_once" || options_.trouble == "spike") && here() &&
        global_step() == options_.trouble_step && !std::exchange(had_trouble_, true))
      loss =
          options_.trouble == "spike" ? loss + 1000 * loss.detach() : loss * std::numeric_limits<double>::quiet_NaN();
    // The host waits for the device, which a step that is captured cannot do.
    if (options_.trouble == "copies_values" && here()) static_cast<void>(loss.detach().cpu());
    if (options_.trouble == "reads_nan_values" && here()) static_cast<void>(loss.item<double>());
    // The gradients do not depend on it.
    if (options_.trouble == "nan_constant_between")
      loss =
          loss + at::where(batch["index"].lt(0), std::numeric_limits<double>::quiet_NaN(), 0.0).sum().to(loss.dtype());
    if (options_.trouble == "reads_values" && here() && !std::isfinite(loss.item<double>())) return Tensor();
    TORCH_CHECK_WITH(OutOfMemoryError, options_.trouble != "memory_of_two" || !now || batch.size() <= 2,
                     "no memory for more than two samples, as asked for");
    log("loss", loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
    log("own_rank", static_cast<double>(global_rank()), {.on_step = true, .on_epoch = false});
    log("rank_of_all", static_cast<double>(global_rank()), {.on_step = true, .on_epoch = false, .sync_dist = true});
    if (options_.trouble == "no_loss_every_fourth" && batch_idx % 4 == 3) return Tensor();
    if (options_.trouble == "no_loss_once" && current_epoch() == 0 && batch_idx == options_.trouble_step)
      return Tensor();
    return loss;
  }

  fulgur::Outputs validation_step(const Batch& batch, int64_t batch_idx, int64_t) override {
    if (here() && batch_idx == options_.trouble_step && global_step() > 0) {
      if (options_.trouble == "throw_in_validation") throw std::runtime_error("trouble in validation, as asked for");
      if (options_.trouble == "kill_in_validation") ::raise(SIGKILL);
    }
    if (options_.logs_metric) {
      accuracy_.update(forward(batch[0]), batch[1].argmax(1));
      log("val_acc", accuracy_);
    }
    return evaluate(batch, "val_loss");
  }
  void on_validation_epoch_end() override {
    if (options_.logs_rank) log("rank_of_epoch", static_cast<double>(global_rank()));
  }
  fulgur::Outputs test_step(const Batch& batch, int64_t, int64_t) override { return evaluate(batch, "test_loss"); }
  fulgur::Outputs predict_step(const Batch& batch, int64_t, int64_t) override {
    if (here() && options_.trouble == "throw_in_predict") throw std::runtime_error("trouble in predict, as asked for");
    if (here() && options_.trouble == "predictions_in_the_way")
      std::filesystem::create_directories(run().log_dir() / "predictions.jsonl");
    fulgur::Outputs outputs;
    outputs.add(here() && options_.trouble == "other_predictions" ? "other" : "out", forward(batch[0]));
    outputs.add("index", batch["index"]);
    return outputs;
  }

 private:
  bool here() const { return global_rank() == options_.trouble_rank; }
  static std::string told(const char* variable) {
    const char* value = std::getenv(variable);
    return value ? value : "";
  }

  fulgur::Outputs evaluate(const Batch& batch, const char* name) {
    const auto [x, y] = batch.unpack<2>();
    const Tensor out = forward(x);
    log(name, at::mse_loss(out, y.to(out.device())));
    return {};
  }

  void make_trouble() {
    const std::string& what = options_.trouble;
    if (what == "throw") throw std::runtime_error("trouble in training_step, as asked for");
    if (what == "bad_alloc") throw std::bad_alloc();
    if (what == "kill") ::raise(SIGKILL);
    if (what == "stop") ::raise(SIGSTOP);
    if (what == "exit") ::_exit(0);
    if (what == "loop") hang();
    if (what == "device_assert") fail_on_device();
    if (what == "device_assert_in_exchange") {
      const Tensor ready = at::zeros({1}, last_->weight.options());
      fail_on_device();
      // NCCL's watchdog has seen the failure, and nothing else has before the exchange.
      ::sleep(1);
      run().collectives().all_gather_same(ready);
    }
    if (what == "flip") flip();
    if (what == "out_of_memory") at::empty({int64_t{1} << 50}, last_->weight.options());
  }
  // After the end of what is selected from: on a GPU the kernel itself fails.
  void fail_on_device() const {
    last_->weight.index_select(0, at::full({1}, int64_t{1} << 20, last_->weight.options().dtype(at::kLong)));
  }
  void flip() {
    const at::NoGradGuard no_grad;
    last_->weight.view(-1)[1].add_(1e-3);
  }
  [[noreturn]] static void hang() {
    while (true) ::usleep(1000);
  }

  Options options_;
  torch::nn::Linear first_;
  fulgur::nn::BatchNorm1d norm_;
  torch::nn::Linear last_;
  Tensor spare_;
  bool trained_here_ = false, had_trouble_ = false;
  bool lacks_memory_in_backward_ = false;
  fulgur::metrics::Accuracy accuracy_{{.num_classes = 2}};
};
FULGUR_REGISTER(fulgur::LightningModule, ProbeNet, "A net that makes trouble.");

/// Its option has no condition.
class ProbeWidth : public fulgur::LightningModule {
 public:
  struct Options {
    int64_t hidden = 8;
    void fields(Fields& f) { f(hidden, "hidden", "Width of the hidden layer."); }
  };
  explicit ProbeWidth(const Options& options) : layer_(options.hidden, 2) { register_module("layer", layer_); }
  fulgur::StepOutput training_step(const Batch& batch, int64_t) override { return layer_(batch[0]).sum(); }

 private:
  torch::nn::Linear layer_;
};
FULGUR_REGISTER(fulgur::LightningModule, ProbeWidth, "A layer.");

/// Two parts that learn against each other, each with its own optimizer.
class ProbePair : public fulgur::LightningModule {
 public:
  struct Options {
    std::string how = "toggled";
    bool shared = false;
    int64_t accumulate = 1;
    bool exchanges_each = false;
    void fields(Fields& f) {
      f(how, "how", "How a backward is kept to one part.").one_of({"toggled", "inputs", "all"});
      f(shared, "shared", "A parameter is in both optimizers.");
      f(accumulate, "accumulate", "Batches of a step; their exchange waits for the last.");
      f(exchanges_each, "exchanges_each", "The gradients of each batch are exchanged at once.");
    }
  };
  explicit ProbePair(const Options& options) : options_(options), maker_(5, 2), judge_(2, 2) {
    register_module("maker", maker_);
    register_module("judge", judge_);
  }
  bool automatic_optimization() const override { return false; }

  fulgur::OptimizerPlan configure_optimizers() override {
    auto first = std::make_shared<fulgur::SGD>(fulgur::SGD::Options{.lr = 0.05}),
         second = std::make_shared<fulgur::SGD>(fulgur::SGD::Options{.lr = 0.03});
    auto made = group(maker_, "maker"), judged = group(judge_, "judge");
    if (options_.shared) judged.params.push_back(maker_->bias), judged.names.emplace_back("maker.bias");
    first->attach({made});
    second->attach({judged});
    return fulgur::OptimizerPlan::several({{first, {}}, {second, {}}});
  }

  fulgur::StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    const auto [x, y] = batch.unpack<2>();
    const bool last = (batch_idx + 1) % options_.accumulate == 0;
    const auto part = [&](size_t index, const Tensor& target) {
      auto& optimizer = optimizers(index);
      if (options_.how == "toggled") {
        const auto alone = toggled(optimizer);
        learn(at::mse_loss(judge_(maker_(x)), target), optimizer, last);
      } else {
        learn(at::mse_loss(judge_(maker_(x)), target), optimizer, last);
      }
    };
    part(0, y);
    part(1, -y);
    return {};
  }

 private:
  static fulgur::ParamGroup group(const torch::nn::Linear& part, const std::string& name) {
    return {.name = name, .params = {part->weight, part->bias}, .names = {name + ".weight", name + ".bias"}};
  }
  void learn(const Tensor& loss, fulgur::OptimizerHandle& optimizer, bool last) {
    const auto backward = [&] {
      if (options_.how == "inputs")
        manual_backward(loss / static_cast<double>(options_.accumulate), optimizer);
      else
        manual_backward(loss / static_cast<double>(options_.accumulate));
    };
    if (last || options_.exchanges_each) {
      backward();
    } else {
      const auto quiet = no_sync();
      backward();
    }
    if (!last) return;
    optimizer.step();
    for (auto* each : {&optimizers(0), &optimizers(1)})
      if (options_.how == "all" || each == &optimizer) each->zero_grad();
  }

  Options options_;
  torch::nn::Linear maker_, judge_;
};
FULGUR_REGISTER(fulgur::LightningModule, ProbePair, "Two parts with an optimizer each.");

/// A layer of LibTorch's that cannot be switched.
class ProbeFixedNorm : public fulgur::LightningModule {
 public:
  struct Options {
    void fields(Fields&) {}
  };
  explicit ProbeFixedNorm(const Options&) : layer_(5, 2), norm_(2) {
    register_module("layer", layer_);
    register_module("norm", norm_);
  }
  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    return at::mse_loss(norm_(layer_(batch[0])), batch[1]);
  }

 private:
  torch::nn::Linear layer_;
  torch::nn::BatchNorm1d norm_;
};
FULGUR_REGISTER(fulgur::LightningModule, ProbeFixedNorm, "A net with a batch norm of LibTorch's.");

/// A convolution over images made of the samples; logs the layout of its weight and its gradient.
class ProbeImages : public fulgur::LightningModule {
 public:
  struct Options {
    void fields(Fields&) {}
  };
  explicit ProbeImages(const Options&) : conv_(torch::nn::Conv2dOptions(5, 6, 3)), last_(6, 2) {
    register_module("conv", conv_);
    register_module("last", last_);
  }
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    const Tensor pixels = at::arange(16, at::kFloat).view({1, 1, 4, 4}) / 16;
    batch.set(0, batch[0].view({-1, 5, 1, 1}) * pixels);
    return batch;
  }
  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    if (global_step() == 0)
      fulgur::log::info(cat("the batch is ", layout(batch[0]), ", the weight ", layout(conv_->weight)));
    return at::mse_loss(last_(at::tanh(conv_(batch[0])).mean({2, 3})), batch[1]);
  }
  void on_before_zero_grad(fulgur::Optimizer&) override {
    if (global_step() == 1) fulgur::log::info(cat("the gradient is ", layout(conv_->weight.grad())));
  }

 private:
  static std::string layout(const Tensor& tensor) {
    return tensor.is_contiguous(at::MemoryFormat::ChannelsLast) && !tensor.is_contiguous() ? "channels last"
                                                                                           : "contiguous";
  }
  torch::nn::Conv2d conv_;
  torch::nn::Linear last_;
};
FULGUR_REGISTER(fulgur::LightningModule, ProbeImages, "A net over images.");

/// The samples of one of `world_size` consecutive blocks.
std::pair<int64_t, int64_t> block_of(int64_t size, int64_t rank, int64_t world_size) {
  return {size * rank / world_size, size * (rank + 1) / world_size};
}

/// A stream of which each rank has a block.
class BlockStream : public fulgur::IterableDataset {
 public:
  explicit BlockStream(Batch samples) : samples_(std::move(samples)) {}
  void set_share(int64_t rank, int64_t world_size) override {
    std::tie(begin_, end_) = block_of(samples_.size(), rank, world_size);
  }
  void reset(const fulgur::SampleContext&) override { at_ = begin_; }
  std::optional<Batch> next(int64_t count, const fulgur::SampleContext&) override {
    count = std::min(count, end_ - at_);
    if (count <= 0) return std::nullopt;
    return samples_.narrow(std::exchange(at_, at_ + count), count);
  }
  fulgur::StateTree state() const override { return fulgur::StateTree::map({{"at", at_}}); }
  void load_state(const fulgur::StateTree& state) override { at_ = state.at("at").as_int(); }

 private:
  Batch samples_;
  int64_t begin_ = 0, end_ = 0, at_ = 0;
};

/// Batches of a block for each rank, or batches that are dealt to the ranks in turns.
class ProbeBatches : public fulgur::BatchSampler {
 public:
  ProbeBatches(int64_t size, int64_t batch_size, bool blocks) : size_(size), batch_size_(batch_size), blocks_(blocks) {}
  int64_t size(int64_t rank, int64_t world_size) const override {
    return static_cast<int64_t>(batches({.rank = rank, .world_size = world_size}).size());
  }
  int64_t batch_size() const override { return batch_size_; }
  std::vector<std::vector<int64_t>> batches(const fulgur::SamplerContext& context) const override {
    auto [begin, end] = block_of(size_, context.rank, context.world_size);
    if (!blocks_) begin = 0, end = size_;
    std::vector<std::vector<int64_t>> all;
    for (int64_t first = begin, number = 0; first < end; first += batch_size_, ++number) {
      if (!blocks_ && number % context.world_size != context.rank) continue;
      all.emplace_back();
      for (int64_t i = first; i < std::min(first + batch_size_, end); ++i) all.back().push_back(i);
    }
    return all;
  }
  int64_t samples(int64_t rank, int64_t world_size) const override {
    int64_t count = 0;
    for (const auto& batch : batches({.rank = rank, .world_size = world_size}))
      count += static_cast<int64_t>(batch.size());
    return count;
  }

 private:
  int64_t size_, batch_size_;
  bool blocks_;
};

/// Every `world_size`-th sample of a stream, as many as its rank is configured for.
class Stream : public fulgur::IterableDataset {
 public:
  Stream(Batch samples, std::vector<int64_t> lengths) : samples_(std::move(samples)), lengths_(std::move(lengths)) {}
  void set_share(int64_t rank, int64_t world_size) override {
    rank_ = rank;
    world_size_ = world_size;
  }
  void reset(const fulgur::SampleContext&) override { at_ = 0; }
  std::optional<Batch> next(int64_t count, const fulgur::SampleContext&) override {
    const int64_t length = lengths_[static_cast<size_t>(rank_) % lengths_.size()];
    count = std::min(count, length - at_);
    if (count <= 0) return std::nullopt;
    const int64_t begin = at_ * world_size_ + rank_;
    at_ += count;
    Batch batch;
    for (const auto& [name, value] : samples_) {
      const Tensor& all = std::get<Tensor>(value);
      batch.add(name, all.slice(0, begin, all.size(0), world_size_).narrow(0, 0, count));
    }
    return batch;
  }
  fulgur::StateTree state() const override { return fulgur::StateTree::map({{"at", at_}}); }
  void load_state(const fulgur::StateTree& state) override { at_ = state.at("at").as_int(); }

 private:
  Batch samples_;
  std::vector<int64_t> lengths_;
  int64_t rank_ = 0, world_size_ = 1, at_ = 0;
};

/// A sampler that ignores ranks.
class Selfish : public fulgur::Sampler {
 public:
  explicit Selfish(int64_t size) : size_(size) {}
  int64_t size(int64_t, int64_t) const override { return size_; }
  std::vector<int64_t> order(const fulgur::SamplerContext&) const override {
    std::vector<int64_t> all(static_cast<size_t>(size_));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    return all;
  }

 private:
  int64_t size_;
};

class ProbeData : public fulgur::DataModule {
 public:
  struct Options {
    int64_t num_train = 64, num_eval = 32, batch_size = 8, second = 0;
    bool shuffle = true, selfish = false, slow = false;
    int64_t num_workers = 0;
    std::vector<int64_t> stream;
    std::string eval = "set", other_on_rank_1 = "none";
    void fields(Fields& f) {
      f(other_on_rank_1, "other_on_rank_1", "What rank 1 has otherwise.")
          .one_of({"none", "samples", "eval_samples", "batch_size", "shuffle"});
      f(num_train, "num_train", "Training samples.");
      f(num_eval, "num_eval", "Samples of each other set.");
      f(batch_size, "batch_size", "Samples of a batch.");
      f(shuffle, "shuffle", "In a new order each epoch.");
      f(selfish, "selfish", "A sampler that gives all samples to every rank.");
      f(slow, "slow", "Prepares its data slowly, has a state, and tells what is called.");
      f(num_workers, "num_workers", "Threads that read ahead.");
      f(second, "second", "Samples of a second training loader.");
      f(eval, "eval", "How the samples of evaluations come to the ranks.")
          .one_of({"set", "stream_of_blocks", "batches_of_blocks", "batches_in_turns"});
      f(stream, "stream", "Not empty: training data without a length, of so many samples on each rank.");
    }
  };
  explicit ProbeData(const Options& options) : options_(options) {}

  void prepare_data() override {
    fulgur::log::info("prepare_data was called");
    if (!options_.slow) return;
    // Two processes at once are an error.
    if (!std::filesystem::create_directory("preparing")) throw std::runtime_error("the data is being prepared");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::filesystem::remove("preparing");
  }

  void load_state(const fulgur::StateTree&) override {
    fulgur::log::info(is_set_up_ ? "load_state after setup" : "load_state before setup");
  }
  fulgur::StateTree state() const override {
    return options_.slow ? fulgur::StateTree::map({{"seen", true}}) : fulgur::StateTree();
  }
  void setup(fulgur::TrainerFn) override {
    if (options_.slow) fulgur::log::info("setup was called");
    is_set_up_ = true;
  }
  fulgur::StateTree exported_values() const override { return fulgur::StateTree::map({{"width", 5}}); }

  fulgur::Loaders loaders(fulgur::RunningStage stage) override {
    const bool train = stage == fulgur::RunningStage::train;
    const char* const rank = std::getenv("RANK");
    const std::string other = rank && std::string(rank) == "1" ? options_.other_on_rank_1 : "none";
    int64_t count = train ? options_.num_train : options_.num_eval;
    // As many samples of a rank as the others have: theirs is filled up.
    if (other == (train ? "samples" : "eval_samples")) --count;
    if (count == 0) return {};
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(stage) + 1);
    Tensor x = at::randn({count, 5}, generator, at::kDouble);
    Tensor y = at::tanh(x.slice(1, 0, 2) - 2 * x.slice(1, 2, 4));
    Batch samples({Batch::Entry{"x", x.to(at::kFloat)}, Batch::Entry{"y", y.to(at::kFloat)},
                   Batch::Entry{"index", at::arange(count)}});
    if (train && !options_.stream.empty())
      return {
          std::make_shared<fulgur::IterableLoader>(std::make_shared<Stream>(std::move(samples), options_.stream),
                                                   fulgur::IterableLoaderOptions{.batch_size = options_.batch_size})};
    if (!train && options_.eval == "stream_of_blocks")
      return {
          std::make_shared<fulgur::IterableLoader>(std::make_shared<BlockStream>(std::move(samples)),
                                                   fulgur::IterableLoaderOptions{.batch_size = options_.batch_size})};
    fulgur::DataLoaderOptions options{
        .batch_size = options_.batch_size, .shuffle = train && options_.shuffle, .name = train ? "train" : "other"};
    options.num_workers = options_.num_workers;
    if (other == "batch_size") options.batch_size *= 2;
    if (other == "shuffle" && train) options.shuffle = !options.shuffle;
    if (options_.selfish) options.sampler = std::make_shared<Selfish>(count), options.shuffle = false;
    if (!train && options_.eval != "set") {
      options.batch_sampler =
          std::make_shared<ProbeBatches>(count, options_.batch_size, options_.eval == "batches_of_blocks");
      options.batch_size = 1;
    }
    fulgur::Loaders loaders;
    if (train && options_.second > 0) {
      Batch part;
      for (const auto& [name, value] : samples) part.add(name, std::get<Tensor>(value).narrow(0, 0, options_.second));
      loaders.push_back(
          std::make_shared<fulgur::DataLoader>(std::make_shared<fulgur::TensorDataset>(std::move(part)), options));
    }
    loaders.insert(loaders.begin(), std::make_shared<fulgur::DataLoader>(
                                        std::make_shared<fulgur::TensorDataset>(std::move(samples)), options));
    return loaders;
  }

 private:
  Options options_;
  bool is_set_up_ = false;
};
FULGUR_REGISTER(fulgur::DataModule, ProbeData, "A little regression.");

class ProbeCallback : public fulgur::Callback {
 public:
  struct Options {
    int64_t stop_rank = -1, stop_step = 0, signal_rank = -1, signal_step = 0, signal = SIGTERM, sleep_ms = 0,
            eval_sleep_ms = 0;
    std::string signal_place = "batch_end", sleep_until, seen;
    bool halves_in_validation = false, gathers = false, holds_over_step = false;
    void fields(Fields& f) {
      f(holds_over_step, "holds_over_step", "Keeps parameters whole from before a step to the end of the batch.");
      f(gathers, "gathers", "Compares what gather gives with parameters that are whole.");
      f(halves_in_validation, "halves_in_validation", "Halves the weights at the end of each validation.");
      f(stop_rank, "stop_rank", "The rank that asks for a stop.");
      f(stop_step, "stop_step", "Behind this step.");
      f(signal_rank, "signal_rank", "The rank that sends itself a signal.");
      f(signal_step, "signal_step", "Behind this step.");
      f(signal, "signal", "Its number.");
      f(signal_place, "signal_place", "Where the signal is sent; behind the step for batch_end, from it on elsewhere.")
          .one_of({"batch_end", "sanity_check", "train_start", "epoch_start", "second_epoch_start", "batch_start",
                   "before_backward", "after_backward", "before_step", "before_zero_grad", "validation_start",
                   "validation_batch", "validation_end", "evaluation_batch", "epoch_end", "save", "train_end"});
      f(sleep_ms, "sleep_ms", "Pause behind each batch.");
      f(eval_sleep_ms, "eval_sleep_ms", "Pause before each batch of an evaluation.");
      f(sleep_until, "sleep_until", "No pause once this file is there.");
      f(seen, "seen", "Folder in which each rank notes the indices of the samples that it trained on.");
    }
  };
  explicit ProbeCallback(const Options& options) : options_(options) {}

  void on_train_batch_end(fulgur::RunContext& run, const fulgur::StepOutput&, const Batch& batch, int64_t) override {
    if (!options_.seen.empty()) note(run, batch);
    check_gather(run);
    held_.reset();
    if (options_.sleep_ms > 0 && (options_.sleep_until.empty() || ::access(options_.sleep_until.c_str(), F_OK) != 0))
      ::usleep(static_cast<useconds_t>(options_.sleep_ms) * 1000);
    const int64_t step = run.progress().global_step;
    if (run.rank() == options_.stop_rank && step == options_.stop_step) run.request_stop("the probe asked for it");
    if (step == options_.signal_step) at(run, "batch_end");
  }

  void on_sanity_check_start(fulgur::RunContext& run) override { at(run, "sanity_check"); }
  void on_train_start(fulgur::RunContext& run) override { at(run, "train_start"); }
  void on_train_end(fulgur::RunContext& run) override {
    at(run, "train_end");
    if (options_.gathers) fulgur::log::info(cat("gathered parameters: ", gathered_));
  }
  void on_train_epoch_start(fulgur::RunContext& run) override {
    at(run, "epoch_start");
    if (run.progress().epoch == 1) at(run, "second_epoch_start");
  }
  void on_train_epoch_end(fulgur::RunContext& run) override { at(run, "epoch_end"); }
  void on_train_batch_start(fulgur::RunContext& run, const Batch&, int64_t) override { at(run, "batch_start"); }
  void on_before_backward(fulgur::RunContext& run, const Tensor&) override {
    at(run, "before_backward");
    if (!options_.gathers) return;
    for (const auto& [name, value] : fulgur::unique_parameters(run.module())) static_cast<void>(run.gather(value));
  }
  void on_after_backward(fulgur::RunContext& run) override { at(run, "after_backward"); }
  void on_before_optimizer_step(fulgur::RunContext& run, fulgur::Optimizer&) override {
    at(run, "before_step");
    if (options_.holds_over_step) held_ = run.run_weights().whole_parameters();
  }
  void on_before_zero_grad(fulgur::RunContext& run, fulgur::Optimizer&) override { at(run, "before_zero_grad"); }
  void on_validation_start(fulgur::RunContext& run) override { at(run, "validation_start"); }
  void on_validation_batch_start(fulgur::RunContext& run, const Batch&, int64_t, int64_t) override {
    at(run, "validation_batch");
    check_gather(run);
    before_evaluation_batch(run);
  }
  void on_test_batch_start(fulgur::RunContext& run, const Batch&, int64_t, int64_t) override {
    before_evaluation_batch(run);
  }
  void on_predict_batch_start(fulgur::RunContext& run, const Batch&, int64_t, int64_t) override {
    before_evaluation_batch(run);
  }
  void on_validation_epoch_end(fulgur::RunContext& run) override {
    check_gather(run);
    if (!options_.halves_in_validation) return;
    const at::NoGradGuard no_grad;
    const auto whole = run.run_weights().whole_parameters();
    for (const auto& parameter : fulgur::unique_parameters(run.module())) parameter.value.mul_(0.5);
  }
  void on_validation_end(fulgur::RunContext& run) override { at(run, "validation_end"); }
  void on_checkpoint_published(fulgur::RunContext& run, const fulgur::CheckpointInfo&) override { at(run, "save"); }

 private:
  void check_gather(fulgur::RunContext& run) {
    if (!options_.gathers) return;
    const auto parameters = fulgur::unique_parameters(run.module());
    bool is_refused = false;
    try {
      run.gather(parameters[0].value.detach());
    } catch (const fulgur::Error&) {
      is_refused = true;
    }
    if (!is_refused) throw std::runtime_error("gather takes an alias of a parameter");
    std::vector<Tensor> copies;
    for (const auto& [name, value] : parameters) copies.push_back(run.gather(value));
    const auto whole = run.run_weights().whole_parameters();
    for (size_t i = 0; i < copies.size(); ++i) {
      const Tensor& value = parameters[i].value;
      if (value.sizes() != copies[i].sizes() || value.strides() != copies[i].strides() ||
          !at::equal(value, copies[i]) || !at::equal(value, run.gather(value)) || copies[i].requires_grad() ||
          copies[i].is_alias_of(value))
        throw std::runtime_error("gather gives another value of " + parameters[i].name);
      ++gathered_;
    }
  }

  void before_evaluation_batch(fulgur::RunContext& run) {
    if (run.batch_idx() == 3) at(run, "evaluation_batch");
    ::usleep(static_cast<useconds_t>(options_.eval_sleep_ms) * 1000);
  }

  // `0 17`: entry `index` of the first loader has sample 17.
  void note(fulgur::RunContext& run, const Batch& batch) {
    std::ofstream file(cat(options_.seen, "/", run.rank()), std::ios::app);
    for (const auto& [name, value] : batch) {
      if (!name.ends_with("index")) continue;
      const Tensor indices = std::get<Tensor>(value).to(at::kCPU);
      for (int64_t i = 0; i < indices.numel(); ++i)
        file << (name == "index" ? "0" : name.substr(0, name.find('.'))) << ' ' << indices.const_data_ptr<int64_t>()[i]
             << '\n';
    }
  }

  void at(fulgur::RunContext& run, std::string_view place) {
    if (place != options_.signal_place || run.rank() != options_.signal_rank ||
        run.progress().global_step < options_.signal_step || std::exchange(sent_, true))
      return;
    ::raise(static_cast<int>(options_.signal));
  }

  Options options_;
  bool sent_ = false;
  int64_t gathered_ = 0;
  std::unique_ptr<fulgur::WholeParameters> held_;
};
FULGUR_REGISTER(fulgur::Callback, ProbeCallback, "Stops and signals.");

}  // namespace
