#include "operations/calls_above_autograd.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace fulgur::detail {
namespace {

// Above autograd and autocast, and no part of LibTorch uses it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

std::atomic<CallsAboveAutograd*> calls_of_process{nullptr};
thread_local CallsAboveAutograd* calls_of_thread = nullptr;

void see_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
  CallsAboveAutograd* const calls =
      calls_of_thread ? calls_of_thread : calls_of_process.load(std::memory_order_acquire);
  if (calls) return calls->call(op, below, stack);
  op.redispatchBoxed(below, stack);
}

void register_key() {
  static std::once_flag once;
  // Never destroyed: at the end of the process, removing it would rebuild the tables of all operators.
  std::call_once(once, [] {
    auto library =
        std::make_unique<torch::Library>(torch::Library::IMPL, "_", std::make_optional(kKey), __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&see_call>());
    library.release();  // NOLINT(bugprone-unused-return-value)
  });
}

}  // namespace

bool set_calls_of_process(CallsAboveAutograd* calls) {
  register_key();
  if (calls == nullptr) {
    calls_of_process.store(nullptr);
    return true;
  }
  CallsAboveAutograd* none = nullptr;
  return calls_of_process.compare_exchange_strong(none, calls);
}

void set_calls_of_thread(CallsAboveAutograd* calls) {
  register_key();
  calls_of_thread = calls;
}

bool see_calls(bool seen) noexcept {
  const bool were_seen = c10::impl::tls_is_dispatch_key_included(kKey);
  c10::impl::tls_set_dispatch_key_included(kKey, seen);
  return were_seen;
}

bool sees_calls() noexcept { return c10::impl::tls_is_dispatch_key_included(kKey); }

UnseenCalls::UnseenCalls() : were_excluded_(c10::impl::tls_is_dispatch_key_excluded(kKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kKey, true);
}

UnseenCalls::~UnseenCalls() { c10::impl::tls_set_dispatch_key_excluded(kKey, were_excluded_); }

}  // namespace fulgur::detail
