#pragma once

#include "fulgur/core/options/options.h"
#include "fulgur/data/data_loader.h"

namespace fulgur {

/// How the built-in data modules read batches. Their options contain this struct and include its fields.
struct FULGUR_API LoadingOptions {
  Auto<int64_t> num_workers = int64_t{0};
  int64_t prefetch_factor = 2;
  Auto<bool> pin_memory = {};
  double timeout_s = 0;

  void fields(Fields& f);
  void apply(DataLoaderOptions& options) const;
};

}  // namespace fulgur
