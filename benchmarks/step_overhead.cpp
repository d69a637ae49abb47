// C1: what the Trainer adds to a step of a hand-written loop. Linear(32, 2), batch 8, SGD, 5,000 batches made before,
// 10 callbacks that do nothing and one logged value per step; one thread. There are two hand-written loops: over the
// batches as they are in memory, and over the loader that the Trainer has too. These and the Trainer, without and with
// captured steps, are run in turn, 7 times, and the least and the median of each are printed. With `--report FILE` they
// are written there, for benchmarks/run.sh.
//
//   cmake --build build/release --target step_overhead && OMP_NUM_THREADS=1 build/release/bin/step_overhead
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "cpp/bench.h"
#include "fulgur/core/text/log.h"
#include "fulgur/loggers/memory_logger.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/trainer/trainer.h"

using namespace fulgur;

namespace {

constexpr int64_t kSteps = 5000;
constexpr int kRepeats = 7;

using bench::cpu_seconds;

const std::vector<Batch>& batches() {
  static const std::vector<Batch> all = [] {
    at::manual_seed(1);
    std::vector<Batch> made;
    for (int64_t i = 0; i < kSteps; ++i) made.push_back(Batch{at::randn({8, 32}), at::randn({8, 2})});
    return made;
  }();
  return all;
}

class PreparedLoader final : public Loader {
 public:
  std::optional<int64_t> size() const override { return kSteps; }
  std::optional<int64_t> samples() const override { return kSteps * 8; }
  int64_t batch_size() const override { return 8; }
  void start_epoch(int64_t) override { next_ = 0; }
  bool next(Batch& out) override {
    if (next_ == batches().size()) return false;
    out = batches()[next_++];
    return true;
  }
  void unread() override { --next_; }
  void configure(uint64_t, int64_t, int64_t) override {}
  StateTree state() const override { return {}; }
  void load_state(const StateTree&) override {}

 private:
  size_t next_ = 0;
};

struct Net : LightningModule {
  torch::nn::Linear layer{nullptr};
  Net() { layer = register_module("layer", torch::nn::Linear(32, 2)); }
  Tensor loss(const Batch& b) { return at::mse_loss(layer->forward(b[0]), b[1]); }
  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor value = loss(batch);
    log("train_loss", value);
    return value;
  }
  OptimizerPlan configure_optimizers() override { return std::make_shared<SGD>(SGD::Options{.lr = 0.01}); }
};

// Overrides hooks of every step, and does nothing in them.
struct Idle : Callback {
  void on_train_batch_start(RunContext&, const Batch&, int64_t) override {}
  void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t) override {}
};

struct Result {
  double seconds;
  double weight;  // both loops must come to the same
};

void hand_step(Net& net, const std::vector<Tensor>& params, const Batch& batch) {
  net.loss(batch).backward();
  at::NoGradGuard no_grad;
  std::vector<Tensor> grads;
  for (const Tensor& p : params) grads.push_back(p.grad());
  at::_fused_sgd_(params, grads, {}, 0.0, 0.0, 0.01, 0.0, false, false, false, std::nullopt, std::nullopt);
  for (const Tensor& p : params) p.mutable_grad().reset();
}

Result hand_loop(bool over_loader) {
  at::manual_seed(2);
  Net net;
  const std::vector<Tensor> params = net.parameters();
  PreparedLoader loader;
  const double start = cpu_seconds();
  if (over_loader) {
    Batch batch;
    while (loader.next(batch)) hand_step(net, params, batch);
  } else {
    for (const Batch& batch : batches()) hand_step(net, params, batch);
  }
  return {cpu_seconds() - start, params[0].sum().item<double>()};
}

Result trainer_loop(bool captured) {
  at::manual_seed(2);
  struct Timed : Callback {
    double start = 0, seconds = 0;
    void on_train_start(RunContext&) override { start = cpu_seconds(); }
    void on_train_end(RunContext&) override { seconds = cpu_seconds() - start; }
  };
  auto timed = std::make_shared<Timed>();
  fulgur::detail::ComponentAccess::find_overridden<Callback>(*timed);
  TrainerOptions options;
  options.accelerator = "cpu";
  options.capture = captured;
  options.max_epochs = 1;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.default_root_dir = std::filesystem::temp_directory_path() / "fulgur_step_overhead";
  TrainerComponents components;
  components.loggers = {std::make_shared<MemoryLogger>()};
  components.callbacks = {timed};
  for (int i = 0; i < 10; ++i) {
    auto idle = std::make_shared<Idle>();
    fulgur::detail::ComponentAccess::find_overridden<Callback>(*idle);
    components.callbacks.push_back(idle);
  }
  auto net = std::make_shared<Net>();
  const FitReport report = Trainer(options, components).fit(net, DataSource(std::make_shared<PreparedLoader>()));
  if (captured && report.not_captured) throw std::runtime_error(*report.not_captured);
  std::filesystem::remove_all(options.default_root_dir);
  return {timed->seconds, net->layer->weight.sum().item<double>()};
}

double microseconds(const std::vector<double>& seconds, bool median) {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return 1e6 * (median ? sorted[sorted.size() / 2] : sorted.front()) / static_cast<double>(kSteps);
}

// One loop alone, for a profiler.
int repeat(const std::string& name) {
  const std::map<std::string, std::function<Result()>> loops = {{"hand", [] { return hand_loop(true); }},
                                                                {"trainer", [] { return trainer_loop(false); }},
                                                                {"captured", [] { return trainer_loop(true); }}};
  const auto found = loops.find(name);
  if (found == loops.end()) {
    std::fprintf(stderr, "step_overhead [hand | trainer | captured | --report FILE]\n");
    return 2;
  }
  double least = found->second().seconds;
  for (int i = 1; i < 3 * kRepeats; ++i) least = std::min(least, found->second().seconds);
  std::printf("%s: %.2f us/step\n", name.c_str(), 1e6 * least / static_cast<double>(kSteps));
  return 0;
}

}  // namespace

int main(int count, char** values) {
  bench::prepare();
  log::set_level(log::Level::error);
  (void)batches();
  if (count == 2) return repeat(values[1]);
  (void)hand_loop(false);
  (void)hand_loop(true);
  (void)trainer_loop(false);
  (void)trainer_loop(true);
  std::vector<double> plain, loader, trainer, captured;
  double weight = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const Result a = hand_loop(false);
    const Result b = hand_loop(true);
    const Result c = trainer_loop(false);
    const Result d = trainer_loop(true);
    if (a.weight != b.weight || a.weight != c.weight || a.weight != d.weight) {
      std::fprintf(stderr, "the loops came to different weights: %.17g, %.17g, %.17g and %.17g\n", a.weight, b.weight,
                   c.weight, d.weight);
      return 1;
    }
    weight = a.weight;
    plain.push_back(a.seconds);
    loader.push_back(b.seconds);
    trainer.push_back(c.seconds);
    captured.push_back(d.seconds);
  }
  if (count > 2) {
    const auto samples = [](const char* key, const std::vector<double>& list) {
      auto rows = nlohmann::json::array();
      for (const double value : list) rows.push_back({{key, value}});
      return rows;
    };
    const auto least = [](const std::vector<double>& seconds) {
      return *std::min_element(seconds.begin(), seconds.end());
    };
    bench::write_report(bench::Arguments(count, values),
                        {{"rows",
                          {{"by_hand", samples("cpu_s", plain)},
                           {"by_hand_loader", samples("cpu_s", loader)},
                           {"trainer", samples("cpu_s", trainer)},
                           {"captured", samples("cpu_s", captured)},
                           {"added", samples("added_s", {least(trainer) - least(plain)})},
                           {"added_loader", samples("added_s", {least(trainer) - least(loader)})}}},
                         {"weights", {{"sum", {weight}}}}});
    return 0;
  }
  const auto row = [](const char* name, const std::vector<double>& seconds) {
    std::printf("%-24s %10.2f %10.2f\n", name, microseconds(seconds, false), microseconds(seconds, true));
  };
  const auto difference = [](const char* name, const std::vector<double>& a, const std::vector<double>& b) {
    std::printf("%-24s %10.2f %10.2f\n", name, microseconds(a, false) - microseconds(b, false),
                microseconds(a, true) - microseconds(b, true));
  };
  std::printf("C1 step overhead, Linear(32,2), batch 8, SGD, %lld steps, 10 callbacks, 1 logged value, CPU time\n",
              static_cast<long long>(kSteps));
  std::printf("%-24s %10s %10s\n", "us/step", "min", "median");
  row("by hand, batches as are", plain);
  row("by hand, same loader", loader);
  row("Trainer", trainer);
  row("Trainer, captured", captured);
  difference("over batches as are", trainer, plain);
  difference("over the same loader", trainer, loader);
}
