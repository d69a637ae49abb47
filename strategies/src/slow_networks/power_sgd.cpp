#include "slow_networks/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "slow_networks/orthonormal.h"

namespace fulgur::detail {
namespace {

int64_t columns_of(const Tensor& gradient) { return gradient.numel() / gradient.size(0); }

Tensor random_matrix(uint64_t seed, int64_t rows, int64_t columns, const Tensor& like) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn({rows, columns}, generator, at::TensorOptions(at::kFloat)).to(like.device());
}

// The tensors one after another; `views` are their places.
Tensor joined(const std::vector<Tensor>& tensors, std::vector<Tensor>& views) {
  std::vector<Tensor> flat;
  for (const Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  Tensor all = at::cat(flat);
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    views.push_back(all.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
  return all;
}

void require_gradients(const std::vector<NamedParameter>& parameters, int64_t rank) {
  std::vector<std::string> missing;
  for (const auto& [name, value] : parameters)
    if (!value.grad().defined()) missing.push_back(name);
  if (!missing.empty()) throw no_gradient_error(missing, rank);
}

}  // namespace

/// A gradient matrix M [n, m] and its factors: M is close to left · rightᵀ.
struct PowerSgd::Factors {
  Memory* memory;
  Tensor gradient;
  Tensor matrix;  ///< with what was lost before
  Tensor left;    ///< [n, r]
  Tensor right;   ///< [m, r]
};

void PowerSgd::start(const std::vector<NamedParameter>& parameters, const StateTree& loaded) {
  std::vector<Memory> memories;
  for (const NamedParameter& parameter : parameters) {
    Memory* const known = memory_of(parameter.value);
    memories.push_back(known != nullptr ? std::move(*known)
                                        : Memory{.parameter = parameter, .error = {}, .factor = {}});
  }
  memories_ = std::move(memories);
  for (Memory& memory : memories_) {
    const auto& [name, value] = memory.parameter;
    if (!loaded.contains(name)) continue;
    const StateTree& saved = loaded.at(name);
    const Tensor factor = saved.at("factor").tensor(),
                 error = saved.contains("error") ? saved.at("error").tensor() : Tensor();
    const int64_t rows = value.size(0), columns = columns_of(value);
    if (factor.dim() != 2 || factor.size(0) != columns ||
        (error.defined() && error.sizes() != at::IntArrayRef({rows, columns})))
      throw CheckpointError(cat("[strategies.ddp] the factors of PowerSGD in the checkpoint do not fit '", name, "'."));
    // With another rank, the factors begin again; what is left to send stays.
    if (factor.size(1) == std::min({options_.matrix_approximation_rank, rows, columns}))
      memory.factor = factor.to(value.device());
    if (error.defined() && options_.use_error_feedback) memory.error = error.to(value.device());
  }
}

PowerSgd::Memory* PowerSgd::memory_of(const Tensor& parameter) {
  const auto found =
      std::ranges::find_if(memories_, [&](const Memory& m) { return m.parameter.value.is_same(parameter); });
  return found == memories_.end() ? nullptr : &*found;
}

bool PowerSgd::is_worth_it(const Tensor& gradient) const {
  if (gradient.dim() < 2 || gradient.numel() == 0 || !gradient.is_floating_point() ||
      gradient.scalar_type() == at::kDouble)
    return false;
  const int64_t rows = gradient.size(0), columns = columns_of(gradient);
  return static_cast<double>((rows + columns) * options_.matrix_approximation_rank) * options_.min_compression_rate <
         static_cast<double>(rows * columns);
}

const Tensor& PowerSgd::spare(int64_t rows, int64_t columns, const Tensor& like) {
  Tensor& found = spares_[{rows, columns}];
  if (!found.defined()) found = random_matrix(/*seed=*/1, rows, columns, like);
  return found;
}

PowerSgd::Factors PowerSgd::begin(Memory& memory, const Tensor& gradient, int64_t steps) {
  const int64_t rows = gradient.size(0), columns = columns_of(gradient);
  const int64_t rank = std::min({options_.matrix_approximation_rank, rows, columns});
  Factors out{.memory = &memory,
              .gradient = gradient,
              .matrix = gradient.reshape({rows, columns}).to(at::kFloat),
              .left = {},
              .right = {}};
  if (memory.error.defined()) out.matrix = out.matrix + memory.error;
  if (memory.factor.defined() && options_.warm_start) {
    out.right = memory.factor.clone();
  } else {
    const auto place = static_cast<uint64_t>(&memory - memories_.data());
    out.right = random_matrix(static_cast<uint64_t>(steps) * memories_.size() + place + 2, rows > 0 ? columns : 0, rank,
                              gradient);
  }
  make_orthonormal(out.right, spare(columns, rank, gradient));
  out.left = out.matrix.mm(out.right);
  return out;
}

void PowerSgd::exchange(std::vector<Factors>& matrices, const std::vector<Tensor>& whole, C10dCollectives& ranks) {
  const auto world = static_cast<double>(ranks.world_size());
  // The averages of `tensors`, as views of what was sent.
  const auto averaged = [&](const std::vector<Tensor>& tensors) {
    std::vector<Tensor> views;
    const Tensor all = joined(tensors, views);
    ranks.sum(all);
    all.div_(world);
    return views;
  };
  std::vector<Tensor> first, second, others;
  for (const Factors& matrix : matrices) first.push_back(matrix.left);
  std::vector<Tensor> with_left;
  for (const Tensor& tensor : whole) {
    const bool alike = tensor.scalar_type() == at::kFloat && !matrices.empty();
    (alike ? with_left : others).push_back(tensor);
  }
  if (!others.empty()) whole_.average(others, ranks);
  if (matrices.empty()) return;
  first.insert(first.end(), with_left.begin(), with_left.end());
  std::vector<Tensor> views = averaged(first);
  for (size_t i = 0; i < matrices.size(); ++i) {
    Factors& matrix = matrices[i];
    matrix.left = views[i];
    make_orthonormal(matrix.left, spare(matrix.left.size(0), matrix.left.size(1), matrix.left));
    second.push_back(matrix.matrix.t().mm(matrix.left));
  }
  views.erase(views.begin(), views.begin() + static_cast<std::ptrdiff_t>(matrices.size()));
  if (!with_left.empty()) at::_foreach_copy_(with_left, views);
  views = averaged(second);
  for (size_t i = 0; i < matrices.size(); ++i) matrices[i].right = views[i];
}

void PowerSgd::average(const std::vector<Tensor>& parameters, bool may_be_missing, int64_t steps,
                       C10dCollectives& ranks) {
  const at::NoGradGuard no_grad;
  if (ranks.world_size() == 1) return;
  if (steps < options_.start_step && may_be_missing) return whole_.average_gradients(parameters, ranks);
  std::vector<Factors> matrices;
  std::vector<Tensor> whole;
  for (const Tensor& parameter : may_be_missing ? parameters_with_gradient(parameters, ranks) : parameters) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    if (parameter.grad().is_sparse()) parameter.mutable_grad() = parameter.grad().to_dense();
    const Tensor& gradient = parameter.grad();
    Memory* const memory = memory_of(parameter);
    if (steps >= options_.start_step && memory != nullptr && is_worth_it(gradient))
      matrices.push_back(begin(*memory, gradient, steps));
    else
      whole.push_back(gradient);
  }
  exchange(matrices, whole, ranks);
  for (Factors& matrix : matrices) {
    const Tensor approximation = matrix.left.mm(matrix.right.t());
    // An infinite gradient must not stay in what is kept: the policy for such steps decides about the step alone.
    const Tensor good = at::isfinite(matrix.right.sum());
    Memory& memory = *matrix.memory;
    const auto kept = [&](const Tensor& next, const Tensor& before) {
      return at::where(good, next, before.defined() ? before : at::zeros_like(next));
    };
    if (options_.use_error_feedback) memory.error = kept(matrix.matrix - approximation, memory.error);
    memory.factor = kept(matrix.right, memory.factor);
    matrix.gradient.copy_(approximation.view(matrix.gradient.sizes()));
  }
}

bool PowerSgd::has_nothing_to_do() const {
  return std::ranges::none_of(memories_, [&](const Memory& m) { return is_worth_it(m.parameter.value); });
}

std::string PowerSgd::describe() const {
  int64_t factored = 0, numbers = 0, sent = 0;
  for (const Memory& memory : memories_) {
    const Tensor& value = memory.parameter.value;
    if (!value.requires_grad()) continue;
    numbers += value.numel();
    const bool as_factors = is_worth_it(value);
    factored += as_factors ? 1 : 0;
    const int64_t rank = std::min(
        {options_.matrix_approximation_rank, value.dim() > 0 ? value.size(0) : 1, as_factors ? columns_of(value) : 1});
    sent += as_factors ? (value.size(0) + columns_of(value)) * rank : value.numel();
  }
  const double share = numbers == 0 ? 0 : static_cast<double>(sent) / static_cast<double>(numbers) * 100;
  return cat(factored, " of ", counted(static_cast<int64_t>(memories_.size()), "parameter"), " as factors of rank ",
             options_.matrix_approximation_rank, ", ", format_fixed(share, 1), " % of the bytes");
}

StateTree PowerSgd::state() const {
  StateTree state = StateTree::map({});
  for (const Memory& memory : memories_)
    if (memory.factor.defined())
      state[memory.parameter.name] = memory.error.defined()
                                         ? StateTree::map({{"factor", memory.factor}, {"error", memory.error}})
                                         : StateTree::map({{"factor", memory.factor}});
  return state;
}

void PowerSgdExchange::after_backward() {
  if (!find_unused_) require_gradients(parameters(), ranks_.rank_in_run());
  std::vector<Tensor> tensors;
  for (const NamedParameter& parameter : parameters()) tensors.push_back(parameter.value);
  power_.average(tensors, find_unused_, steps_, ranks_);
}

}  // namespace fulgur::detail
