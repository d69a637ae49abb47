#pragma once

#include <string>
#include <vector>

#include "fulgur/core/contracts/collectives.h"
#include "fulgur/core/export.h"

namespace torch::nn {
class Module;
}

namespace fulgur::nn {

/// A layer whose statistics a run can compute over the batches of all ranks: BatchNorm1d, 2d and 3d.
class FULGUR_API SyncableNorm {
 public:
  virtual ~SyncableNorm();
  /// From now on training normalises over the batches of all ranks. Each training forward and its backward then
  /// communicate: all ranks must call them, in the same order, with any number of samples, including none. A nullptr,
  /// or a single rank, switches this off again. Evaluation never communicates. `collectives` must outlive this use and
  /// all graphs created during it; a copy of the layer keeps it.
  virtual void sync_over(Collectives* collectives) = 0;
};

/// Switches all SyncableNorms in `module` and counts them.
FULGUR_API int64_t sync_norms_over(torch::nn::Module& module, Collectives* collectives);

/// The names in `module` of LibTorch's own BatchNorm1d, 2d and 3d, which cannot be switched; "" is `module` itself.
FULGUR_API std::vector<std::string> unsyncable_batch_norms(const torch::nn::Module& module);

}  // namespace fulgur::nn
