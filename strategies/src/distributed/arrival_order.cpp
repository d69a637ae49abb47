#include "distributed/arrival_order.h"

#include <ATen/ops/tensor.h>

#include <numeric>
#include <utility>

namespace fulgur::detail {

ArrivalOrder::ArrivalOrder(size_t count) : order_(count), has_arrived_(count) {
  std::iota(order_.rbegin(), order_.rend(), size_t{0});
}

void ArrivalOrder::begin() {
  arrived_.clear();
  has_arrived_.assign(order_.size(), 0);
  next_ = 0;
}

void ArrivalOrder::arrive(size_t item, const std::function<void(size_t)>& start) {
  arrived_.push_back(item);
  has_arrived_[item] = 1;
  while (next_ < order_.size() && has_arrived_[order_[next_]]) start(order_[next_++]);
}

void ArrivalOrder::start_rest(const std::function<void(size_t)>& start) {
  while (next_ < order_.size()) start(order_[next_++]);
}

void ArrivalOrder::for_each(const std::function<void(size_t)>& use) const {
  for (const size_t item : order_) use(item);
}

void ArrivalOrder::learn(const std::function<Tensor(const Tensor&)>& of_first) {
  if (std::exchange(is_learned_, true) || order_.size() < 2) return;
  std::vector<int64_t> order(arrived_.begin(), arrived_.end());
  // Those that have not arrived come last.
  for (const size_t item : order_)
    if (!has_arrived_[item]) order.push_back(static_cast<int64_t>(item));
  const Tensor learned = of_first(at::tensor(order, at::kLong));
  const int64_t* item = learned.const_data_ptr<int64_t>();
  for (size_t& place : order_) place = static_cast<size_t>(*item++);
}

}  // namespace fulgur::detail
