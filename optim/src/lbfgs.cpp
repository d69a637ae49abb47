#include "fulgur/optim/lbfgs.h"

#include <torch/optim/lbfgs.h>

#include <deque>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

using TorchState = torch::optim::LBFGSParamState;

struct LBFGS::Impl {
  explicit Impl(std::vector<Tensor> parameters, const torch::optim::LBFGSOptions& options)
      : torch(std::move(parameters), options) {}
  // LibTorch keeps the state with the first parameter; nullptr before the first step.
  TorchState* state() {
    const auto found = torch.state().find(first());
    return found == torch.state().end() ? nullptr : static_cast<TorchState*>(found->second.get());
  }
  void* first() { return torch.param_groups()[0].params()[0].unsafeGetTensorImpl(); }
  torch::optim::LBFGS torch;
};

void LBFGS::Options::fields(Fields& f) {
  f(lr, "lr", "Learning rate: length of a step, or the first one that the line search tries.")
      .learning_rate()
      .at_least(0);
  f(max_iter, "max_iter", "Maximum number of iterations in a step.").at_least(1);
  f(max_eval, "max_eval", "Maximum number of evaluations of the loss in a step; null: max_iter * 5 / 4.").at_least(1);
  f(tolerance_grad, "tolerance_grad", "A step ends if no gradient is larger than this.").at_least(0);
  f(tolerance_change, "tolerance_change", "A step ends if parameters and loss change less than this.").at_least(0);
  f(history_size, "history_size", "Number of updates kept; each takes twice the memory of the parameters.").at_least(1);
  f(line_search_fn, "line_search_fn", "Line search; null: steps of fixed length.");
}

LBFGS::LBFGS(Options options) : options_(std::move(options)) {}
LBFGS::~LBFGS() = default;

bool LBFGS::is_first(const Tensor& parameter) const { return parameter.is_same(groups()[0].params[0]); }

void LBFGS::on_attached() {
  if (groups().size() != 1)
    throw ConfigError(cat("[optim.LBFGS] all parameters must be in one group; got ", groups().size(),
                          " groups. Use one group, or another optimizer."));
  const ParamGroup& group = groups()[0];
  if (group.weight_decay && *group.weight_decay != 0)
    throw ConfigError("[optim.LBFGS] LBFGS has no weight decay. Add the penalty to the loss.");
  const Tensor& first = group.params[0];
  for (size_t i = 1; i < group.params.size(); ++i)
    if (group.params[i].device() != first.device() || group.params[i].scalar_type() != first.scalar_type())
      throw ConfigError(cat("[optim.LBFGS] all parameters must have the same device and dtype; '", group.names[i],
                            "' is ", c10::toString(group.params[i].scalar_type()), " on ",
                            group.params[i].device().str(), ", '", group.names[0], "' ",
                            c10::toString(first.scalar_type()), " on ", first.device().str(), "."));
  // LibTorch's class looks at each parameter and gradient as one row.
  for (size_t i = 0; i < group.params.size(); ++i)
    if (!group.params[i].is_contiguous())
      throw ConfigError(cat("[optim.LBFGS] all parameters must be contiguous; '", group.names[i], "' of shape ",
                            shape_text(group.params[i].sizes()),
                            " has its dimensions in another order in memory. Leave out trainer.memory_format: "
                            "channels_last, or use another optimizer."));
  torch::optim::LBFGSOptions torch_options(options_.lr);
  torch_options.max_iter(options_.max_iter).max_eval(options_.max_eval).tolerance_grad(options_.tolerance_grad);
  torch_options.tolerance_change(options_.tolerance_change)
      .history_size(options_.history_size)
      .line_search_fn(options_.line_search_fn ? std::optional(std::string(enum_text(*options_.line_search_fn)))
                                              : std::nullopt);
  impl_ = std::make_unique<Impl>(group.params, torch_options);
}

Tensor LBFGS::step_closure(const Closure& closure) {
  if (!impl_) throw Error("[optim.LBFGS] attach parameters before the first step.");
  static_cast<torch::optim::LBFGSOptions&>(impl_->torch.param_groups()[0].options()).lr(groups()[0].lr);
  return impl_->torch.step(closure);
}

void LBFGS::step(const std::optional<Tensor>&) {
  throw Error("[optim.LBFGS] a step evaluates the loss several times and needs a closure; call step_closure(closure).");
}

StateTree LBFGS::parameter_state(const Tensor& parameter) const {
  StateTree tree;
  const TorchState* state = is_first(parameter) ? impl_->state() : nullptr;
  if (!state) return tree;
  tree["func_evals"] = state->func_evals();
  tree["n_iter"] = state->n_iter();
  if (!state->d().defined()) return tree;  // the first gradient was below the tolerance
  tree["d"] = state->d();
  tree["t"] = state->t();
  tree["H_diag"] = state->H_diag();
  tree["prev_flat_grad"] = state->prev_flat_grad();
  tree["prev_loss"] = state->prev_loss();
  // `al` is not saved: each iteration writes it before reading it.
  const auto list = [](const std::deque<Tensor>& tensors) { return StateTree::List(tensors.begin(), tensors.end()); };
  tree["old_dirs"] = list(state->old_dirs());
  tree["old_stps"] = list(state->old_stps());
  tree["ro"] = list(state->ro());
  return tree;
}

void LBFGS::check_parameter_state(const std::string& parameter, const Tensor& value, const StateTree& state) const {
  if (state.as_map().empty()) return;
  if (!is_first(value))
    throw CheckpointError(
        cat("state of '", parameter, "' must be empty: LBFGS keeps its whole state with the first parameter"));
  state.at("func_evals").as_int();
  if (state.at("n_iter").as_int() == 0) return;
  state.at("t").as_double();
  state.at("prev_loss").as_double();
  int64_t numel = 0;
  for (const Tensor& p : groups()[0].params) numel += p.numel();
  const auto check = [&](const StateTree& saved, std::string_view key, int64_t wanted) {
    if (saved.tensor().numel() != wanted)
      throw CheckpointError(cat("size of ", key, ": checkpoint ", saved.tensor().numel(), ", all parameters ", wanted));
  };
  for (const char* key : {"d", "prev_flat_grad"}) check(state.at(key), key, numel);
  check(state.at("H_diag"), "H_diag", 1);
  const size_t kept = state.at("old_dirs").as_list().size();
  if (kept > static_cast<size_t>(options_.history_size))
    throw CheckpointError(cat("the checkpoint keeps ", kept, " updates, but history_size is ", options_.history_size));
  for (const char* key : {"old_dirs", "old_stps", "ro"}) {
    const auto& list = state.at(key).as_list();
    if (list.size() != kept) throw CheckpointError(cat(key, " has ", list.size(), " entries, but old_dirs has ", kept));
    for (const StateTree& item : list) check(item, key, key == std::string_view("ro") ? 1 : numel);
  }
}

void LBFGS::load_state(const StateTree& state) {
  const auto& saved_groups = state.at("groups").as_list();
  if (state.at("class").as_string() == name() && saved_groups.size() == 1 && groups().size() == 1) {
    const auto& saved = saved_groups[0].at("params").as_list();
    const auto& names = groups()[0].names;
    for (size_t i = 0; i < names.size() && i < saved.size() && saved.size() == names.size(); ++i)
      if (saved[i].as_string() != names[i])
        throw CheckpointError(
            cat("[optim.LBFGS] the parameters are in another order: parameter ", i, " is '", saved[i].as_string(),
                "' in the checkpoint and '", names[i],
                "' in the run. Its state is one vector over all of them, so the order must be the same."));
  }
  Optimizer::load_state(state);
}

void LBFGS::load_parameter_state(const Tensor& parameter, const StateTree& state) {
  if (!is_first(parameter)) return;
  auto& all = impl_->torch.state();
  all.erase(impl_->first());
  if (state.as_map().empty()) return;
  auto loaded = std::make_unique<TorchState>();
  loaded->func_evals(state.at("func_evals").as_int());
  loaded->n_iter(state.at("n_iter").as_int());
  if (loaded->n_iter() > 0) {
    const auto copy = [&](const StateTree& saved) {
      return saved.tensor().detach().to(parameter.options().requires_grad(false), /*non_blocking=*/false,
                                        /*copy=*/true);
    };
    const auto copies = [&](std::string_view key) {
      std::deque<Tensor> out;
      for (const StateTree& item : state.at(key).as_list()) out.push_back(copy(item));
      return out;
    };
    loaded->d(copy(state.at("d"))).t(state.at("t").as_double()).H_diag(copy(state.at("H_diag")));
    loaded->prev_flat_grad(copy(state.at("prev_flat_grad"))).prev_loss(state.at("prev_loss").as_double());
    loaded->old_dirs(copies("old_dirs")).old_stps(copies("old_stps")).ro(copies("ro"));
  }
  all[impl_->first()] = std::move(loaded);
}

[[maybe_unused]] static const bool registered_lbfgs =
    Registry<Optimizer>::add<LBFGS>("LBFGS", "LibTorch's L-BFGS; evaluates the loss several times in a step.");

}  // namespace fulgur
