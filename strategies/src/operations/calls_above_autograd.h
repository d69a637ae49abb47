#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace fulgur::detail {

/// Gets operations before autograd and autocast, on threads on which `see_calls(true)` was called. What an operation
/// calls is part of it, and is not seen.
class CallsAboveAutograd {
 public:
  /// Executes the operation with the arguments on the stack. `below` are the dispatch keys after this one.
  virtual void call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) = 0;

 protected:
  ~CallsAboveAutograd() = default;
};

/// Lets `calls` get the operations of all threads, or those of this thread alone, which come first; null ends it.
/// Returns false, and changes nothing, if another one gets those of all threads.
bool set_calls_of_process(CallsAboveAutograd* calls);
void set_calls_of_thread(CallsAboveAutograd* calls);
/// Whether the operations of this thread are seen. Returns whether they were.
bool see_calls(bool seen) noexcept;
bool sees_calls() noexcept;
/// While it lives, operations of this thread are not seen.
class UnseenCalls {
 public:
  UnseenCalls();
  ~UnseenCalls();
  UnseenCalls(const UnseenCalls&) = delete;
  UnseenCalls& operator=(const UnseenCalls&) = delete;

 private:
  bool were_excluded_;
};

}  // namespace fulgur::detail
