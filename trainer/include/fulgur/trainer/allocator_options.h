#pragma once

#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/options/options.h"

namespace fulgur {

/// How tensor memory is allocated and kept (`trainer.allocator:`). Settings last for the process.
struct FULGUR_API AllocatorOptions {
  /// Freed memory is kept for the next tensor, instead of returning pages to the kernel and faulting them in again:
  /// glibc keeps up to 1 GiB of blocks of up to 32 MiB, unless `GLIBC_TUNABLES` or `MALLOC_*_THRESHOLD_` in the
  /// environment say otherwise, and Fulgur up to 1 GiB of larger ones, unless the program has set another allocator for
  /// the CPU. This leaves less memory for other processes, and can raise the peak of this one.
  bool keep_freed_memory = true;
  /// Settings of CUDA's allocator in the syntax of `PYTORCH_CUDA_ALLOC_CONF`, which they replace, such as
  /// `expandable_segments:True,max_split_size_mb:128`. If empty, nothing is changed.
  std::string cuda;
  void fields(Fields& f);
};

}  // namespace fulgur
