// Steps of fulgur::Trainer on batches that are on the device.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <c10/util/ScopeExit.h>

#include <cstdio>

#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/text/log.h"
#include "fulgur/models/gpt.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/strategies/half_precision.h"
#include "fulgur/trainer/trainer.h"
#include "nets.h"

namespace gpu_bench {
namespace {

using at::Tensor;
using fulgur::Batch;

std::shared_ptr<fulgur::Optimizer> make_optimizer(const Case& work) {
  if (work.text("optimizer", "adamw") == "adamw") {
    fulgur::AdamW::Options options;
    options.lr = work.values.at("lr");
    return std::make_shared<fulgur::AdamW>(options);
  }
  fulgur::SGD::Options options;
  options.lr = work.values.at("lr");
  options.momentum = 0.9;
  options.nesterov = true;
  return std::make_shared<fulgur::SGD>(options);
}

struct Classifier final : fulgur::LightningModule {
  explicit Classifier(const Case& work_) : work(work_), net(register_module("net", make_net(work_))) {}
  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor loss = at::cross_entropy_loss(net->forward(batch[0]), batch[1]);
    if (work.is("log")) log("train_loss", loss);
    return loss;
  }
  fulgur::OptimizerPlan configure_optimizers() override { return make_optimizer(work); }
  const Case& work;
  std::shared_ptr<Net> net;
};

struct Text final : fulgur::GPT {
  Text(const Case& work_, const Options& options) : GPT(options), work(work_) {}
  fulgur::OptimizerPlan configure_optimizers() override { return make_optimizer(work); }
  const Case& work;
};

/// Batches that are on the device already, again and again.
class Prepared : public fulgur::Loader {
 public:
  Prepared(int64_t batch_size, int64_t steps) : batch_size_(batch_size), steps_(steps) {}
  std::optional<int64_t> size() const override { return steps_; }
  std::optional<int64_t> samples() const override { return steps_ * batch_size_; }
  int64_t batch_size() const override { return batch_size_; }
  void start_epoch(int64_t) override { next_ = 0; }
  bool next(Batch& out) override {
    if (next_ == steps_) return false;
    out = batch(next_++);
    return true;
  }
  void unread() override { --next_; }
  void configure(uint64_t, int64_t, int64_t) override {}
  fulgur::StateTree state() const override { return {}; }
  void load_state(const fulgur::StateTree&) override {}

 protected:
  virtual Batch batch(int64_t index) = 0;

 private:
  int64_t batch_size_, steps_, next_ = 0;
};

class Few final : public Prepared {
 public:
  Few(const Case& work, int64_t steps) : Prepared(work.number("batch"), steps), batches_(make_batches(work)) {}

 protected:
  Batch batch(int64_t index) override { return batches_[static_cast<size_t>(index) % batches_.size()]; }

 private:
  std::vector<Batch> batches_;
};

/// `pool` images on the device with their channels innermost, in another order each epoch, drawn on the device.
class Pool final : public Prepared {
 public:
  Pool(const Case& work, int64_t steps)
      : Prepared(work.number("batch"), steps), per_epoch_(work.number("pool") / work.number("batch")) {
    at::manual_seed(2);
    const auto floats = at::TensorOptions(work.device()).dtype(at::kFloat);
    const int64_t pool = work.number("pool"), size = work.number("image");
    const auto precision = work.text("precision", "32-true");
    const auto dtype = precision == "16-true" ? at::kHalf : precision == "bf16-true" ? at::kBFloat16 : at::kFloat;
    images_ = at::randn({pool, size, size, 3}, floats).to(dtype);
    labels_ = at::randint(work.number("classes"), {pool}, floats.dtype(at::kLong));
  }

 protected:
  Batch batch(int64_t index) override {
    if (index % per_epoch_ == 0) order_ = at::randperm(images_.size(0), labels_.options());
    const Tensor rows = order_.narrow(0, index % per_epoch_ * batch_size(), batch_size());
    return {images_.index_select(0, rows).permute({0, 3, 1, 2}), labels_.index_select(0, rows)};
  }

 private:
  int64_t per_epoch_;
  Tensor images_, labels_, order_;
};

struct Stamping final : fulgur::Callback {
  Stamping(const Case& work_, Stretches& stretches_) : work(work_), stretches(stretches_) {}
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput& output, const Batch&, int64_t) override {
    const int64_t warmup = work.number("warmup");
    ++done;
    if (done == 1) losses.push_back(output.loss.item<double>());
    if (done >= warmup && (done - warmup) % work.number("steps") == 0) stretches.stamp();
    if (done == total()) losses.push_back(output.loss.item<double>());
  }
  int64_t total() const { return work.number("warmup") + work.number("steps") * work.number("stretches"); }
  const Case& work;
  Stretches& stretches;
  int64_t done = 0;
  std::vector<double> losses;
};

template <class M>
json fit(const Case& work, const std::shared_ptr<M>& module, double gain) {
  module->to(work.device());
  fill_weights(*module, gain);
  Stretches stretches(work);
  const auto stamping = std::make_shared<Stamping>(work, stretches);
  fulgur::TrainerOptions options;
  options.accelerator = work.accelerator->name();
  options.default_root_dir = work.scratch;
  options.max_epochs = 1;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.log_every_n_steps = work.number_or("log_every", 50);
  options.logger.enabled = work.is("log");
  if (work.is("log")) options.logger.loggers = {fulgur::Spec<fulgur::Logger>("CsvLogger")};
  options.capture = work.is("capture");
  options.memory_format = *fulgur::enum_from<fulgur::MemoryFormat>(work.text("memory_format", "contiguous"));
  options.benchmark = work.is("benchmark");
  options.float32_matmul_precision = work.text("matmul", "highest");
  // What the precision of products does not reach: cuDNN's own switch, equal in the peers.
  at::globalContext().setAllowTF32CuDNN(work.text("matmul", "highest") != "highest");
  fulgur::TrainerComponents components;
  components.add(stamping);
  const auto precision = work.text("precision", "32-true");
  if (precision == "16-true")
    components.precision =
        std::make_shared<fulgur::Float16True>(fulgur::Float16True::Options{.keep_norm_fp32 = true, .scaler = {}});
  else if (precision == "bf16-true")
    components.precision =
        std::make_shared<fulgur::BFloat16True>(fulgur::BFloat16True::Options{.keep_norm_fp32 = true});
  else
    options.precision = fulgur::Spec<fulgur::Precision>(precision);
  std::shared_ptr<fulgur::Loader> loader;
  if (work.values.contains("pool"))
    loader = std::make_shared<Pool>(work, stamping->total());
  else
    loader = std::make_shared<Few>(work, stamping->total());
  const int64_t parameters = count_parameters(*module);
  // A step that cannot be captured is made as it is, with a warning: that is no figure of capture.
  std::string printed;
  fulgur::log::reset_warnings();
  // What earlier cases of this process left in the allocator is not this one's; the peers begin in the same way.
  if (const auto device = work.device(); device.is_cuda()) {
    fulgur::release_cached_memory(device);
    fulgur::reset_peak_memory(device);
  }
  fulgur::log::set_sink(
      [](fulgur::log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
      &printed);
  const auto quiet_end = c10::make_scope_exit([] { fulgur::log::set_sink({}, nullptr); });
  const fulgur::FitReport report = fulgur::Trainer(options, components).fit(module, fulgur::DataSource(loader));
  std::fputs(printed.c_str(), stderr);
  if (const auto at = printed.find("steps are not captured"); options.capture && at != std::string::npos)
    throw std::runtime_error(printed.substr(at, printed.find('\n', at) - at));
  json result = {
      {"samples", stretches.samples(work.number("steps"))}, {"parameters", parameters}, {"losses", stamping->losses}};
  for (const auto& peak : report.peak_memory)
    if (peak.device.starts_with("cuda"))
      for (auto& sample : result["samples"]) sample["peak_gib"] = static_cast<double>(peak.bytes) / (1 << 30);
  if (const auto memory = fulgur::device_memory(work.device()))
    for (auto& sample : result["samples"])
      sample["peak_reserved_gib"] = static_cast<double>(memory->peak_reserved) / (1 << 30);
  return result;
}

}  // namespace

json run_training(const Case& work) {
  if (work.is("capture") && !work.device().is_cuda()) throw NotMeasured("steps are captured on a GPU only");
  if (work.text("model", "") != "gpt") return fit(work, std::make_shared<Classifier>(work), 1.4);
  fulgur::GPT::Options options;
  options.vocab_size = work.number("vocab");
  options.block_size = work.number("length");
  options.n_layer = work.number("layers");
  options.n_head = work.number("heads");
  options.n_embd = work.number("width");
  options.activation_checkpointing = work.text("checkpointing", "none");
  return fit(work, std::make_shared<Text>(work, options), 0);
}

}  // namespace gpu_bench
