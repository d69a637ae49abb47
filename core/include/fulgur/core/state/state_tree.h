#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// State stored in a checkpoint: a tree of maps and lists whose leaves are tensors, integers, doubles, booleans and
/// strings. It is pure data. Tensors may alias live ones: the writer of the tree copies them before the next step.
class FULGUR_API StateTree {
 public:
  using Map = std::map<std::string, StateTree, std::less<>>;
  using List = std::vector<StateTree>;

  /// An empty map.
  StateTree() : value_(Map{}) {}
  StateTree(std::nullptr_t) : value_(nullptr) {}
  StateTree(Tensor value) : value_(std::move(value)) {}
  StateTree(bool value) : value_(value) {}
  StateTree(int value) : value_(static_cast<int64_t>(value)) {}
  StateTree(int64_t value) : value_(value) {}
  StateTree(uint64_t value) : value_(value) {}
  StateTree(double value) : value_(value) {}
  StateTree(const char* value) : value_(std::string(value)) {}
  StateTree(std::string value) : value_(std::move(value)) {}
  StateTree(List value) : value_(std::move(value)) {}
  StateTree(Map value) : value_(std::move(value)) {}
  static StateTree map(std::initializer_list<std::pair<const std::string, StateTree>> entries) {
    return StateTree(Map(entries));
  }

  bool is_null() const { return holds<std::nullptr_t>(); }
  bool is_tensor() const { return holds<Tensor>(); }
  bool is_map() const { return holds<Map>(); }
  bool is_list() const { return holds<List>(); }
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  /// `map`, `list`, `tensor`, `int`, …
  std::string type_name() const;

  /// The entry named `key`, which is created as an empty map if absent.
  StateTree& operator[](std::string_view key);
  /// The entry named `key`; throws a CheckpointError that names it if it is absent or this is not a map.
  const StateTree& at(std::string_view key) const&;
  StateTree at(std::string_view key) &&;
  bool contains(std::string_view key) const;

  /// The leaf as T; throws a CheckpointError that names the actual type otherwise. int64 and uint64 convert if the
  /// value fits; integers convert to double. A temporary gives its leaf away, so that `for (… : state().as_map())` may
  /// read it after the temporary has ended.
  const Tensor& tensor() const&;
  Tensor tensor() &&;
  int64_t as_int() const;
  uint64_t as_uint() const;
  double as_double() const;
  bool as_bool() const;
  const std::string& as_string() const&;
  std::string as_string() &&;
  const Map& as_map() const&;
  Map& as_map() &;
  Map as_map() &&;
  const List& as_list() const&;
  List& as_list() &;
  List as_list() &&;

  const auto& variant() const { return value_; }

 private:
  template <class T>
  const T& get(const char* wanted) const;
  std::variant<std::nullptr_t, Tensor, bool, int64_t, uint64_t, double, std::string, List, Map> value_;
};

/// Something whose state is stored in a checkpoint. `load_state` is all or nothing: it throws before it changes
/// anything.
struct FULGUR_API Stateful {
  virtual ~Stateful();
  virtual StateTree state() const = 0;
  virtual void load_state(const StateTree& state) = 0;
};

}  // namespace fulgur
