// C16: one rank of several that divide the parameters of the network; peers/ranks.py starts them.
//
//   c16_fulgur --variant parameters|gradients|optimizer --blocks 5 --steps 8 --inputs FOLDER --report FILE
//
// The variants are values of `sharding`; each layer is a unit.
#include "ddp_rank.h"
#include "fulgur/core/options/enum_names.h"
#include "fulgur/strategies/fsdp.h"
#include "fulgur/strategies/true_precision.h"

namespace {

void run(const bench::Arguments& arguments) {
  const std::string& variant = arguments.text("variant");
  const bench::Inputs inputs(arguments);
  fulgur::FSDPStrategy::Options options;
  for (const auto& [value, name] : enum_names(fulgur::FSDPStrategy::Sharding()))
    if (name == variant) options.sharding = value;
  options.units.value.emplace();
  for (int64_t i = 0; i < bench::kLayers; ++i) options.units.value->push_back("linear" + std::to_string(i));
  fulgur::FSDPStrategy strategy(options);
  strategy.configure({.devices = {at::Device(at::kCPU)},
                      .devices_are_auto = true,
                      .precision = std::make_shared<fulgur::Float32True>()});
  bench::Rank rank(inputs, strategy, /*norm=*/false);
  const bench::Way way{variant};

  nlohmann::json losses, rows;
  for (int64_t i = 0; i < bench::kComparedLosses; ++i) losses[variant].push_back(rank.step(way).item<double>());
  const int64_t steps = arguments.number("steps");
  for (int64_t block = 0; block < arguments.number("blocks"); ++block) {
    strategy.collectives().barrier("the next block");
    const double cpu = bench::cpu_seconds(), wall = bench::wall_seconds();
    for (int64_t i = 0; i < steps; ++i) rank.step(way);
    const double wall_s = bench::wall_seconds() - wall;
    rows["fulgur_" + variant].push_back({{"wall_s", wall_s / static_cast<double>(steps)},
                                         {"cpu_s", (bench::cpu_seconds() - cpu) / static_cast<double>(steps)}});
  }
  strategy.collectives().barrier("the end");
  if (strategy.rank() == 0) bench::write_report(arguments, {{"rows", rows}, {"losses", losses}});
  strategy.teardown();
}

}  // namespace

int main(int count, char** values) { return bench::run(count, values, run); }
