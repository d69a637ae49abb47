#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/contracts/loader.h"
#include "fulgur/core/state/stage.h"

namespace fulgur::detail {

/// The properties of a loader that must be the same on all ranks that share its samples: those of the whole data set,
/// as one process would read it.
struct SharedData {
  static constexpr int64_t kUnknown = -1;
  int64_t samples = kUnknown, batches = kUnknown, batch_size = kUnknown;
  int64_t shuffles = kUnknown;
  int64_t seed = kUnknown;  ///< of the order, if it is not that of the data set

  /// Configures `loader` for one process. The properties of a stream, which has no length, are unknown.
  static SharedData of(Loader& loader, uint64_t seed);
  std::array<int64_t, 5> numbers() const { return {samples, batches, batch_size, shuffles, seed}; }
};

/// Throws a DataError that says what differs, and on which ranks. All ranks must call it.
[[noreturn]] void throw_other_data(Collectives& collectives, RunningStage stage,
                                   const std::vector<SharedData>& loaders);

}  // namespace fulgur::detail
