// C10: one rank of several that train together through Fulgur's strategy; peers/ranks.py starts them.
//
//   c10_fulgur --variant plain|view|bn|sync_bn --blocks 5 --steps 8 --inputs FOLDER --report FILE
//
// plain: the strategy as it is by default, what it is made of done by hand (one all-reduce of all gradients after
// backward, one for each gradient, none), and an exchange in every fourth step; view: gradients in the buckets; bn: a
// network with BatchNorm; sync_bn: the same, normalised over all ranks.
#include <ATen/ops/cat.h>

#include <functional>

#include "ddp_rank.h"
#include "fulgur/strategies/true_precision.h"

using at::Tensor;
using bench::Rank;
using bench::Way;

namespace {

void reduce_each(fulgur::Collectives& ranks, const std::vector<Tensor>& gradients) {
  for (const Tensor& gradient : gradients) gradient.copy_(ranks.all_reduce(gradient, fulgur::ReduceOp::mean));
}

void reduce_flat(fulgur::Collectives& ranks, const std::vector<Tensor>& gradients) {
  std::vector<Tensor> parts;
  for (const Tensor& gradient : gradients) parts.push_back(gradient.view(-1));
  const Tensor reduced = ranks.all_reduce(at::cat(parts), fulgur::ReduceOp::mean);
  int64_t begin = 0;
  for (const Tensor& gradient : gradients) {
    gradient.copy_(reduced.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
    begin += gradient.numel();
  }
}

void run(const bench::Arguments& arguments) {
  const std::string& variant = arguments.text("variant");
  const bench::Inputs inputs(arguments);
  fulgur::DDPStrategy::Options options;
  options.gradient_as_bucket_view = variant == "view";
  fulgur::DDPStrategy strategy(options);
  // As many devices as ranks: `auto` takes what the environment says.
  strategy.configure({.devices = {at::Device(at::kCPU)},
                      .devices_are_auto = true,
                      .sync_batchnorm = variant == "sync_bn",
                      .precision = std::make_shared<fulgur::Float32True>()});
  Rank rank(inputs, strategy, variant == "bn" || variant == "sync_bn");
  std::vector<Way> ways;
  if (variant == "plain") {
    ways = {{"local", false},
            {"each", false, 1, reduce_each},
            {"flat", false, 1, reduce_flat},
            {"ddp"},
            {"no_sync", true, bench::kAccumulated}};
  } else {
    ways = {{variant}};
  }

  nlohmann::json losses, rows;
  // The warm-up too: buckets are made again after the first step.
  for (const Way& way : ways) {
    rank.reset();
    for (int64_t i = 0; i < bench::kComparedLosses; ++i) losses[way.name].push_back(rank.step(way).item<double>());
  }
  const int64_t steps = arguments.number("steps");
  for (int64_t block = 0; block < arguments.number("blocks"); ++block)
    for (const Way& way : ways) {
      rank.reset();
      strategy.collectives().barrier("the next block");
      const double cpu = bench::cpu_seconds(), wall = bench::wall_seconds();
      for (int64_t i = 0; i < steps; ++i) rank.step(way);
      const double wall_s = bench::wall_seconds() - wall;
      rows["fulgur_" + way.name].push_back({{"wall_s", wall_s / static_cast<double>(steps)},
                                            {"cpu_s", (bench::cpu_seconds() - cpu) / static_cast<double>(steps)}});
    }
  strategy.collectives().barrier("the end");
  if (strategy.rank() == 0) bench::write_report(arguments, {{"rows", rows}, {"losses", losses}});
  strategy.teardown();
}

}  // namespace

int main(int count, char** values) { return bench::run(count, values, run); }
