// What steady steps of fulgur::Trainer ask of the device: batches from the host through the loader, one logged value a
// step, the Trainer's defaults but for what the case names. The counters are those of simulated CUDA
// (docs/simulated_gpu.md).
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <c10/util/ScopeExit.h>
#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

#include <ATen/DeviceAccelerator.h>
#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/callbacks/progress_bar.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/text/log.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/models/cnn_classifier.h"
#include "fulgur/models/gpt.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/cyclic_schedules.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/strategies/fsdp.h"
#include "fulgur/trainer/trainer.h"
#include "nets.h"

namespace gpu_bench {
namespace {

using at::Tensor;
using fulgur::Batch;

/// As many as SimulatedCudaCounts has, or more; benchmarks/gpu/device_counts.py reads their names from its header.
using Counts = std::array<uint64_t, 64>;

Counts counts() {
  static auto* const read = reinterpret_cast<void (*)(uint64_t*)>(dlsym(RTLD_DEFAULT, "simulated_cuda_counts"));
  if (read == nullptr) throw NotMeasured("steps are counted on simulated CUDA only (scripts/simulated_gpu.sh)");
  Counts values{};
  read(values.data());
  return values;
}

fulgur::OptimizerPlan make_plan(const Case& work) {
  const double lr = work.values.at("lr");
  if (work.text("optimizer", "adamw") == "sgd") {
    fulgur::SGD::Options options;
    options.lr = lr;
    options.momentum = 0.9;
    options.nesterov = true;
    return std::make_shared<fulgur::SGD>(options);
  }
  fulgur::AdamW::Options options;
  options.lr = lr;
  const auto optimizer = std::make_shared<fulgur::AdamW>(options);
  if (!work.values.contains("one_cycle")) return optimizer;
  fulgur::OneCycleLR::Options schedule;
  schedule.max_lr = lr;
  schedule.cycle_momentum = work.is("cycle_momentum");
  return {optimizer, fulgur::SchedulerConfig{.scheduler = std::make_shared<fulgur::OneCycleLR>(schedule),
                                             .interval = fulgur::ScheduleInterval::step}};
}

struct CountedNet final : fulgur::LightningModule {
  explicit CountedNet(const Case& work_) : work(work_), net(register_module("net", make_net(work_))) {}
  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    Tensor x = batch[0];
    if (work.is("bytes")) x = x.permute({0, 3, 1, 2}).to(at::kFloat).div_(255);
    const Tensor loss = at::cross_entropy_loss(net->forward(x), batch[1]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  fulgur::OptimizerPlan configure_optimizers() override { return make_plan(work); }
  const Case& work;
  std::shared_ptr<Net> net;
};

template <class Model>
struct Counted final : Model {
  Counted(const Case& work_, const typename Model::Options& options) : Model(options), work(work_) {}
  fulgur::OptimizerPlan configure_optimizers() override { return make_plan(work); }
  const Case& work;
};

/// An order that both sides make from the same seed: rows are gathered, as shuffled ones are.
struct Permutation final : fulgur::Sampler {
  explicit Permutation(int64_t rows) : order_(at::randperm(rows)) {}
  int64_t size(int64_t, int64_t) const override { return order_.size(0); }
  std::vector<int64_t> order(const fulgur::SamplerContext&) const override {
    return {order_.const_data_ptr<int64_t>(), order_.const_data_ptr<int64_t>() + order_.size(0)};
  }
  bool shuffles() const override { return true; }

 private:
  Tensor order_;
};

/// peers/counts.py makes the same.
std::shared_ptr<fulgur::Loader> make_loader(const Case& work) {
  at::manual_seed(2);
  const int64_t rows = work.number("batch") * work.number("total") * work.number_or("ranks", 1);
  Tensor x, y;
  if (work.values.contains("vocab")) {
    x = at::randint(work.number("vocab"), {rows, work.number("length")}, at::kLong);
    y = at::randint(work.number("vocab"), {rows, work.number("length")}, at::kLong);
  } else {
    const int64_t size = work.number_or("image", 0);
    if (work.is("bytes"))
      x = at::randint(256, {rows, size, size, 3}, at::kByte);
    else if (size > 0)
      x = at::randn({rows, work.number_or("channels", 3), size, size});
    else
      x = at::randn({rows, work.number("width")});
    y = at::randint(work.number("classes"), {rows}, at::kLong);
  }
  fulgur::DataLoaderOptions options;
  options.batch_size = work.number("batch");
  options.num_workers = work.number_or("workers", 0);
  // DistributedSampler's own order if there are several ranks.
  if (work.number_or("ranks", 1) == 1) options.sampler = std::make_shared<Permutation>(rows);
  return std::make_shared<fulgur::DataLoader>(std::make_shared<fulgur::TensorDataset>(Batch{x, y}), options);
}

/// Reads the counters after the steps `from` and `to`.
struct Counting final : fulgur::Callback {
  explicit Counting(const Case& work_) : work(work_) {}
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput& output, const Batch&, int64_t) override {
    ++done;
    if (done == 1 || done == 2 || done == 5 || done == 10 || done == work.number("total"))
      losses.push_back(output.loss.item<double>());
    if (done == work.number("from")) {
      first = counts();
      // A run begins with the whole model.
      if (work.values.contains("sharding")) at::accelerator::resetPeakStats(work.device().index());
    }
    if (done != work.number("to")) return;
    // A save is written in the background.
    if (work.values.contains("save_every")) std::this_thread::sleep_for(std::chrono::seconds(1));
    last = counts();
    memory = fulgur::device_memory(work.device());
  }
  const Case& work;
  int64_t done = 0;
  Counts first{}, last{};
  std::vector<double> losses;
  std::optional<fulgur::DeviceMemory> memory;
};

template <class M>
json fit_counted(const Case& work, const std::shared_ptr<M>& module, double gain) {
  module->to(work.device());
  fill_weights(*module, gain);
  const auto counting = std::make_shared<Counting>(work);
  fulgur::TrainerOptions options;
  options.accelerator = work.accelerator->name();
  options.default_root_dir = work.scratch;
  options.max_epochs = 1;
  options.enable_progress_bar = false;
  options.log_every_n_steps = work.number_or("log_every", 50);
  options.capture = work.is("capture");
  options.memory_format = *fulgur::enum_from<fulgur::MemoryFormat>(work.text("memory_format", "contiguous"));
  options.float32_matmul_precision = work.text("matmul", "highest");
  at::globalContext().setAllowTF32CuDNN(work.text("matmul", "highest") != "highest");
  options.precision = fulgur::Spec<fulgur::Precision>(work.text("precision", "32-true"));
  if (work.values.contains("clip")) options.gradient_clip_val = work.values.at("clip").get<double>();
  if (work.number_or("ranks", 1) > 1) {
    options.devices = static_cast<int>(work.number("ranks"));
    options.strategy = fulgur::Spec<fulgur::Strategy>("ddp");
    if (work.values.contains("sharding")) {
      fulgur::FSDPStrategy::Options sharded;
      sharded.sharding = *fulgur::enum_from<fulgur::FSDPStrategy::Sharding>(work.text("sharding", ""));
      options.strategy = fulgur::Spec<fulgur::Strategy>::of<fulgur::FSDPStrategy>("fsdp", sharded);
    }
  }
  fulgur::TrainerComponents components;
  components.add(counting);
  if (work.is("progress_bar"))
    components.add(std::make_shared<fulgur::ProgressBar>(
        fulgur::ProgressBar::Options{.refresh = {1e-9, fulgur::Interval::Unit::seconds}}));
  if (work.values.contains("save_every")) {
    fulgur::ModelCheckpoint::Options save;
    save.every_n_train_steps = work.number("save_every");
    components.add(std::make_shared<fulgur::ModelCheckpoint>(save));
  }
  const auto loader = make_loader(work);
  // Dropout has the same numbers on both sides.
  at::manual_seed(3);
  const int64_t parameters = count_parameters(*module);
  // A step that cannot be captured is made as it is, with a warning: that is no figure of capture.
  std::string log;
  if (options.capture)
    fulgur::log::set_sink([](fulgur::log::Level, const std::string& line,
                             void* user) { *static_cast<std::string*>(user) += line + "\n"; },
                          &log);
  const auto quiet_end = c10::make_scope_exit([] { fulgur::log::set_sink({}, nullptr); });
  fulgur::Trainer(options, components).fit(module, fulgur::DataSource(loader));
  std::fputs(log.c_str(), stderr);
  if (const auto at = log.find("steps are not captured"); at != std::string::npos)
    throw std::runtime_error(log.substr(at, log.find('\n', at) - at));
  json result = {
      {"first", counting->first}, {"last", counting->last}, {"parameters", parameters}, {"losses", counting->losses}};
  if (counting->memory) {
    result["peak_allocated"] = counting->memory->peak_allocated;
    result["peak_reserved"] = counting->memory->peak_reserved;
  }
  return result;
}

}  // namespace

json run_counts(const Case& work) {
  counts();
  const auto model = work.text("model", "");
  if (model == "gpt") {
    fulgur::GPT::Options options;
    options.vocab_size = work.number("vocab");
    options.block_size = work.number("length");
    options.n_layer = work.number("layers");
    options.n_head = work.number("heads");
    options.n_embd = work.number("width");
    return fit_counted(work, std::make_shared<Counted<fulgur::GPT>>(work, options), 0);
  }
  if (model == "cnn") {
    fulgur::CnnClassifier::Options options;
    options.dropout = work.values.at("dropout");
    return fit_counted(work, std::make_shared<Counted<fulgur::CnnClassifier>>(work, options), 1.4);
  }
  return fit_counted(work, std::make_shared<CountedNet>(work), 1.4);
}

}  // namespace gpu_bench
