#pragma once

#include <cstdint>
#include <string>

#include "fulgur/callbacks/batch_size_search.h"
#include "fulgur/trainer/config.h"

namespace fulgur::cli {

/// What a trial of a batch size has shown.
struct BatchTrialReport {
  BatchTrial result = BatchTrial::fits;
  int64_t peak_bytes = 0;  ///< the highest of the devices of all ranks; 0 if the trial did not end
  std::string device;      ///< on which; `cpu`: resident memory of the process
};

/// Trains `steps` optimizer steps with batches of `batch_size`, validates as many batches, and frees everything again.
/// `several`: this process is one of the run's. Errors other than a lack of memory or of data are thrown; so is the
/// lack of data if it ends the run (a DataError).
BatchTrialReport try_batch_size(const Config& config, int64_t batch_size, int64_t steps, bool several);

}  // namespace fulgur::cli
