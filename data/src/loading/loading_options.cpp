#include "fulgur/data/loading_options.h"
#include "loading/option_bounds.h"

namespace fulgur {

void LoadingOptions::fields(Fields& f) {
  f(num_workers, "num_workers",
    "Threads that prefetch batches; 0: the run's thread reads them; auto: tuned in the first epoch. The batches are "
    "the same for any number.")
      .range(0, detail::kMostWorkers);
  f(prefetch_factor, "prefetch_factor", "Batches prefetched per worker.").range(1, detail::kMostBatchesAhead);
  f(pin_memory, "pin_memory",
    "Whether batches are in pinned memory, for asynchronous copies to a GPU; auto: if CUDA is in use.");
  f(timeout_s, "timeout_s",
    "Seconds to wait for a batch from the workers before the run ends with an error; 0: no limit.")
      .at_least(0);
}

void LoadingOptions::apply(DataLoaderOptions& options) const {
  options.num_workers = num_workers;
  options.prefetch_factor = prefetch_factor;
  options.pin_memory = pin_memory;
  options.timeout_s = timeout_s;
}

}  // namespace fulgur
