#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "fulgur/core/contracts/collectives.h"

namespace fulgur::detail {

/// The order in which ranks start exchanges while a backward computes what is exchanged: each starts the next one when
/// it and all before it have arrived. It is the order of the first backward of the first rank.
class ArrivalOrder {
 public:
  /// At first the last one comes first, since a backward usually begins with the last layers.
  explicit ArrivalOrder(size_t count);
  /// Before a backward.
  void begin();
  /// Calls `start` for each that can start now.
  void arrive(size_t item, const std::function<void(size_t)>& start);
  /// At the end of a backward, for those that have not started.
  void start_rest(const std::function<void(size_t)>& start);
  /// All in the order.
  void for_each(const std::function<void(size_t)>& use) const;
  /// After a backward, the first time: all ranks take the order of the first one, whose value `of_first` gives to all.
  void learn(const std::function<Tensor(const Tensor&)>& of_first);

 private:
  std::vector<size_t> order_, arrived_;
  std::vector<uint8_t> has_arrived_;
  size_t next_ = 0;  // in order_
  bool is_learned_ = false;
};

}  // namespace fulgur::detail
