#pragma once

#include <ATen/record_function.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>

namespace fulgur::detail {

/// The operation at which a recording failed: the outermost one left by an exception, apart from those that destructors
/// call because of it. Backward runs on its own thread, so the callback is global; an operation that fails on another
/// thread at the same time cannot be told apart.
class FailedOperation {
 public:
  FailedOperation()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(
                                          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
                                            return std::uncaught_exceptions() == 0 ? nullptr
                                                                                   : std::make_unique<InDestructor>();
                                          },
                                          [](const at::RecordFunction& function, at::ObserverContext* in_destructor) {
                                            if (std::uncaught_exceptions() == 0 || in_destructor) return;
                                            const std::lock_guard lock(mutex());
                                            left() = function.name();
                                          })
                                          .scopes({at::RecordScope::FUNCTION}))) {
    const std::lock_guard lock(mutex());
    left().clear();
  }
  ~FailedOperation() { at::removeCallback(handle_); }
  FailedOperation(const FailedOperation&) = delete;
  FailedOperation& operator=(const FailedOperation&) = delete;
  static std::string take() {
    const std::lock_guard lock(mutex());
    return left();
  }

 private:
  struct InDestructor final : at::ObserverContext {};
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::string& left() {
    static std::string name;
    return name;
  }
  at::CallbackHandle handle_;
};

}  // namespace fulgur::detail
