#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fulgur/core/contracts/sampler.h"
#include "fulgur/core/state/state_tree.h"
#include "fulgur/data/data_loader.h"

namespace fulgur {

/// What determines the order of the samples of an epoch, besides the settings of a sampler.
struct OrderFacts {
  int64_t samples = 0;  ///< of all ranks
  bool shuffles = false;
  int64_t seed = 0;
};

OrderFacts order_facts_in(const StateTree& state);

/// `the number of samples (64, now 80) and shuffle (true, now false)`; empty if the order is the same.
std::string changes_of_order(const OrderFacts& then, const OrderFacts& now);

/// A sampler that ignores the rank would give every sample to all ranks: throws a DataError.
void check_shares(const DataLoaderOptions& options, const Sampler& sampler, const SamplerContext& context,
                  std::optional<UnevenShares> evenly);

}  // namespace fulgur
