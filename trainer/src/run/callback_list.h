#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/callback.h"

namespace fulgur::detail {

/// The callbacks of a run, by phase, and which of them override which hook.
class CallbackList {
 public:
  /// Sorts the callbacks by phase; the order within a phase is kept.
  void set(std::vector<std::shared_ptr<Callback>> list) {
    std::ranges::stable_sort(list, [](const auto& a, const auto& b) { return a->phase() < b->phase(); });
    list_ = std::move(list);
    for (size_t h = 0; h < overriding_.size(); ++h) {
      overriding_[h].clear();
      for (const auto& callback : list_)
        if (ComponentAccess::overridden(*callback).has(static_cast<Hook>(h))) overriding_[h].push_back(callback.get());
    }
  }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

  /// Calls `function` on each, in order.
  template <class Function>
  void each(Function function) {
    for (const auto& callback : list_) call(*callback, function);
  }
  /// The same, only for those that override `hook`.
  bool any_overrides(Hook hook) const { return !overriding_[static_cast<size_t>(hook)].empty(); }
  template <class Function>
  void each(Hook hook, Function function) {
    for (Callback* callback : overriding_[static_cast<size_t>(hook)]) call(*callback, function);
  }
  /// The callback being called; still set after an exception.
  const Callback* running() const { return running_; }

 private:
  template <class Function>
  void call(Callback& callback, Function& function) {
    const Callback* const outer = std::exchange(running_, &callback);
    function(callback);
    running_ = outer;
  }

  std::vector<std::shared_ptr<Callback>> list_;
  std::array<std::vector<Callback*>, static_cast<size_t>(Hook::count_)> overriding_;  // by hook
  const Callback* running_ = nullptr;
};

}  // namespace fulgur::detail
