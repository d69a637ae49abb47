#include "fulgur/capture/operation_watch.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "recorded_call.h"
#include "seen_operations.h"

namespace fulgur {
namespace {

using Before = std::function<void(at::TensorList)>;
std::atomic<const Before*> active_watch{nullptr};

}  // namespace

OperationWatch::OperationWatch(std::function<void(at::TensorList)> before) {
  detail::register_fallback();
  auto mine = std::make_unique<Before>(std::move(before));
  const Before* none = nullptr;
  if (!active_watch.compare_exchange_strong(none, mine.get()))
    throw Error("[OperationWatch] a process watches the operations of one run at a time; another one has not ended");
  mine.release();  // NOLINT(bugprone-unused-return-value): the destructor deletes it
}

OperationWatch::~OperationWatch() {
  stop();
  delete active_watch.exchange(nullptr);
}

void OperationWatch::start() { c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, true); }

void OperationWatch::stop() noexcept { c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, false); }

OperationWatch::Unseen::Unseen() : guard_(c10::DispatchKey::Fake) {}

namespace detail {

bool show_to_watch(const torch::jit::Stack& stack, size_t arguments) {
  const Before* before = active_watch.load(std::memory_order_acquire);
  if (!before) return false;
  c10::SmallVector<at::Tensor, 8> tensors;
  for (size_t i = stack.size() - arguments; i < stack.size(); ++i)
    each_tensor(stack[i], [&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); });
  if (!tensors.empty()) (*before)(tensors);
  return true;
}

}  // namespace detail
}  // namespace fulgur
