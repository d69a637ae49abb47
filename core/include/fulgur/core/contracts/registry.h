#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/component_access.h"
#include "fulgur/core/options/options.h"
#include "fulgur/core/text/errors.h"

// Code that registers a class refers to a symbol whose name has the version of its LibTorch, so that a plug-in that was
// built with another one is refused when it is loaded. (A class may be checked without LibTorch's headers.)
#if __has_include(<torch/version.h>)
#include <torch/version.h>
#define FULGUR_BUILT_WITH_2_(major, minor) built_with_libtorch_##major##_##minor
#define FULGUR_BUILT_WITH_(major, minor) FULGUR_BUILT_WITH_2_(major, minor)
#define FULGUR_BUILT_WITH FULGUR_BUILT_WITH_(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR)
namespace fulgur::detail {
FULGUR_API extern const char FULGUR_BUILT_WITH;
}
#endif

namespace fulgur {

/// What a registry knows about a component.
struct ComponentInfo {
  std::string name;
  std::string doc;
  std::string file;  ///< where it was registered
  int line = 0;
  std::string exports;  ///< `T::kExports`: what a data module provides for `link`; empty if the class does not say it
  std::function<std::unique_ptr<AnyOptions>()> make_options;
  /// Creates the component; the pointer inside is a `Base*` of the registry's Base.
  std::function<std::shared_ptr<void>(const AnyOptions&)> create;
  const void* built_with = nullptr;  ///< a symbol of libfulgur.so, without which a plug-in does not load
};

/// The components of one kind (`callback`, `model`, …), by name. Lives in libfulgur.so, one per kind and process, so
/// that plug-ins register into the same one. Components are added at start-up; reading is thread-safe.
class FULGUR_API ComponentRegistry {
 public:
  explicit ComponentRegistry(std::string kind) : kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }
  /// Never throws, since it runs before main: a duplicate name is recorded as a problem that `throw_if_problems`
  /// reports.
  void add(ComponentInfo info) noexcept;
  /// Another name for a component, such as `16` for `16-mixed`; a config with the alias is read as if it said `name`.
  void add_alias(std::string alias, std::string name) noexcept;
  /// The component with this name or alias; nullptr if the name is unknown.
  const ComponentInfo* find(std::string_view name) const;
  /// Throws a ConfigError that lists the nearest names.
  const ComponentInfo& get(std::string_view name) const;
  /// The sorted names of all components, without aliases.
  std::vector<std::string> names() const;
  /// All aliases, sorted.
  std::vector<std::string> aliases() const;
  void throw_if_problems() const;
  /// Sets the factory of the options that every component of this kind has, beside `class_path` and `init_args`. Called
  /// before main.
  void set_common_options(std::function<std::unique_ptr<AnyOptions>()> make) { make_common_options_ = std::move(make); }
  /// New options with their defaults; nullptr if this kind has none.
  std::unique_ptr<AnyOptions> make_common_options() const {
    return make_common_options_ ? make_common_options_() : nullptr;
  }

 private:
  std::string kind_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<ComponentInfo>> components_;
  std::vector<std::pair<std::string, std::string>> aliases_;  // with the names they stand for
  std::vector<std::string> problems_;
  std::function<std::unique_ptr<AnyOptions>()> make_common_options_;
};

/// The registry of `kind`, created on first use.
FULGUR_API ComponentRegistry& component_registry(std::string_view kind);

/// All kinds that have a registry, sorted.
FULGUR_API std::vector<std::string> registry_kinds();

/// Throws if a registration failed before main (two components with one name), with both locations.
FULGUR_API void throw_if_registration_failed();

namespace detail {
template <class T>
struct OptionsTypeOf {
  using type = NoOptions;
};
template <class T>
requires requires { typename T::Options; }
struct OptionsTypeOf<T> {
  using type = typename T::Options;
};
}  // namespace detail

/// Options of a component class: its `Options` member type, or `NoOptions`.
template <class T>
using OptionsType = typename detail::OptionsTypeOf<T>::type;

/// Creates a T from its options as the registry does, including what a factory sets (hyper-parameters, overridden
/// hooks).
template <class Base, class T>
std::shared_ptr<T> make_component(const OptionsType<T>& options) {
  std::shared_ptr<T> made;
  if constexpr (std::is_same_v<OptionsType<T>, NoOptions>)
    made = std::make_shared<T>();
  else
    made = std::make_shared<T>(options);
  const auto written = [&options] { return FieldTraits<OptionsType<T>>::write(options); };
  detail::ComponentAccess::made_from<Base>(*made, written, [options] { return make_component<Base, T>(options); });
  return made;
}

namespace detail {

template <class T>
concept HasOptions = !std::same_as<OptionsType<T>, NoOptions>;

/// Says in one line why T cannot be a component; the compiler's own errors only describe the consequences.
template <class Base, class T>
consteval bool check_component() {
  constexpr bool derives = std::derived_from<T, Base>;
  static_assert(derives,
                "FULGUR_REGISTER: the class does not derive (publicly) from the base that it is registered as");
  constexpr bool concrete = !std::is_abstract_v<T>;
  static_assert(!derives || concrete,
                "FULGUR_REGISTER: the class is abstract: override what its base declares as pure (= 0), with the same "
                "arguments and const");
  constexpr bool described = !HasOptions<T> || requires(OptionsType<T> & options, Fields & fields) {
    options.fields(fields);
  };
  static_assert(described, "FULGUR_REGISTER: the class's Options have no `void fields(fulgur::Fields&)`");
  constexpr bool made =
      HasOptions<T> ? std::is_constructible_v<T, const OptionsType<T>&> : std::is_default_constructible_v<T>;
  static_assert(
      !derives || !concrete || made,
      "FULGUR_REGISTER: the class has no public constructor that takes its Options (or nothing, if it has no Options)");
  return derives && concrete && described && made;
}

}  // namespace detail

/// The components that derive from Base. `Base::kRegistryKind` names the registry.
template <class Base>
class Registry {
 public:
  static ComponentRegistry& instance() { return component_registry(Base::kRegistryKind); }

  /// Registers T (with its `Options`, if any) under `name`.
  template <class T>
  static bool add(std::string name, std::string doc, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) noexcept {
    if constexpr (detail::check_component<Base, T>()) {
      ComponentInfo info;
      info.name = std::move(name);
      info.doc = std::move(doc);
      info.file = file;
      info.line = line;
#ifdef FULGUR_BUILT_WITH
      info.built_with = &detail::FULGUR_BUILT_WITH;
#endif
      if constexpr (requires { std::string(T::kExports); }) info.exports = T::kExports;
      info.make_options = [] { return std::make_unique<OptionsOf<OptionsType<T>>>(); };
      info.create = [](const AnyOptions& options) -> std::shared_ptr<void> {
        const auto& typed = static_cast<const OptionsOf<OptionsType<T>>&>(options);
        return std::shared_ptr<Base>(make_component<Base, T>(typed.value));
      };
      instance().add(std::move(info));
    }
    return true;
  }

  static bool alias(std::string alias, std::string name) noexcept {
    instance().add_alias(std::move(alias), std::move(name));
    return true;
  }

  static std::shared_ptr<Base> create(std::string_view name, const AnyOptions& options) {
    return std::static_pointer_cast<Base>(instance().get(name).create(options));
  }
};

namespace detail {
[[noreturn]] FULGUR_API void throw_other_options(const std::string& class_path);
}  // namespace detail

/// A component chosen by the config, as `{class_path: Name, init_args: {…}}` or just `Name`. Its options are checked
/// when the config is read, before anything is created. Some kinds have common options (`Base::CommonOptions`), which
/// are keys beside `class_path`.
class FULGUR_API ComponentSpec {
 public:
  explicit ComponentSpec(std::string kind) : kind_(std::move(kind)) {}
  ComponentSpec(std::string kind, std::string class_path);
  ComponentSpec(const ComponentSpec& other);
  ComponentSpec& operator=(const ComponentSpec& other);
  ComponentSpec(ComponentSpec&&) noexcept = default;
  ComponentSpec& operator=(ComponentSpec&&) noexcept = default;
  ~ComponentSpec();

  const std::string& kind() const { return kind_; }
  /// The name of the chosen class; empty if nothing is chosen.
  const std::string& class_path() const { return class_path_; }
  explicit operator bool() const { return !class_path_.empty(); }
  /// Throws std::logic_error if nothing is chosen, and a ConfigError if the class is unknown.
  AnyOptions& options();
  const AnyOptions& options() const;
  /// The options that the config sets beside `class_path`; nullptr if it sets none.
  const AnyOptions* common_options() const { return common_options_.get(); }

  /// Null means that nothing is chosen. A map without `class_path` sets options of the class already chosen;
  /// those that it does not name keep their values.
  bool read(const ConfigNode& node, Problems& problems, const std::string& path);
  /// Null if nothing is chosen.
  ConfigNode write() const;
  Location where;  ///< of the class path in the config

 private:
  std::string kind_;
  std::string class_path_;
  mutable std::unique_ptr<AnyOptions> options_;  // created at first use: the class may be registered after this object
  std::unique_ptr<AnyOptions> common_options_;
};

template <class Base>
class Spec : public ComponentSpec {
 public:
  Spec() : ComponentSpec(Base::kRegistryKind) {}
  /// The class of that name, with its default options: `options.strategy = "ddp"`.
  Spec(std::string class_path) : ComponentSpec(Base::kRegistryKind, std::move(class_path)) {}
  Spec(const char* class_path) : Spec(std::string(class_path)) {}
  Spec(std::nullptr_t) = delete;
  /// The class T, which is registered as `class_path`, with options: `Spec<Optimizer>::of<AdamW>("AdamW", {.lr =
  /// 0.01})`. Throws a ConfigError if that class is unknown or has other options.
  template <class T>
  static Spec of(std::string class_path, const OptionsType<T>& options) {
    Spec spec(std::move(class_path));
    auto* const own = dynamic_cast<OptionsOf<OptionsType<T>>*>(&spec.options());
    if (own == nullptr) detail::throw_other_options(spec.class_path());
    own->value = options;
    return spec;
  }
  std::shared_ptr<Base> create() const {
    std::shared_ptr<Base> made = Registry<Base>::create(class_path(), options());
    if constexpr (requires { typename Base::CommonOptions; }) {
      using Common = OptionsOf<typename Base::CommonOptions>;
      if (common_options()) made->set_common_options(static_cast<const Common*>(common_options())->value);
    }
    return made;
  }
};

template <class Base>
struct FieldTraits<Spec<Base>> {
  static TypeInfo type() {
    return {.kind = TypeInfo::Kind::component, .name = Base::kRegistryKind, .registry_kind = Base::kRegistryKind};
  }
  static bool read(const ConfigNode& n, Spec<Base>& v, Problems& p, const std::string& path) {
    return v.read(n, p, path);
  }
  static ConfigNode write(const Spec<Base>& v) { return v.write(); }
};

}  // namespace fulgur

#define FULGUR_CONCAT_(a, b) a##b
#define FULGUR_CONCAT(a, b) FULGUR_CONCAT_(a, b)

/// Registers a custom class, in one .cpp file of the program or plug-in: `FULGUR_REGISTER(fulgur::Callback, MyCallback,
/// "What it does.")`.
#define FULGUR_REGISTER(Base, Type, doc)                                              \
  [[maybe_unused]] static const bool FULGUR_CONCAT(fulgur_registered_, __COUNTER__) = \
      ::fulgur::Registry<Base>::add<Type>(#Type, doc)
