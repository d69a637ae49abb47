#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/placed_module.h"
#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

/// Implementation of `nn::Placed`: moves, splits and joins the tensors in the values of a call. Not for users.
namespace fulgur::nn::detail {

/// For T without const and reference: whether it is a tensor or holds tensors that a call moves, the type of an owned
/// value (without references in tuples), and a function that visits its tensors.
template <class T>
struct Tensors {
  static constexpr bool held = false;
};

template <>
struct Tensors<Tensor> {
  static constexpr bool held = true;
  using Owned = Tensor;
  template <class F>
  static void each(const Tensor& value, const F& f) {
    f(value);
  }
  template <class F>
  static Tensor map(const Tensor& value, const F& f) {
    return f(value);
  }
};

template <class T>
using TensorsOf = Tensors<std::remove_cvref_t<T>>;
template <class T>
inline constexpr bool kHoldsTensors = TensorsOf<T>::held;

template <class T>
auto owned_type() {
  if constexpr (kHoldsTensors<T>)
    return std::type_identity<typename TensorsOf<T>::Owned>();
  else
    return std::type_identity<std::remove_cvref_t<T>>();
}
template <class T>
using Owned = typename decltype(owned_type<T>())::type;

/// Calls `f` with each tensor of `value`.
template <class T, class F>
void for_each_tensor(const T& value, const F& f) {
  if constexpr (kHoldsTensors<T>) TensorsOf<T>::each(value, f);
}
/// `value` with each tensor replaced by `f` of it.
template <class T, class F>
Owned<T> map_tensors(const T& value, const F& f) {
  if constexpr (kHoldsTensors<T>)
    return TensorsOf<T>::map(value, f);
  else
    return value;
}

template <class T>
struct Tensors<std::optional<T>> {
  static constexpr bool held = kHoldsTensors<T>;
  using Owned = std::optional<detail::Owned<T>>;
  template <class F>
  static void each(const std::optional<T>& value, const F& f) {
    if (value) for_each_tensor(*value, f);
  }
  template <class F>
  static Owned map(const std::optional<T>& value, const F& f) {
    if (!value) return std::nullopt;
    return map_tensors(*value, f);
  }
};

template <class T>
struct TensorsOfList {
  static constexpr bool held = kHoldsTensors<T>;
  using Owned = std::vector<detail::Owned<T>>;
  template <class List, class F>
  static void each(const List& values, const F& f) {
    for (const T& value : values) for_each_tensor(value, f);
  }
  template <class List, class F>
  static Owned map(const List& values, const F& f) {
    Owned all;
    all.reserve(values.size());
    for (const T& value : values) all.push_back(map_tensors(value, f));
    return all;
  }
};
template <class T>
struct Tensors<std::vector<T>> : TensorsOfList<T> {};
template <>
struct Tensors<at::TensorList> : TensorsOfList<Tensor> {};

template <class Tuple, class... Ts>
struct TensorsOfTuple {
  static constexpr bool held = (kHoldsTensors<Ts> || ...);
  using Owned = Tuple;
  template <class Value, class F>
  static void each(const Value& value, const F& f) {
    std::apply([&](const auto&... parts) { (for_each_tensor(parts, f), ...); }, value);
  }
  template <class Value, class F>
  static Owned map(const Value& value, const F& f) {
    return std::apply([&](const auto&... parts) { return Owned{map_tensors(parts, f)...}; }, value);
  }
};
template <class... Ts>
struct Tensors<std::tuple<Ts...>> : TensorsOfTuple<std::tuple<Owned<Ts>...>, Ts...> {};
template <class A, class B>
struct Tensors<std::pair<A, B>> : TensorsOfTuple<std::pair<Owned<A>, Owned<B>>, A, B> {};

/// `tensor` on `device`; unchanged if it is already there, or undefined. Waits only for copies to the CPU.
FULGUR_API Tensor move_tensor(const Tensor& tensor, at::Device device);

/// Returns an argument with its tensors on `device`; an argument without tensors is returned unchanged.
template <class Arg>
decltype(auto) moved(Arg&& arg, at::Device device) {
  if constexpr (kHoldsTensors<Arg>)
    return map_tensors(arg, [device](const Tensor& tensor) { return move_tensor(tensor, device); });
  else
    return std::forward<Arg>(arg);
}

/// The result of `moved` for an Arg, to pass on: tensors as lvalues, for a forward that takes `Tensor&`.
template <class Arg, class Moved>
decltype(auto) as_given(Moved& moved) {
  if constexpr (kHoldsTensors<Arg>)
    return (moved);
  else
    return std::forward<Arg>(moved);
}

[[noreturn]] FULGUR_API void throw_empty_placed();
/// Throws the Error for a forward that modifies or takes ownership of an argument.
[[noreturn]] FULGUR_API void throw_not_shareable(const PlacedModule& placed);

/// Casts to the object that `make_shared<M>` created, with a static cast if M's bases allow it.
template <class M>
M& cast_module(torch::nn::Module& module) {
  if constexpr (requires { static_cast<M&>(module); })
    return static_cast<M&>(module);
  else
    return dynamic_cast<M&>(module);
}

/// Arguments of a manually placed module.
class FULGUR_API InputCheck {
 public:
  explicit InputCheck(const PlacedModule& placed);
  /// Throws an Error for a tensor on another device than the module's first parameter.
  void look(const Tensor& tensor, size_t argument) const;

 private:
  const PlacedModule& placed_;
  std::optional<at::Device> device_;
};

/// One call of a module on a group of devices: their number, the samples of each, and the joined results.
class FULGUR_API GroupCall {
 public:
  explicit GroupCall(const PlacedModule& placed) : placed_(placed) {}
  /// Call it with each tensor of the arguments, before all others. Throws an Error if the number of samples differs.
  void look(const Tensor& tensor, size_t argument);
  /// Number of devices in use: that of the group, or of the samples if smaller; at least one.
  size_t parts() const;
  /// The samples for device `part`, on that device; the whole tensor if it has no dimensions.
  Tensor part(const Tensor& tensor, size_t part);
  /// Calls `work` with each part's copy of the module, concurrently, each with its device, and the caller's stream on
  /// that device, as current.
  void run(const std::function<void(size_t, torch::nn::Module&)>& work) const;
  /// The rows of all parts on the first device. Throws an Error for results without dimensions, or with different
  /// numbers of rows per sample.
  Tensor join(const std::vector<Tensor>& rows) const;
  [[noreturn]] void throw_unlike_results() const;

 private:
  struct Whole {
    Tensor tensor;
    std::vector<Tensor> parts;
  };
  std::vector<int64_t> sizes() const;
  std::string where() const;

  const PlacedModule& placed_;
  std::optional<int64_t> samples_;  ///< nullopt if no argument has a batch
  size_t first_argument_ = 0;       ///< the first argument that has a batch
  std::vector<Whole> cut_;
};

template <class Arg>
using PartOf = std::conditional_t<kHoldsTensors<Arg>, Owned<Arg>, const std::remove_reference_t<Arg>&>;

/// Argument `arg` for device `part`.
template <class Arg>
PartOf<Arg> part_of(const Arg& arg, GroupCall& call, size_t part) {
  if constexpr (kHoldsTensors<Arg>)
    return map_tensors(arg, [&](const Tensor& tensor) { return call.part(tensor, part); });
  else
    return arg;
}

/// Results that can be joined: tensors, and structures that consist only of tensors.
template <class T>
struct Gatherable : std::false_type {};
template <class T>
inline constexpr bool kGatherable = Gatherable<T>::value;

template <>
struct Gatherable<Tensor> : std::true_type {};
template <class T>
struct Gatherable<std::optional<T>> : Gatherable<T> {};
template <class T>
struct Gatherable<std::vector<T>> : Gatherable<T> {};
template <class... Ts>
struct Gatherable<std::tuple<Ts...>> : std::conjunction<Gatherable<Ts>...> {};
template <class A, class B>
struct Gatherable<std::pair<A, B>> : std::conjunction<Gatherable<A>, Gatherable<B>> {};

template <class T>
struct Gather;

/// Joins the results `of(0)` … `of(parts - 1)`, each a `const Result&`.
template <class Result, class Of>
Result gather(const Of& of, const GroupCall& call) {
  return Gather<Result>::all(of, call);
}

template <>
struct Gather<Tensor> {
  template <class Of>
  static Tensor all(const Of& of, const GroupCall& call) {
    std::vector<Tensor> rows;
    for (size_t i = 0; i < call.parts(); ++i) rows.push_back(of(i));
    return call.join(rows);
  }
};

template <class T>
struct Gather<std::optional<T>> {
  template <class Of>
  static std::optional<T> all(const Of& of, const GroupCall& call) {
    for (size_t i = 1; i < call.parts(); ++i)
      if (of(i).has_value() != of(0).has_value()) call.throw_unlike_results();
    if (!of(0)) return std::nullopt;
    return gather<T>([&](size_t i) -> const T& { return *of(i); }, call);
  }
};

template <class T>
struct Gather<std::vector<T>> {
  template <class Of>
  static std::vector<T> all(const Of& of, const GroupCall& call) {
    for (size_t i = 1; i < call.parts(); ++i)
      if (of(i).size() != of(0).size()) call.throw_unlike_results();
    std::vector<T> joined;
    for (size_t at = 0; at < of(0).size(); ++at)
      joined.push_back(gather<T>([&](size_t i) -> const T& { return of(i)[at]; }, call));
    return joined;
  }
};

template <class Tuple, class... Ts>
struct GatherTuple {
  template <class Of>
  static Tuple all(const Of& of, const GroupCall& call) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Tuple{gather<Ts>([&](size_t i) -> const Ts& { return std::get<I>(of(i)); }, call)...};
    }
    (std::index_sequence_for<Ts...>());
  }
};
template <class... Ts>
struct Gather<std::tuple<Ts...>> : GatherTuple<std::tuple<Ts...>, Ts...> {};
template <class A, class B>
struct Gather<std::pair<A, B>> : GatherTuple<std::pair<A, B>, A, B> {};

}  // namespace fulgur::nn::detail
