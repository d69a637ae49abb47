#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fulgur/core/collectives.h"
#include "fulgur/core/loader.h"
#include "fulgur/core/stage.h"

namespace fulgur::detail {

/// What all ranks must have in common about a loader whose samples they share: properties of the whole data set, as one
/// process would read it.
struct SharedData {
  static constexpr int64_t kUnknown = -1;
  int64_t samples = kUnknown, batches = kUnknown, batch_size = kUnknown;
  int64_t shuffles = kUnknown;
  int64_t seed = kUnknown;  ///< of an order that is not the data set's

  /// Configures `loader` for one process. Nothing is known of a stream, which has no length.
  static SharedData of(Loader& loader, uint64_t seed);
  std::array<int64_t, 5> numbers() const { return {samples, batches, batch_size, shuffles, seed}; }
};

/// Throws a DataError that says what differs, and on which ranks. All ranks must call it.
[[noreturn]] void throw_other_data(Collectives& collectives, RunningStage stage,
                                   const std::vector<SharedData>& loaders);

}  // namespace fulgur::detail
