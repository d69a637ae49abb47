#pragma once

#include <ATen/core/ATen_fwd.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>

#include "fulgur/core/export.h"

namespace fulgur {

/// Sees the operations of a thread, and of the backwards that it starts, before their kernels run: below autograd,
/// where views and composite operations are already divided into what is computed. Costs nothing while it is off; while
/// it is on, each operation passes LibTorch's boxed calls once more. A process has at most one.
class FULGUR_API OperationWatch {
 public:
  /// `before` gets the tensors of each operation, and may give them other memory. Backwards call it on their threads.
  /// Throws an Error if the process has a watch already.
  explicit OperationWatch(std::function<void(at::TensorList)> before);
  ~OperationWatch();
  OperationWatch(const OperationWatch&) = delete;
  OperationWatch& operator=(const OperationWatch&) = delete;

  /// Sees the operations of the calling thread until `stop`, which the same thread calls.
  void start();
  void stop() noexcept;

  /// While it exists, no operation of its thread is seen. `before` needs none: what it computes is never seen.
  class FULGUR_API Unseen {
   public:
    Unseen();

   private:
    c10::impl::ExcludeDispatchKeyGuard guard_;
  };
};

}  // namespace fulgur
