#pragma once

#include <torch/nn/module.h>

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/contracts/placed_module.h"
#include "fulgur/nn/placed_call.h"

namespace fulgur::nn {

/// A submodule that a strategy may place on its own device, or on a group of devices: a handle that is called like the
/// module, and moves inputs to where it computes. Copies refer to the same submodule. Created by `register_placed`:
///
///     struct Translator : fulgur::LightningModule {
///       fulgur::nn::Placed<Encoder> encoder_ = fulgur::nn::register_placed<Encoder>(*this, "encoder", 64, 128);
///       … encoder_(batch["source"]) …
///     };
///
/// The tensor arguments of a call (Tensor, TensorList; std::optional, std::vector, std::tuple and std::pair of them)
/// are treated according to the placement of the submodule; arguments of any other type are passed unchanged, even if
/// they hold tensors:
/// - nowhere: they stay where they are;
/// - on one device: they are moved there, differentiably; the result is there;
/// - on several: they are split along dimension 0 into parts as even as possible, one for each device's copy of the
///   module, which compute concurrently (`parallel_apply`); the results are joined in dimension 0 on the first device.
///   A batch with fewer samples uses fewer devices. All tensors must have the same number of samples, except for those
///   without dimensions and undefined ones, which go to every device; a result must have its samples in dimension 0.
///   Other arguments are shared by the copies, const: a `forward` that modifies or takes ownership of one of them works
///   only on one device. Otherwise an Error names the module and the cause;
/// - manually (`placement().checks_inputs()`): they stay where they are, and a tensor on another device than the
///   module's first parameter is an Error that names both.
///
/// The module's `forward` returns a Tensor, or a std::tuple, pair, vector or optional of them. `forward` of an empty
/// nn::Placed is an Error.
template <class M>
class Placed {
  static_assert(
      std::derived_from<M, torch::nn::Module>,
      "nn::Placed<M>: M must be a module class; for a layer of LibTorch that is the class whose name ends with "
      "Impl (LinearImpl)");

 public:
  /// An empty handle.
  Placed() = default;
  Placed(std::shared_ptr<M> module, std::shared_ptr<PlacedModule> placement)
      : module_(std::move(module)), placement_(std::move(placement)) {}

  template <class... Args>
  auto operator()(Args&&... args) const {
    return forward(std::forward<Args>(args)...);
  }
  template <class... Args>
  auto forward(Args&&... args) const {
    using Result = std::remove_cvref_t<decltype(module_->forward(std::forward<Args>(args)...))>;
    static_assert(detail::kGatherable<Result>,
                  "nn::Placed<M>: M::forward must return a Tensor, or a std::tuple, std::pair, std::vector or "
                  "std::optional of tensors, so that the results of several devices can be joined; return the tensors, "
                  "and compute anything else from them after the call");
    if (!module_) detail::throw_empty_placed();
    const PlacedModule& placed = *placement_;
    if (placed.checks_inputs()) {
      const detail::InputCheck check(placed);
      size_t argument = 0;
      (detail::for_each_tensor(args, [&, at = argument++](const Tensor& tensor) { check.look(tensor, at); }), ...);
    } else if (placed.devices().size() == 1) {
      const at::Device device = placed.devices()[0];
      return [&](auto&&... there) {
        return Result(module_->forward(detail::as_given<Args>(there)...));
      }(detail::moved(std::forward<Args>(args), device)...);
    } else if (placed.devices().size() > 1) {
      if constexpr (requires { module_->forward(std::declval<detail::PartOf<Args>&>()...); })
        return on_group<Result>(std::as_const(args)...);
      else
        detail::throw_not_shareable(placed);
    }
    return Result(module_->forward(std::forward<Args>(args)...));
  }

  /// The registered module, for example to initialise it. Calls of it run on its own device, without the copies.
  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  const std::shared_ptr<M>& ptr() const { return module_; }
  explicit operator bool() const { return static_cast<bool>(module_); }

  /// Where it is placed. A strategy sets it through `LightningModule::placed_modules()`.
  const PlacedModule& placement() const {
    if (!placement_) detail::throw_empty_placed();
    return *placement_;
  }

 private:
  template <class Result, class... Args>
  Result on_group(const Args&... args) const {
    detail::GroupCall call(*placement_);
    size_t argument = 0;
    (detail::for_each_tensor(args, [&, at = argument++](const Tensor& tensor) { call.look(tensor, at); }), ...);
    std::vector<std::tuple<detail::PartOf<Args>...>> parts;
    parts.reserve(call.parts());
    for (size_t i = 0; i < call.parts(); ++i) parts.emplace_back(detail::part_of(args, call, i)...);
    std::vector<std::optional<Result>> results(call.parts());
    call.run([&](size_t i, torch::nn::Module& replica) {
      std::apply([&](auto&... part) { results[i].emplace(detail::cast_module<M>(replica).forward(part...)); },
                 parts[i]);
    });
    return detail::gather<Result>([&](size_t i) -> const Result& { return *results[i]; }, call);
  }

  std::shared_ptr<M> module_;
  std::shared_ptr<PlacedModule> placement_;
};

/// Creates an M from `args`, registers it as submodule `name` of `parent`, and makes it known to the parent's strategy.
/// For a constructor, `setup` or `configure_model`. Copies for more devices are created from the same `args`, which are
/// kept: pass values (options, numbers, strings), not tensors or modules, which all copies would share. In checkpoints
/// it is an ordinary submodule.
template <class M, class... Args>
Placed<M> register_placed(LightningModule& parent, const std::string& name, Args... args) {
  static_assert(std::constructible_from<M, const Args&...>,
                "nn::register_placed<M>: M must have a constructor for these arguments, which must be copyable, since "
                "each copy of M is created from them");
  auto make = [args = std::tuple<Args...>(std::move(args)...)] {
    return std::apply([](const auto&... each) { return std::make_shared<M>(each...); }, args);
  };
  auto module = parent.register_module(name, make());
  auto placement = std::make_shared<PlacedModule>(name, module, std::move(make));
  fulgur::detail::ComponentAccess::add_placed_module(parent, placement);
  return Placed<M>(std::move(module), std::move(placement));
}

}  // namespace fulgur::nn
