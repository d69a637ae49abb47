#pragma once

#include <string_view>

#include "fulgur/core/state/batch.h"

namespace fulgur {

/// Transforms of whole batches on the run's device, such as augmentation of images. A run applies them directly after
/// the transfer; only then does the precision convert the batch, and `on_after_batch_transfer` is called. So modules
/// see the batches that they would see if the loader had transformed the samples.
class FULGUR_API BatchTransforms {
 public:
  virtual ~BatchTransforms();
  /// The entry, made by the loader, that only `apply` reads: what was drawn for each sample. The hooks of modules do
  /// not see it. Empty if there is none.
  virtual std::string_view parameters_entry() const = 0;
  /// Returns the transformed batch, without `parameters_entry()`. Called on the run's thread with a batch on the run's
  /// device, for which it must not wait. It must not write into the tensors of `batch`, whose memory the loader may
  /// share.
  virtual Batch apply(Batch batch) const = 0;
};

}  // namespace fulgur
