#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "direct_call.h"
#include "fulgur/core/text/errors.h"
#include "typed_operators.h"

namespace fulgur::detail {
namespace {

using c10::IValue;

// An argument, unpacked once; `get` has the type of the kernel's parameter.
template <class T>
struct TypedArgument {
  T value;
  explicit TypedArgument(const IValue& from) : value(from.to<T>()) {}
  T& get() { return value; }
};
template <>
struct TypedArgument<const Tensor&> {
  Tensor value;
  explicit TypedArgument(const IValue& from) : value(from.isNone() ? Tensor() : from.toTensor()) {}
  const Tensor& get() { return value; }
};
template <>
struct TypedArgument<Tensor&> {
  Tensor value;
  explicit TypedArgument(const IValue& from) : value(from.toTensor()) {}
  Tensor& get() { return value; }
};
template <>
struct TypedArgument<const std::optional<Tensor>&> {
  std::optional<Tensor> value;
  explicit TypedArgument(const IValue& from) {
    if (!from.isNone()) value = from.toTensor();
  }
  const std::optional<Tensor>& get() { return value; }
};
template <>
struct TypedArgument<at::TensorList> {
  std::vector<Tensor> value;
  explicit TypedArgument(const IValue& from) : value(from.toTensorVector()) {}
  at::TensorList get() { return value; }
};
template <>
struct TypedArgument<const at::ITensorListRef&> {
  std::vector<Tensor> value;
  at::ITensorListRef list;
  explicit TypedArgument(const IValue& from) : value(from.toTensorVector()) {}
  const at::ITensorListRef& get() { return list = at::ITensorListRef(value); }
};
template <>
struct TypedArgument<const c10::List<std::optional<Tensor>>&> {
  c10::List<std::optional<Tensor>> value;
  explicit TypedArgument(const IValue& from) {
    for (const IValue& element : from.toListRef())
      value.push_back(element.isTensor() ? std::optional(element.toTensor()) : std::nullopt);
  }
  const c10::List<std::optional<Tensor>>& get() { return value; }
};
template <>
struct TypedArgument<const at::Scalar&> {
  at::Scalar value;
  explicit TypedArgument(const IValue& from) : value(from.toScalar()) {}
  const at::Scalar& get() { return value; }
};
template <>
struct TypedArgument<const std::optional<at::Scalar>&> {
  std::optional<at::Scalar> value;
  explicit TypedArgument(const IValue& from) {
    if (!from.isNone()) value = from.toScalar();
  }
  const std::optional<at::Scalar>& get() { return value; }
};
std::vector<int64_t> integers_of(const IValue& from) {
  return from.isInt() ? std::vector<int64_t>{from.toInt()} : from.toIntVector();
}
std::vector<c10::SymInt> symbolic_of(const IValue& from) {
  const std::vector<int64_t> plain = integers_of(from);
  return {plain.begin(), plain.end()};
}
template <>
struct TypedArgument<at::IntArrayRef> {
  std::vector<int64_t> value;
  explicit TypedArgument(const IValue& from) : value(integers_of(from)) {}
  at::IntArrayRef get() { return value; }
};
template <>
struct TypedArgument<at::OptionalIntArrayRef> {
  bool is_set;
  std::vector<int64_t> value;
  explicit TypedArgument(const IValue& from) : is_set(!from.isNone()) {
    if (is_set) value = integers_of(from);
  }
  at::OptionalIntArrayRef get() { return is_set ? at::OptionalIntArrayRef(at::IntArrayRef(value)) : std::nullopt; }
};
template <>
struct TypedArgument<c10::SymIntArrayRef> {
  std::vector<c10::SymInt> value;
  explicit TypedArgument(const IValue& from) : value(symbolic_of(from)) {}
  c10::SymIntArrayRef get() { return value; }
};
template <>
struct TypedArgument<at::OptionalSymIntArrayRef> {
  bool is_set;
  std::vector<c10::SymInt> value;
  explicit TypedArgument(const IValue& from) : is_set(!from.isNone()) {
    if (is_set) value = symbolic_of(from);
  }
  at::OptionalSymIntArrayRef get() {
    return is_set ? at::OptionalSymIntArrayRef(c10::SymIntArrayRef(value)) : std::nullopt;
  }
};
template <>
struct TypedArgument<c10::SymInt> {
  c10::SymInt value;
  explicit TypedArgument(const IValue& from) : value(from.toInt()) {}
  c10::SymInt get() { return value; }
};
template <>
struct TypedArgument<std::string_view> {
  std::string value;
  explicit TypedArgument(const IValue& from) : value(from.toStringRef()) {}
  std::string_view get() { return value; }
};
template <>
struct TypedArgument<std::optional<std::string_view>> {
  std::optional<std::string> value;
  explicit TypedArgument(const IValue& from) {
    if (!from.isNone()) value = from.toStringRef();
  }
  std::optional<std::string_view> get() { return value ? std::optional<std::string_view>(*value) : std::nullopt; }
};
template <size_t N>
struct TypedArgument<std::array<bool, N>> {
  std::array<bool, N> value{};
  explicit TypedArgument(const IValue& from) {
    const c10::List<bool> list = from.toBoolList();
    for (size_t i = 0; i < N; ++i) value.at(i) = list[i];
  }
  std::array<bool, N> get() { return value; }
};

template <class T>
struct TensorTuple : std::false_type {};
template <class... T>
struct TensorTuple<std::tuple<T...>> : std::bool_constant<(std::is_same_v<T, Tensor> && ...)> {};

template <class Schema>
class TypedCall;

template <class Result, class... Parameters>
class TypedCall<Result(Parameters...)> final : public DirectCall {
 public:
  static constexpr bool kTakesResults =
      std::is_same_v<Result, Tensor> || std::is_same_v<Result, std::vector<Tensor>> || TensorTuple<Result>::value;

  template <size_t... I>
  TypedCall(const c10::OperatorHandle& op, const std::vector<IValue>& arguments, std::vector<Tensor> exchanged,
            std::index_sequence<I...> /*places*/)
      : op_(op.typed<Result(Parameters...)>()),
        arguments_{TypedArgument<Parameters>(arguments[I])...},
        exchanged_(std::move(exchanged)) {}

  void run() override {
    std::apply(
        [this](auto&... argument) {
          const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
          if constexpr (std::is_same_v<Result, Tensor>) {
            const Tensor result = op_.redispatch(cpu, argument.get()...);
            if (!exchanged_.empty()) exchange_memory(exchanged_, {&result, 1});
          } else if constexpr (std::is_same_v<Result, std::vector<Tensor>>) {
            const std::vector<Tensor> results = op_.redispatch(cpu, argument.get()...);
            if (!exchanged_.empty()) exchange_memory(exchanged_, results);
          } else if constexpr (TensorTuple<Result>::value) {
            std::apply(
                [this](auto&&... result) {
                  const std::array<Tensor, sizeof...(result)> results{std::move(result)...};
                  if (!exchanged_.empty()) exchange_memory(exchanged_, results);
                },
                op_.redispatch(cpu, argument.get()...));
          } else {
            op_.redispatch(cpu, argument.get()...);
          }
        },
        arguments_);
  }

 private:
  c10::TypedOperatorHandle<Result(Parameters...)> op_;
  std::tuple<TypedArgument<Parameters>...> arguments_;
  std::vector<Tensor> exchanged_;
};

using MakeTyped = std::unique_ptr<DirectCall> (*)(const c10::OperatorHandle&, const std::vector<IValue>&,
                                                  const std::vector<Tensor>&);

template <class Schema>
struct TypedMaker;
template <class Result, class... Parameters>
struct TypedMaker<Result(Parameters...)> {
  static std::unique_ptr<DirectCall> make(const c10::OperatorHandle& op, const std::vector<IValue>& arguments,
                                          const std::vector<Tensor>& exchanged) {
    using Call = TypedCall<Result(Parameters...)>;
    if (!Call::kTakesResults && !exchanged.empty()) return nullptr;
    return std::make_unique<Call>(op, arguments, exchanged, std::index_sequence_for<Parameters...>{});
  }
};

template <class Operator>
std::pair<std::string, MakeTyped> typed_entry() {
  std::string name(Operator::name);
  if (const std::string_view overload = Operator::overload_name; !overload.empty()) name.append(".").append(overload);
  return {std::move(name), &TypedMaker<typename Operator::schema>::make};
}

const std::unordered_map<std::string, MakeTyped>& typed_makers() {
#define FULGUR_TYPED_ENTRY(name) typed_entry<at::_ops::name>(),
  static const std::unordered_map<std::string, MakeTyped> makers{FULGUR_TYPED_OPERATORS(FULGUR_TYPED_ENTRY)};
#undef FULGUR_TYPED_ENTRY
  return makers;
}

}  // namespace

std::unique_ptr<DirectCall> make_typed_call(const c10::OperatorHandle& op, const std::vector<IValue>& arguments,
                                            const std::vector<Tensor>& exchanged) {
  const auto found = typed_makers().find(c10::toString(op.operator_name()));
  return found == typed_makers().end() ? nullptr : found->second(op, arguments, exchanged);
}

}  // namespace fulgur::detail
