#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <vector>

namespace fulgur::cli {

/// One operation of a step: a kernel on a GPU.
struct Operation {
  double flops = 0;  ///< of matrix products, convolutions and attention
  double bytes = 0;  ///< read and written
  at::ScalarType dtype = at::kFloat;
  bool in_backward = false;
};

/// While it lives, tensors that this thread makes are on the device `meta`: they have shapes and no values, and each
/// operation takes microseconds whatever its size. Operations are those that a GPU would compute: autocast, attention,
/// norms and dropout take the same ways as on CUDA. The threads of LibTorch's backward are included.
class MetaMode {
 public:
  MetaMode();
  ~MetaMode();
  MetaMode(const MetaMode&) = delete;
  MetaMode& operator=(const MetaMode&) = delete;

  /// Until the next call, operations compute as under autocast in `dtype`; nullopt: in the formats of their arguments.
  void set_autocast(std::optional<at::ScalarType> dtype);
  void set_backward(bool backward);
  /// The operations since the last call.
  std::vector<Operation> take_operations();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::cli
