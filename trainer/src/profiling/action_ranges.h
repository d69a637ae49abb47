#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string_view>
#include <vector>

namespace fulgur::detail {

/// Nested ranges that LibTorch's profilers see, by name.
class ActionRanges {
 public:
  /// Begins a range inside the last one. `visible`: false while nothing records. `name` lives longer than the range.
  void begin(std::string_view name, bool visible) {
    auto& range = open_.emplace_back();
    if (!visible) return;
    range = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (range->isActive()) range->before(name);
  }
  /// Ends the last range.
  void end() {
    if (!open_.empty()) open_.pop_back();
  }
  /// Ends all ranges for the profilers: one that has stopped must not see their ends. `end` is still called for each.
  void hide() {
    for (auto range = open_.rbegin(); range != open_.rend(); ++range) range->reset();
  }
  bool empty() const { return open_.empty(); }

 private:
  std::vector<std::unique_ptr<at::RecordFunction>> open_;  // nullptr: not visible
};

}  // namespace fulgur::detail
