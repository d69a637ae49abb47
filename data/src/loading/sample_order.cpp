#include "loading/sample_order.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

OrderFacts order_facts_in(const StateTree& state) {
  return {.samples = state.at("set_samples").as_int(),
          .shuffles = state.at("shuffles").as_bool(),
          .seed = state.at("seed").as_int()};
}

std::string changes_of_order(const OrderFacts& then, const OrderFacts& now) {
  std::vector<std::string> changes;
  const auto yes_no = [](bool value) { return value ? "true" : "false"; };
  if (then.samples != now.samples)
    changes.push_back(cat("the number of samples (", then.samples, ", now ", now.samples, ")"));
  if (then.shuffles != now.shuffles)
    changes.push_back(cat("shuffle (", yes_no(then.shuffles), ", now ", yes_no(now.shuffles), ")"));
  if (then.shuffles && now.shuffles && then.seed != now.seed) changes.emplace_back("the seed of the order");
  return join(changes, " and ");
}

namespace {

void check_shares_of_batches(const DataLoaderOptions& options, const SamplerContext& context,
                             std::optional<UnevenShares> evenly) {
  const BatchSampler& batches = *options.batch_sampler;
  const int64_t ranks = context.world_size, all = batches.samples(0, 1);
  int64_t sum = 0, fewest = batches.size(0, ranks), most = fewest;
  bool same = true;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t samples = batches.samples(rank, ranks), size = batches.size(rank, ranks);
    same &= samples == batches.samples(0, ranks);
    sum += samples;
    fewest = std::min(fewest, size);
    most = std::max(most, size);
  }
  // Each rank may repeat or drop up to a batch.
  if (std::abs(sum - all) > ranks * batches.batch_size())
    throw DataError(cat("[data.DataLoader] the batch sampler of the ", options.name, " set must divide its ", all,
                        " samples among ", ranks, " processes; all shares together have ", sum,
                        ". Let size(), samples() and batches() depend on rank and world size, or set "
                        "trainer.use_distributed_sampler: false if each process has its own data."));
  if (!evenly) return;
  if (evenly == UnevenShares::error && (!same || sum != all || fewest != most))
    throw DataError(cat("[data.DataLoader] uneven_shares: error; the ", all, " samples of the ", options.name,
                        " set are not divided evenly among ", ranks,
                        " processes by the batch sampler: all shares have ", sum, " samples, a rank has ",
                        fewest == most ? "" : cat(fewest, " to "), most,
                        " batches. Leave some samples out, or set trainer.uneven_shares to pad or drop."));
  if (fewest != most)
    log::warn("data.uneven_batches", cat("the batch sampler of the ", options.name, " set gives a rank ", fewest,
                                         " to ", most, " batches: ranks train in lockstep, so each epoch has ", fewest,
                                         ". Override BatchSampler::shared_evenly() to share the samples evenly"));
}

}  // namespace

void check_shares(const DataLoaderOptions& options, const Sampler& sampler, const SamplerContext& context,
                  std::optional<UnevenShares> evenly) {
  if (context.world_size == 1) return;
  if (options.batch_sampler) return check_shares_of_batches(options, context, evenly);
  const int64_t all = sampler.size(0, 1);
  if (evenly == UnevenShares::error && all % context.world_size != 0)
    throw DataError(cat("[data.DataLoader] uneven_shares: error; the ", all, " samples of the ", options.name,
                        " set cannot be divided evenly among ", context.world_size, " processes. Leave ",
                        all % context.world_size, " out, or set trainer.uneven_shares to pad or drop."));
  int64_t sum = 0;
  for (int64_t rank = 0; rank < context.world_size; ++rank) sum += sampler.size(rank, context.world_size);
  if (std::abs(sum - all) >= context.world_size)
    throw DataError(cat("[data.DataLoader] the sampler of the ", options.name, " set must divide its ", all,
                        " samples among ", context.world_size, " processes; all shares together have ", sum,
                        ". Let size() and order() depend on rank and world size, or set "
                        "trainer.use_distributed_sampler: false if each process has its own data."));
}

}  // namespace fulgur
