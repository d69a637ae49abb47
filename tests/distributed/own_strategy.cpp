// A strategy as a user writes it, for many processes: local SGD. Each rank trains alone, and every few steps all take
// the mean of their weights. It joins the ranks by a DDPStrategy, and `trainer` launches it by its `launch_plan`.
#include <ATen/core/grad_mode.h>
#include <fulgur/core/contracts/collectives.h>
#include <fulgur/core/contracts/module.h>
#include <fulgur/core/contracts/precision.h>
#include <fulgur/core/contracts/registry.h>
#include <fulgur/core/contracts/strategy.h>
#include <fulgur/strategies/ddp.h>

namespace {

using namespace fulgur;

class LocalSgd final : public Strategy {
 public:
  struct Options {
    int64_t every = 1;
    void fields(Fields& f) { f(every, "every", "Steps between two means of the weights.").at_least(1); }
  };
  explicit LocalSgd(const Options& options) : options_(options) {}

  std::string name() const override { return "LocalSgd"; }
  DeviceUse device_use() const override { return ranks_.device_use(); }
  std::optional<LaunchPlan> launch_plan() const override { return LaunchPlan{}; }
  void configure(StrategySetup setup) override { ranks_.configure(std::move(setup)); }
  at::Device device() const override { return ranks_.device(); }
  int64_t rank() const override { return ranks_.rank(); }
  int64_t world_size() const override { return ranks_.world_size(); }
  const ProcessPlace& place() const override { return ranks_.place(); }
  Collectives& collectives() override { return ranks_.collectives(); }
  Precision& precision() override { return ranks_.precision(); }
  void attach(LightningModule& module) override { ranks_.attach(module); }
  void backward(LightningModule& module, const Tensor& loss, GradSync, const BackwardOptions& options) override {
    module.backward(loss, options);
  }
  void after_step(LightningModule& module, int64_t global_step) override {
    if (global_step % options_.every != 0) return;
    const at::NoGradGuard no_grad;
    for (Tensor& weight : module.parameters()) weight.copy_(collectives().all_reduce(weight, ReduceOp::mean));
  }
  std::string describe() const override { return ranks_.describe(); }
  void abandon() noexcept override { ranks_.abandon(); }
  void teardown() noexcept override { ranks_.teardown(); }

 private:
  Options options_;
  DDPStrategy ranks_{DDPStrategy::Options{}};
};

FULGUR_REGISTER(Strategy, LocalSgd, "Local SGD: the mean of the weights every few steps.");

}  // namespace
