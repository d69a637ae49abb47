// C10: the work of both ranks in one process, through the strategy dp, on two virtual devices.
//
//   c10_dp --blocks 5 --steps 8 --inputs FOLDER --report FILE
//
// Each device computes the batch that a rank has in c10_fulgur, with one thread.
#include <ATen/ops/cat.h>

#include "ddp_net.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/strategies/dp.h"
#include "fulgur/strategies/true_precision.h"
#include "fulgur/virtual_devices/virtual_devices.h"

using at::Tensor;

namespace {

constexpr int64_t kDevices = 2;

class Process {
 public:
  Process(const bench::Inputs& inputs, fulgur::DPStrategy& strategy)
      : inputs_(inputs), strategy_(strategy), net_(false) {
    strategy_.attach(net_);
    strategy_.attach_replicas(net_, {std::make_shared<bench::Net>(false)});
    fulgur::ParamGroup group;
    for (const auto& parameter : net_.named_parameters()) {
      group.params.push_back(parameter.value());
      group.names.push_back(parameter.key());
    }
    optimizer_.attach({group});
  }

  void reset() {
    net_.load(inputs_.weights);
    number_ = 0;
  }

  /// The loss of the first device's part: that of rank 0.
  Tensor step() {
    // Both ranks' batches, one after the other.
    const auto joined = [&](size_t entry) {
      return at::cat({inputs_.batch(number_, 0)[entry], inputs_.batch(number_, 1)[entry]});
    };
    const fulgur::Batch batch = fulgur::Batch{joined(0), joined(1)}.to(strategy_.device());
    ++number_;
    const auto parts = strategy_.split(net_, batch, fulgur::RunningStage::train);
    std::vector<Tensor> losses(parts.size());
    strategy_.run_parts(parts.size(),
                        [&](size_t i) { losses[i] = parts[i].module->training_step(parts[i].batch, 0).loss; });
    Tensor loss = losses[0] * parts[0].share;
    for (size_t i = 1; i < parts.size(); ++i) loss = loss + losses[i].to(strategy_.device()) * parts[i].share;
    strategy_.backward(net_, loss, fulgur::GradSync::now, {});
    strategy_.optimizer_step(optimizer_, {}, std::nullopt);
    optimizer_.zero_grad();
    return losses[0];
  }

 private:
  const bench::Inputs& inputs_;
  fulgur::DPStrategy& strategy_;
  bench::Net net_;
  fulgur::SGD optimizer_{fulgur::SGD::Options{.lr = bench::kRate}};
  int64_t number_ = 0;
};

void run(const bench::Arguments& arguments) {
  fulgur::enable_virtual_devices(kDevices);
  const bench::Inputs inputs(arguments);
  fulgur::DPStrategy strategy;
  strategy.configure({.devices = {fulgur::virtual_device(0), fulgur::virtual_device(1)},
                      .precision = std::make_shared<fulgur::Float32True>()});
  Process process(inputs, strategy);
  nlohmann::json losses, rows;
  process.reset();
  for (int64_t i = 0; i < bench::kComparedLosses; ++i) losses["ddp"].push_back(process.step().item<double>());
  const int64_t steps = arguments.number("steps");
  for (int64_t block = 0; block < arguments.number("blocks"); ++block) {
    process.reset();
    const double cpu = bench::cpu_seconds(), wall = bench::wall_seconds();
    for (int64_t i = 0; i < steps; ++i) process.step();
    const double wall_s = bench::wall_seconds() - wall;
    // Of both devices; a rank's CPU time is its own.
    rows["fulgur_dp"].push_back({{"wall_s", wall_s / static_cast<double>(steps)},
                                 {"cpu_s", (bench::cpu_seconds() - cpu) / static_cast<double>(steps * kDevices)}});
  }
  bench::write_report(arguments, {{"rows", rows}, {"losses", losses}});
  strategy.teardown();
}

}  // namespace

int main(int count, char** values) { return bench::run(count, values, run); }
