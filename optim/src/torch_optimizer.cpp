#include "fulgur/optim/torch_optimizer.h"

#include <ATen/ops/full_like.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

namespace to = torch::optim;

// The state of each class per parameter, under Python's names: `visit(key, value, whether these options need it)`.
// Of Adam and AdamW.
template <class State, class AdamOptions, class V>
requires requires(State& s) { s.max_exp_avg_sq(); }
void visit_state(State& s, const AdamOptions& o, V&& visit) {
  visit("step", s.step());
  visit("exp_avg", s.exp_avg(), true);
  visit("exp_avg_sq", s.exp_avg_sq(), true);
  visit("max_exp_avg_sq", s.max_exp_avg_sq(), o.amsgrad());
}
template <class V>
void visit_state(to::SGDParamState& s, const to::SGDOptions& o, V&& visit) {
  visit("momentum_buffer", s.momentum_buffer(), o.momentum() != 0);
}
template <class V>
void visit_state(to::RMSpropParamState& s, const to::RMSpropOptions& o, V&& visit) {
  visit("step", s.step());
  visit("square_avg", s.square_avg(), true);
  visit("momentum_buffer", s.momentum_buffer(), o.momentum() > 0);
  visit("grad_avg", s.grad_avg(), o.centered());
}
template <class V>
void visit_state(to::AdagradParamState& s, const to::AdagradOptions&, V&& visit) {
  visit("step", s.step());
  visit("sum", s.sum(), true);
}

struct Save {
  StateTree& tree;
  void operator()(const char* key, int64_t value) const { tree[key] = value; }
  void operator()(const char* key, const Tensor& value, bool) const {
    if (value.defined()) tree[key] = value;
  }
};

struct Load {
  const StateTree& tree;
  const Tensor& parameter;
  void operator()(const char* key, int64_t& value) const { value = tree.at(key).as_int(); }
  void operator()(const char* key, Tensor& value, bool needed) const {
    if (needed)
      value = tree.at(key).tensor().detach().to(parameter.options().requires_grad(false), /*non_blocking=*/false,
                                                /*copy=*/true);
  }
};

struct Check {
  const StateTree& tree;
  const Tensor& parameter;
  const std::string& name;
  size_t& keys;
  void operator()(const char* key, int64_t) const {
    tree.at(key).as_int();
    ++keys;
  }
  void operator()(const char* key, const Tensor&, bool needed) const {
    if (!needed) return;
    ++keys;
    const Tensor& saved = tree.at(key).tensor();
    if (saved.sizes() != parameter.sizes())
      throw CheckpointError(cat("shape of ", key, " of '", name, "': checkpoint ", shape_text(saved.sizes()),
                                ", parameter ", shape_text(parameter.sizes())));
  }
};

// Calls `use` with the types of a class whose state is known; false for other classes.
template <class State, class TorchOptions>
struct Types {
  using StateType = State;
  using OptionsType = TorchOptions;
};
template <class Use>
bool with_types(const to::Optimizer& optimizer, Use&& use) {
  // Exactly these: a class derived from one of them may have more state.
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(to::AdamW))
    use(Types<to::AdamWParamState, to::AdamWOptions>{});
  else if (type == typeid(to::Adam))
    use(Types<to::AdamParamState, to::AdamOptions>{});
  else if (type == typeid(to::SGD))
    use(Types<to::SGDParamState, to::SGDOptions>{});
  else if (type == typeid(to::RMSprop))
    use(Types<to::RMSpropParamState, to::RMSpropOptions>{});
  else if (type == typeid(to::Adagrad))
    use(Types<to::AdagradParamState, to::AdagradOptions>{});
  else
    return false;
  return true;
}

const to::OptimizerOptions& options_of(const to::Optimizer& optimizer, const Tensor& parameter) {
  for (const auto& group : optimizer.param_groups())
    for (const Tensor& p : group.params())
      if (p.is_same(parameter)) return group.options();
  return optimizer.defaults();
}

[[noreturn]] void unknown_state(const std::string& name) {
  throw CheckpointError(cat("[optim.TorchOptimizer] the state of ", name,
                            " cannot be saved: its contents are unknown. Derive from fulgur::Optimizer instead, use "
                            "one of Adam, AdamW, SGD, RMSprop and Adagrad, or save weights only (save_weights_only)."));
}

// LibTorch's Adagrad creates its state in the constructor, and only for the group it is constructed with.
void complete_adagrad(to::Optimizer& optimizer) {
  if (!dynamic_cast<to::Adagrad*>(&optimizer)) return;
  for (auto& group : optimizer.param_groups())
    for (const Tensor& parameter : group.params()) {
      auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (state) continue;
      auto fresh = std::make_unique<to::AdagradParamState>();
      fresh->step(0).sum(at::full_like(parameter.detach(),
                                       static_cast<to::AdagradOptions&>(group.options()).initial_accumulator_value()));
      state = std::move(fresh);
    }
}

}  // namespace

TorchOptimizer::TorchOptimizer(Factory factory) : factory_(std::move(factory)) {}
TorchOptimizer::~TorchOptimizer() = default;

torch::optim::Optimizer& TorchOptimizer::wrapped() const {
  if (!torch_)
    throw Error("[optim.TorchOptimizer] the optimizer is created when parameters are attached; call attach() first.");
  return *torch_;
}

double TorchOptimizer::default_lr() const { return torch_ ? torch_->defaults().get_lr() : 0; }

std::string TorchOptimizer::name() const {
  if (!torch_) return "torch::optim";
  const to::Optimizer& optimizer = *torch_;
  return c10::demangle(typeid(optimizer).name());
}

void TorchOptimizer::on_attached() {
  torch_ = factory_(groups()[0].params);
  if (!torch_ || torch_->param_groups().size() != 1 ||
      torch_->param_groups()[0].params().size() != groups()[0].params.size()) {
    torch_.reset();
    throw ConfigError(
        "[optim.TorchOptimizer] the factory must create an optimizer with one group of the parameters passed to it.");
  }
  if (dynamic_cast<to::LBFGS*>(torch_.get()))
    throw ConfigError(
        "[optim.TorchOptimizer] torch::optim::LBFGS needs a closure. Use fulgur::LBFGS (optim/lbfgs.h), which is the "
        "same algorithm.");
  for (size_t g = 1; g < groups().size(); ++g) torch_->add_param_group(to::OptimizerParamGroup(groups()[g].params));
  complete_adagrad(*torch_);
  for (size_t g = 0; g < groups().size(); ++g) {
    ParamGroup& group = groups()[g];
    to::OptimizerOptions& options = torch_->param_groups()[g].options();
    if (group.lr == 0) group.lr = options.get_lr();
    if (group.initial_lr == 0) group.initial_lr = group.lr;
    if (!group.weight_decay) continue;
    const bool known = with_types(
        *torch_, [&]<class T>(T) { static_cast<typename T::OptionsType&>(options).weight_decay(*group.weight_decay); });
    if (!known)
      throw ConfigError(cat("[optim.TorchOptimizer] a group of ", name(),
                            " cannot have its own weight decay. Set it in the factory."));
  }
}

std::optional<double> TorchOptimizer::momentum() const {
  std::optional<double> value;
  if (!torch_) return value;
  with_types(*torch_, [&]<class T>(T) {
    const auto& options = static_cast<const typename T::OptionsType&>(torch_->param_groups()[0].options());
    if constexpr (requires { options.momentum(); })
      value = options.momentum();
    else if constexpr (requires { options.betas(); })
      value = std::get<0>(options.betas());
  });
  return value;
}

void TorchOptimizer::set_momentum(double value) {
  if (!momentum()) Optimizer::set_momentum(value);
  with_types(*torch_, [&]<class T>(T) {
    for (auto& group : torch_->param_groups()) {
      auto& options = static_cast<typename T::OptionsType&>(group.options());
      if constexpr (requires { options.momentum(); })
        options.momentum(value);
      else if constexpr (requires { options.betas(); })
        std::get<0>(options.betas()) = value;
    }
  });
}

std::optional<double> TorchOptimizer::weight_decay(const ParamGroup& group) const {
  std::optional<double> value = group.weight_decay;
  if (value || !torch_) return value;
  with_types(*torch_, [&]<class T>(T) {
    value = static_cast<const typename T::OptionsType&>(torch_->defaults()).weight_decay();
  });
  return value;
}

void TorchOptimizer::step(const std::optional<Tensor>& found_inf) {
  to::Optimizer& optimizer = wrapped();
  if (found_inf && found_inf->item<double>() != 0) return;
  for (size_t g = 0; g < groups().size(); ++g) optimizer.param_groups()[g].options().set_lr(groups()[g].lr);
  optimizer.step();
  // It writes through `.data()`, which does not increment versions; copies of parameters rely on these.
  for (const ParamGroup& group : groups())
    for (const Tensor& parameter : group.params) parameter.unsafeGetTensorImpl()->bump_version();
}

StateTree TorchOptimizer::parameter_state(const Tensor& parameter) const {
  StateTree tree;
  const to::Optimizer& optimizer = wrapped();
  const bool known = with_types(optimizer, [&]<class T>(T) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) return;
    visit_state(static_cast<typename T::StateType&>(*found->second),
                static_cast<const typename T::OptionsType&>(options_of(optimizer, parameter)), Save{tree});
  });
  if (!known) unknown_state(name());
  return tree;
}

void TorchOptimizer::check_parameter_state(const std::string& parameter, const Tensor& value,
                                           const StateTree& state) const {
  const to::Optimizer& optimizer = wrapped();
  const bool known = with_types(optimizer, [&]<class T>(T) {
    if (state.as_map().empty()) return;
    typename T::StateType unused;
    size_t keys = 0;
    visit_state(unused, static_cast<const typename T::OptionsType&>(options_of(optimizer, value)),
                Check{state, value, parameter, keys});
    if (state.as_map().size() != keys)
      throw CheckpointError(cat("state of '", parameter, "' has ", state.as_map().size(), " entries, but ", name(),
                                " with these options keeps ", keys));
  });
  if (!known) unknown_state(name());
}

void TorchOptimizer::load_parameter_state(const Tensor& parameter, const StateTree& state) {
  to::Optimizer& optimizer = wrapped();
  with_types(optimizer, [&]<class T>(T) {
    optimizer.state().erase(parameter.unsafeGetTensorImpl());
    if (state.as_map().empty()) return;
    auto loaded = std::make_unique<typename T::StateType>();
    visit_state(*loaded, static_cast<const typename T::OptionsType&>(options_of(optimizer, parameter)),
                Load{state, parameter});
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(loaded);
  });
  complete_adagrad(optimizer);
}

}  // namespace fulgur
