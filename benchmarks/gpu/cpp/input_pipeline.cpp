// Images from the host: computation alone, the copy alone, and both through the Trainer's loader.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>

#include <cstring>

#include "fulgur/data/data_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/trainer/trainer.h"
#include "nets.h"

namespace gpu_bench {
namespace {

using at::Tensor;
using fulgur::Batch;

struct Images final : fulgur::LightningModule {
  explicit Images(const Case& work) : net(register_module("net", make_net(work))) {}
  fulgur::StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor x = batch[0].permute({0, 3, 1, 2}).to(at::kFloat).div_(255);
    return at::cross_entropy_loss(net->forward(x), batch[1]);
  }
  fulgur::OptimizerPlan configure_optimizers() override {
    return std::make_shared<fulgur::SGD>(fulgur::SGD::Options{.lr = 0.01, .momentum = 0.9});
  }
  std::shared_ptr<Net> net;
};

struct StampingCopies final : fulgur::Callback {
  StampingCopies(const Case& work_, Stretches& stretches_) : work(work_), stretches(stretches_) {}
  void on_train_batch_end(fulgur::RunContext&, const fulgur::StepOutput&, const Batch&, int64_t) override {
    const int64_t warmup = work.number("warmup");
    if (++done >= warmup && (done - warmup) % work.number("steps") == 0) stretches.stamp();
  }
  const Case& work;
  Stretches& stretches;
  int64_t done = 0;
};

/// The same batch on the device again and again.
class Resident final : public fulgur::Loader {
 public:
  Resident(Batch batch, int64_t steps) : batch_(std::move(batch)), steps_(steps) {}
  std::optional<int64_t> size() const override { return steps_; }
  std::optional<int64_t> samples() const override { return steps_ * batch_.size(); }
  int64_t batch_size() const override { return batch_.size(); }
  void start_epoch(int64_t) override { next_ = 0; }
  bool next(Batch& out) override {
    if (next_++ == steps_) return false;
    out = batch_;
    return true;
  }
  void unread() override { --next_; }
  void configure(uint64_t, int64_t, int64_t) override {}
  fulgur::StateTree state() const override { return {}; }
  void load_state(const fulgur::StateTree&) override {}

 private:
  Batch batch_;
  int64_t steps_, next_ = 0;
};

json fit_with_loader(const Case& work, const std::shared_ptr<fulgur::Loader>& loader, int64_t steps) {
  const auto module = std::make_shared<Images>(work);
  Stretches stretches(work);
  fulgur::TrainerOptions options;
  options.accelerator = work.accelerator->name();
  options.default_root_dir = work.scratch;
  options.max_steps = steps;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = options.logger.enabled =
      false;
  options.memory_format = fulgur::MemoryFormat::channels_last;
  options.benchmark = true;
  options.precision = fulgur::Spec<fulgur::Precision>("bf16-mixed");
  fulgur::TrainerComponents components;
  components.seed = 1;
  components.add(std::make_shared<StampingCopies>(work, stretches));
  fulgur::Trainer(options, components).fit(module, fulgur::DataSource(loader));
  json result = {{"samples", stretches.samples(work.number("steps"))}, {"parameters", count_parameters(*module)}};
  return result;
}

double least(const json& samples) {
  double value = 1e9;
  for (const auto& sample : samples) value = std::min(value, sample.at("step_s").get<double>());
  return value;
}

/// Seconds of copying one batch to the device, from pinned memory where there is a GPU.
double copy_seconds(const Case& work, const Batch& batch) {
  const bool cuda = work.device().is_cuda();
  const Batch host = cuda && work.is("pinned") ? batch.pin_memory() : batch;
  constexpr int kCopies = 20;
  double start = 0;
  for (int i = -3; i < kCopies; ++i) {
    if (i == 0) {
      work.accelerator->synchronize(0);
      start = wall_seconds();
    }
    const Batch copy = cuda ? host.to(work.device(), /*non_blocking=*/true) : Batch{host[0].clone(), host[1].clone()};
  }
  work.accelerator->synchronize(0);
  return (wall_seconds() - start) / kCopies;
}

}  // namespace

json run_input(const Case& work) {
  at::manual_seed(1);
  const int64_t samples = work.number("pool"), size = work.number("image"), batch = work.number("batch");
  const int64_t steps = work.number("warmup") + work.number("steps") * work.number("stretches");
  const Batch all{at::randint(256, {samples, size, size, 3}, at::TensorOptions(at::kByte)),
                  at::randint(work.number("classes"), {samples}, at::TensorOptions(at::kLong))};
  const Batch one = all.narrow(0, batch);
  const double copy = copy_seconds(work, one);
  const double compute =
      least(fit_with_loader(work, std::make_shared<Resident>(one.to(work.device()), steps), steps)["samples"]);
  const auto loader = std::make_shared<fulgur::DataLoader>(
      std::make_shared<fulgur::TensorDataset>(all),
      fulgur::DataLoaderOptions{.batch_size = batch,
                                .shuffle = true,
                                .drop_last = true,
                                .num_workers = work.number("workers"),
                                .pin_memory = work.is("pinned") && work.device().is_cuda()});
  json result = fit_with_loader(work, loader, steps);
  for (auto& sample : result["samples"]) {
    sample["copy_s"] = copy;
    sample["compute_s"] = compute;
    sample["overlap"] = std::max(copy, compute) / sample["step_s"].get<double>();
  }
  return result;
}

}  // namespace gpu_bench
