#include "run/callback_list.h"

#include <algorithm>

namespace fulgur::detail {

CallbackList::CallbackList() : overriding_(static_cast<size_t>(Hook::count_)) {}

void CallbackList::set(std::vector<std::shared_ptr<Callback>> list) {
  std::ranges::stable_sort(list, [](const auto& a, const auto& b) { return a->phase() < b->phase(); });
  list_ = std::move(list);
  for (auto& hook : overriding_) hook.clear();
  for (size_t h = 0; h < overriding_.size(); ++h)
    for (const auto& callback : list_)
      if (ComponentAccess::overridden(*callback).has(static_cast<Hook>(h))) overriding_[h].push_back(callback.get());
}

}  // namespace fulgur::detail
