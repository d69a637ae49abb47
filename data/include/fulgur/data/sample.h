#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// One sample: ordered, named values without a batch dimension. `Sample({{"image", x}, {"label", 3}, {"file", path}})`.
/// In a batch, tensors of equal shape are stacked; integers become an int64 tensor, `double` float64, `float` float32,
/// `bool` bool, each of shape (N); strings become a list. A sample within a sample gives entries `outer.inner`.
class FULGUR_API Sample {
 public:
  using Value = std::variant<Tensor, int64_t, double, float, bool, std::string>;
  using Entry = std::pair<std::string, Value>;

  /// A named value or a named sample.
  class Part {
   public:
    template <class T>
    requires std::same_as<T, Tensor> || std::same_as<T, double> || std::same_as<T, float> || std::same_as<T, bool> Part(
        std::string name, T value)
        : entries_{{std::move(name), Value(std::move(value))}} {}
    template <std::integral I>
    requires(!std::same_as<I, bool>) Part(std::string name, I value)
        : entries_{{std::move(name), Value(static_cast<int64_t>(value))}} {}
    Part(std::string name, std::string value) : entries_{{std::move(name), Value(std::move(value))}} {}
    Part(std::string name, const char* value) : Part(std::move(name), std::string(value)) {}
    Part(const std::string& name, const Sample& nested);

   private:
    friend class Sample;
    std::vector<Entry> entries_;
  };

  Sample() = default;
  /// Throws an Error for a duplicate name.
  Sample(std::initializer_list<Part> parts);
  void add(Part part);

  size_t entries() const { return entries_.size(); }
  const Entry& entry(size_t index) const { return entries_.at(index); }

 private:
  std::vector<Entry> entries_;
};

}  // namespace fulgur
