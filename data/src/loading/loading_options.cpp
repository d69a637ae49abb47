#include "fulgur/data/loading_options.h"
#include "loading/option_bounds.h"

namespace fulgur {

void LoadingOptions::fields(Fields& f) {
  f(num_workers, "num_workers",
    "Threads that read batches ahead; 0: the thread of the run reads; auto: tried in the first epoch. Same batches for "
    "any number.")
      .range(0, detail::kMostWorkers);
  f(prefetch_factor, "prefetch_factor", "Batches that are read ahead by worker.").range(1, detail::kMostBatchesAhead);
  f(pin_memory, "pin_memory",
    "Batches in pinned memory, for asynchronous copies to a GPU; auto: where CUDA is in use.");
  f(timeout_s, "timeout_s", "Seconds that a batch of the workers is waited for before it is an error; 0: any time.")
      .at_least(0);
}

void LoadingOptions::apply(DataLoaderOptions& options) const {
  options.num_workers = num_workers;
  options.prefetch_factor = prefetch_factor;
  options.pin_memory = pin_memory;
  options.timeout_s = timeout_s;
}

}  // namespace fulgur
