#pragma once

#include <array>
#include <concepts>
#include <optional>
#include <string_view>
#include <type_traits>

namespace fulgur {

/// A value of an enum and its name in configs. To make an enum the type of an option, declare a function next to it,
/// which argument-dependent lookup finds:
///
///     enum class Shape { line, cosine };
///     constexpr auto enum_names(Shape) {
///       return std::to_array<fulgur::EnumName<Shape>>({{Shape::line, "line"}, {Shape::cosine, "cosine"}});
///     }
template <class E>
struct EnumName {
  E value;
  std::string_view name;
};

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E value) {
  { enum_names(value).front().name } -> std::convertible_to<std::string_view>;
};

/// The name of `value` in configs.
template <NamedEnum E>
constexpr std::string_view enum_text(E value) {
  for (const EnumName<E>& named : enum_names(value))
    if (named.value == value) return named.name;
  return "?";
}

/// The value of that name; nullopt if there is none.
template <NamedEnum E>
constexpr std::optional<E> enum_from(std::string_view name) {
  for (const EnumName<E>& named : enum_names(E()))
    if (named.name == name) return named.value;
  return std::nullopt;
}

}  // namespace fulgur
