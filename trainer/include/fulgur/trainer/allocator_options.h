#pragma once

#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/options.h"

namespace fulgur {

/// How memory of tensors is taken and kept (`trainer.allocator:`). What is set lasts for the process.
struct FULGUR_API AllocatorOptions {
  /// glibc keeps freed memory up to 1 GiB, also that of blocks of up to 32 MiB, instead of giving its pages back and
  /// faulting them in again at the next tensor. `GLIBC_TUNABLES` and `MALLOC_*_THRESHOLD_` of the environment win. It
  /// costs memory of other processes, not of this one's peak.
  bool keep_freed_memory = true;
  /// As `PYTORCH_CUDA_ALLOC_CONF`, and in its place: `expandable_segments:True,max_split_size_mb:128`. Empty: as it is.
  std::string cuda;
  void fields(Fields& f);
};

}  // namespace fulgur
