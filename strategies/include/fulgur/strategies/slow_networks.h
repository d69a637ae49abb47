#pragma once

#include <cstdint>
#include <optional>

#include "fulgur/core/options/options.h"

namespace fulgur {

/// PowerSGD: ranks exchange two thin factors of each gradient matrix instead of the matrix (Vogels et al. 2019,
/// arXiv:1905.13727). The names are those of torch.distributed's PowerSGDState.
struct FULGUR_API PowerSgdOptions {
  int64_t matrix_approximation_rank = 1;
  int64_t start_step = 1000;
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  bool warm_start = true;
  bool operator==(const PowerSgdOptions& other) const = default;
  void fields(Fields& f);
};

/// The outer optimizer of DiLoCo (Douillard et al. 2023, arXiv:2311.08105): SGD with momentum over the change of the
/// averaged weights in a period.
struct FULGUR_API OuterOptimizerOptions {
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;
  void fields(Fields& f);
};

/// Local SGD: each rank, or each group of ranks, trains its own weights, and all average them after every `period`
/// steps (Stich 2018, arXiv:1805.09767). With `start_step`, this is post-local SGD (Lin et al. 2018, arXiv:1808.07217).
struct FULGUR_API LocalSgdOptions {
  int64_t period = 0;
  int64_t start_step = 0;
  Auto<int64_t> group_size = 1;
  std::optional<OuterOptimizerOptions> outer_optimizer;
  void fields(Fields& f);
};

}  // namespace fulgur
