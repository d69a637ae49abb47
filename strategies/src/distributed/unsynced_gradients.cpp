#include "distributed/unsynced_gradients.h"

#include <unordered_set>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

// The gradient and its version; nullptr if there is none.
std::pair<const void*, int64_t> state_of(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return {nullptr, 0};
  return {gradient.unsafeGetTensorImpl(), gradient._version()};
}

std::unordered_set<const void*> identities_of(const Optimizer& optimizer) {
  std::unordered_set<const void*> own;
  for (const ParamGroup& group : optimizer.groups())
    for (const Tensor& parameter : group.of_module()) own.insert(parameter.unsafeGetTensorImpl());
  return own;
}

}  // namespace

UnsyncedGradients::UnsyncedGradients(std::vector<NamedParameter> parameters) {
  for (NamedParameter& parameter : parameters) seen_.push_back({.parameter = std::move(parameter)});
}

void UnsyncedGradients::before_backward() {
  for (Seen& seen : seen_) std::tie(seen.before, seen.version) = state_of(seen.parameter.value);
}

void UnsyncedGradients::after_backward(bool exchanged) {
  for (Seen& seen : seen_) {
    const auto [gradient, version] = state_of(seen.parameter.value);
    if (gradient != seen.before || version != seen.version) seen.unsynced = exchanged ? nullptr : gradient;
  }
}

void UnsyncedGradients::synced(const Optimizer& optimizer) {
  const auto own = identities_of(optimizer);
  for (Seen& seen : seen_)
    if (own.contains(seen.parameter.value.unsafeGetTensorImpl())) seen.unsynced = nullptr;
}

void UnsyncedGradients::check_step(const Optimizer& optimizer) const {
  const auto own = identities_of(optimizer);
  for (const Seen& seen : seen_) {
    if (!seen.unsynced || state_of(seen.parameter.value).first != seen.unsynced) continue;
    if (!own.contains(seen.parameter.value.unsafeGetTensorImpl())) continue;
    throw DistributedError(cat(
        "[strategies.ddp] ", optimizer.name(), " must step on gradients of all ranks; that of '", seen.parameter.name,
        "' was computed under no_sync() and is local to this rank, so the ranks' weights would differ from here on. "
        "Run the last backward before the step without no_sync(), or call sync_gradients(optimizer) before it, on all "
        "ranks. If the module averages gradients itself, assign them: parameter.mutable_grad() = averages."));
  }
}

}  // namespace fulgur::detail
