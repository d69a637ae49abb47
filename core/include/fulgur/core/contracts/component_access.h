#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <typeinfo>
#include <utility>

#include "fulgur/core/contracts/hooks.h"
#include "fulgur/core/options/config_node.h"

namespace fulgur {
class PlacedModule;
class RunContext;
}  // namespace fulgur

namespace fulgur::detail {

/// Access to the members of a component that factories, the Trainer and strategies set, and its user does not.
struct ComponentAccess {
  template <class C>
  static const HookMask& overridden(const C& component) {
    return component.overridden_;
  }
  template <class C>
  static void set_overridden(C& component, const HookMask& mask) {
    component.overridden_ = mask;
  }
  /// Which hooks the class C overrides; `Base` is the kind of component.
  template <class Base, class C>
  static HookMask hooks_of() {
    return Base::template hooks_of<C>();
  }
  /// Determines which hooks are overridden from the static class of a component, unless its factory has done so.
  template <class Base, class C>
  static void find_overridden(C& component) {
    Base& base = component;
    if (!base.overridden_.exact) base.overridden_ = hooks_of<Base, C>();
    note_object<Base>(component);
  }

  /// Notes where the component and its members are, if C is its own class.
  template <class Base, class C>
  static void note_object(C& component) {
    Base& base = component;
    if constexpr (requires { base.whole_object_; })
      if (const C& whole = component; typeid(whole) == typeid(C)) base.whole_object_ = {&component, sizeof(C)};
  }

  /// Records that a factory has made the component from `options()`, and can make another with `make_another`.
  template <class Base, class C, class Options, class Factory>
  static void made_from(C& made, Options options, Factory&& make_another) {
    Base& base = made;  // C may have members of the same names
    if constexpr (requires { base.hparams_; }) base.hparams_ = options();
    if constexpr (requires { base.overridden_; }) base.overridden_ = hooks_of<Base, C>();
    note_object<Base>(made);
    if constexpr (requires { base.factory_; }) base.factory_ = std::forward<Factory>(make_another);
  }

  // ---- of a metric ----
  /// Launches of a recorded step update a metric without calling `update`.
  template <class Metric>
  static void set_updates(Metric& metric, int64_t updates) {
    metric.updates_ = updates;
  }

  // ---- of a module ----
  /// The memory of a module with its members, and that of the part that is a LightningModule; both are empty if its
  /// class is not known.
  struct Object {
    std::span<const std::byte> whole, base;
  };
  template <class Module>
  static Object object_of(const Module& module) {
    const auto& [begin, bytes] = module.whole_object_;
    const auto* const from = static_cast<const std::byte*>(begin);
    const auto* const own = reinterpret_cast<const std::byte*>(&module);
    // A copy has the values of the module that it was made of.
    if (bytes == 0 || dynamic_cast<const void*>(&module) != begin) return {};
    return {{from, bytes}, {own, sizeof(Module)}};
  }

  /// Sets the run that the module is in; nullptr when the run ends.
  template <class Module>
  static void set_run(Module& module, RunContext* run) {
    module.run_ = run;
  }
  /// The function that creates another module of this class from the same options; empty if no factory created the
  /// module.
  template <class Module>
  static const auto& factory(const Module& module) {
    return module.factory_;
  }
  /// Submodules that a strategy may place on other devices, in registration order; see nn::Placed.
  template <class Module>
  static const auto& placed_modules(const Module& module) {
    return module.placed_modules_;
  }
  template <class Module>
  static void add_placed_module(Module& module, std::shared_ptr<PlacedModule> placed) {
    module.placed_modules_.push_back(std::move(placed));
  }
};

}  // namespace fulgur::detail
