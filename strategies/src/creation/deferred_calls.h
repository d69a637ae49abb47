#pragma once

#include <memory>
#include <span>

#include "creation/creation_log.h"
#include "fulgur/core/text/errors.h"
#include "operations/calls_above_autograd.h"

namespace fulgur::detail {

/// An operation that cannot be computed later.
class CannotDefer : public Error {
 public:
  using Error::Error;
};

/// While it lives, large tensors that this thread creates on the CPU in a float format have no memory, and operations
/// on them are logged instead of computed. What leaves LibTorch, such as a number, is computed.
class DeferredCalls final : public CallsAboveAutograd {
 public:
  /// Tensors of fewer bytes are created.
  explicit DeferredCalls(size_t least_bytes);
  ~DeferredCalls();
  DeferredCalls(const DeferredCalls&) = delete;
  DeferredCalls& operator=(const DeferredCalls&) = delete;

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) override;
  const std::shared_ptr<CreationLog>& log() const { return log_; }

 private:
  /// Makes a tensor without memory; false: it is not one of those that are.
  bool make(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;
  void defer(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void draw(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) const;

  size_t least_bytes_;
  std::shared_ptr<CreationLog> log_ = std::make_shared<CreationLog>();
  bool were_seen_;
};

}  // namespace fulgur::detail
