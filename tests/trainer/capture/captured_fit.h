#pragma once

#include <ATen/core/grad_mode.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>

#include "fulgur/core/state/rng.h"
#include "fulgur/core/state/state_bytes.h"
#include "fulgur/core/text/log.h"
#include "fulgur/strategies/single_device.h"
#include "trainer/boring.h"

namespace fulgur::test {

struct Counts {
  int64_t records = 0, replays = 0;
};

// Records the host's code instead of the device's work: while it records, what the code does to weights, gradients,
// optimizer and generator is undone.
class StandIn final : public GraphCapture {
 public:
  StandIn(LightningModule& module, std::vector<Optimizer*> optimizers, Counts& counts)
      : module_(module), optimizers_(std::move(optimizers)), counts_(counts) {}
  void record(const std::function<void()>& body) override {
    ++counts_.records;
    body_ = body;
    const auto before = weights(module_);
    const auto state = pack_state(optimizers_.front()->state());
    const StateTree generators = rng_state({at::kCPU});
    std::vector<std::pair<Tensor, Tensor>> gradients;
    for (auto& [name, value] : unique_parameters(module_))
      if (value.grad().defined()) gradients.emplace_back(value.grad(), value.grad().clone());
    const auto undo = [&] {
      at::NoGradGuard no_grad;
      for (auto& [name, value] : unique_parameters(module_)) value.copy_(before.at(name));
      for (const auto& [gradient, values] : gradients) gradient.copy_(values);
      optimizers_.front()->load_state(unpack_state(state));
      load_rng_state({at::kCPU}, generators);
    };
    try {
      body();
    } catch (...) {
      undo();
      throw;
    }
    undo();
  }
  void replay() override {
    ++counts_.replays;
    body_();
  }
  std::unique_ptr<GraphCapture> another() override { return std::make_unique<StandIn>(module_, optimizers_, counts_); }

 private:
  LightningModule& module_;
  std::vector<Optimizer*> optimizers_;
  Counts& counts_;
  std::function<void()> body_;
};

class Recording : public Strategy {
 public:
  explicit Recording(Counts& counts) : counts_(counts) {}
  std::string name() const override { return "recording"; }
  void configure(StrategySetup setup) override { inner_.configure(std::move(setup)); }
  at::Device device() const override { return inner_.device(); }
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  Collectives& collectives() override { return inner_.collectives(); }
  Precision& precision() override { return inner_.precision(); }
  void attach(LightningModule& module) override {
    module_ = &module;
    inner_.attach(module);
  }
  void start_training(LightningModule&, const std::vector<Optimizer*>& optimizers) override {
    optimizers_ = optimizers;
  }
  void backward(LightningModule& module, const Tensor& loss, GradSync sync, const BackwardOptions& options) override {
    inner_.backward(module, loss, sync, options);
  }
  std::unique_ptr<GraphCapture> make_graph_capture() override {
    return std::make_unique<StandIn>(*module_, optimizers_, counts_);
  }

 private:
  SingleDeviceStrategy inner_;
  Counts& counts_;
  LightningModule* module_ = nullptr;
  std::vector<Optimizer*> optimizers_;
};

// Rates that float32 has exactly, so that a rate on the device and one on the host give the same bits.
struct Captured : BoringModule {
  Captured() : BoringModule(0.25) {}
  OptimizerPlan configure_optimizers() override { return adamw_with_step_lr(0.03125, 4, 0.5); }
};

// Logs a host number that changes with each batch.
struct BatchIndexLogged : Captured {
  StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
    log("batch", static_cast<double>(batch_idx));
    return Captured::training_step(batch, batch_idx);
  }
};

template <class M>
struct Outcome {
  std::shared_ptr<M> module;
  std::map<std::string, Tensor> weights;
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  Counts counts;
  std::string told;
  FitReport report;
};

/// A change for `fit`: the run is on the CPU, with the default strategy.
inline void on_cpu(TrainerComponents& components) { components.strategy = nullptr; }

template <class M = Captured>
inline Outcome<M> fit(TrainerOptions options, bool captures, const std::function<void(TrainerComponents&)>& change = {},
                      const CheckpointChoice& from = {}, int64_t samples = 42,
                      const std::shared_ptr<DataModule>& data = nullptr) {
  Outcome<M> outcome;
  at::manual_seed(11);
  outcome.module = std::make_shared<M>();
  options.capture = captures;
  TrainerComponents components;
  components.seed = 5;
  components.loggers = {outcome.logger};
  components.strategy = std::make_shared<Recording>(outcome.counts);
  if (change) change(components);
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; },
      &outcome.told);
  outcome.report = Trainer(options, components).fit(outcome.module, data ? data : regression_data(samples, 0), from);
  log::set_sink({}, nullptr);
  outcome.weights = weights(*outcome.module);
  return outcome;
}

template <class M>
void check_same_logs(const Outcome<M>& a, const Outcome<M>& b, std::string_view name) {
  const auto left = a.logger->values(name), right = b.logger->values(name);
  REQUIRE(left.size() == right.size());
  REQUIRE_FALSE(left.empty());
  for (size_t i = 0; i < left.size(); ++i) {
    CHECK(left[i].first == right[i].first);
    // If a scaled loss overflows, the norm of the gradients is not finite in either.
    const bool same = std::abs(left[i].second - right[i].second) < 1e-5 || left[i].second == right[i].second ||
                      (std::isnan(left[i].second) && std::isnan(right[i].second));
    CAPTURE(i, left[i].second, right[i].second);
    CHECK(same);
  }
}

inline TrainerOptions three_epochs(const TemporaryFolder& folder) {
  TrainerOptions options = quiet(folder);
  options.max_epochs = 3;
  options.log_every_n_steps = 3;
  return options;
}

inline TrainerOptions three_epochs_on_cuda(const TemporaryFolder& folder) {
  TrainerOptions options = three_epochs(folder);
  options.accelerator = "cuda";
  return options;
}

/// On the device that the options name, with its real recorder.
inline void by_device(TrainerComponents& components) { components.strategy = nullptr; }

}  // namespace fulgur::test
