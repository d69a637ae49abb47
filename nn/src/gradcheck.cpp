#include "fulgur/nn/gradcheck.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::nn {
namespace {

/// The place of value `index` in row-major order.
std::vector<int64_t> place_of(const Tensor& tensor, int64_t index) {
  std::vector<int64_t> place(static_cast<size_t>(tensor.dim()));
  for (size_t d = place.size(); d-- > 0;) {
    place[d] = index % tensor.sizes()[d];
    index /= tensor.sizes()[d];
  }
  return place;
}

/// Value `index` in row-major order, as a view.
Tensor value_at(const Tensor& tensor, int64_t index) {
  Tensor view = tensor;
  for (const int64_t i : place_of(tensor, index)) view = view.select(0, i);
  return view;
}

/// Our own leaves, so that nothing is written into the caller's.
std::vector<Tensor> copies_of(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> copies;
  for (const Tensor& input : inputs)
    copies.push_back(input.defined()
                         ? input.detach().clone(at::MemoryFormat::Preserve).requires_grad_(input.requires_grad())
                         : input);
  return copies;
}

std::vector<size_t> differentiable(const std::vector<Tensor>& inputs) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    if (inputs[i].scalar_type() != at::kDouble)
      throw ConfigError(cat(
          "[nn.gradcheck] an input that requires a gradient must be Double, or rounding hides the difference; input ",
          i, " is ", c10::toString(inputs[i].scalar_type()), ". Convert it with to(at::kDouble)."));
    indices.push_back(i);
  }
  if (indices.empty())
    throw ConfigError(
        "[nn.gradcheck] at least one input must require a gradient; none does. Call requires_grad_() on it.");
  return indices;
}

std::vector<Tensor> gradients(const Tensor& output, const std::vector<Tensor>& inputs, const Tensor& of_output) {
  auto found = torch::autograd::grad({output}, inputs, {of_output}, /*retain_graph=*/true, /*create_graph=*/false,
                                     /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i)
    if (!found[i].defined()) found[i] = at::zeros_like(inputs[i]);
  return found;
}

class Check {
 public:
  Check(const TensorFunction& function, const std::vector<Tensor>& inputs, const GradcheckOptions& options)
      : function_(function), options_(options), indices_(differentiable(inputs)), moved_(copies_of(inputs)) {
    const std::vector<Tensor> own = copies_of(inputs);
    for (const size_t i : indices_) wanted_.push_back(own[i]);
    outputs_ = function_(own);
  }

  void run() {
    bool any = false;
    for (size_t o = 0; o < outputs_.size(); ++o) {
      if (!outputs_[o].defined() || !outputs_[o].requires_grad()) continue;
      any = true;
      const auto analytical = by_backward(o);
      for (size_t k = 0; k < indices_.size(); ++k) compare(o, k, analytical[k], by_differences(o, k));
      zeros_give_zeros(o);
    }
    if (!any)
      throw Error("[nn.gradcheck] at least one output must depend on an input that requires a gradient; none does.");
  }

 private:
  // Jacobians are (values of the output, values of the input).
  std::vector<Tensor> by_backward(size_t o) const {
    const Tensor& output = outputs_[o];
    std::vector<Tensor> jacobians;
    for (const Tensor& input : wanted_) jacobians.push_back(at::zeros({output.numel(), input.numel()}, at::kDouble));
    for (int64_t row = 0; row < output.numel(); ++row) {
      const Tensor of_output = at::zeros_like(output, at::MemoryFormat::Contiguous);
      value_at(of_output, row).fill_(1);
      const auto found = gradients(output, wanted_, of_output), again = gradients(output, wanted_, of_output);
      for (size_t k = 0; k < wanted_.size(); ++k) {
        jacobians[k].select(0, row).copy_(found[k].reshape(-1));
        const double apart = (found[k] - again[k]).abs().sum().item<double>();
        if (!(apart <= options_.nondet_tol))
          throw Error(cat("[nn.gradcheck] two backward passes must agree within nondet_tol = ", options_.nondet_tol,
                          "; for output ", o, " and input ", indices_[k], " they are ", apart, " apart."));
      }
    }
    return jacobians;
  }

  Tensor by_differences(size_t o, size_t k) {
    const Tensor& input = moved_[indices_[k]];
    const Tensor jacobian = at::zeros({outputs_[o].numel(), input.numel()}, at::kDouble);
    for (int64_t column = 0; column < input.numel(); ++column) {
      const Tensor value = value_at(input.detach(), column), before = value.clone();
      const auto at_offset = [&](double offset) {
        value.copy_(before + offset);
        return function_(moved_)[o].detach().to(at::kDouble).reshape(-1).clone();
      };
      const Tensor above = at_offset(options_.eps), below = at_offset(-options_.eps);
      value.copy_(before);
      jacobian.select(1, column).copy_((above - below) / (2 * options_.eps));
    }
    return jacobian;
  }

  void compare(size_t o, size_t k, const Tensor& analytical, const Tensor& numerical) const {
    int64_t worst = -1;
    double worst_difference = -1;
    const auto* a = analytical.const_data_ptr<double>();
    const auto* n = numerical.const_data_ptr<double>();
    for (int64_t i = 0; i < analytical.numel(); ++i) {
      const double difference = std::abs(a[i] - n[i]);
      if (difference <= options_.atol + options_.rtol * std::abs(n[i])) continue;
      if (worst >= 0 && difference <= worst_difference) continue;
      worst = i;
      worst_difference = difference;
    }
    if (worst < 0) return;
    const int64_t columns = wanted_[k].numel();
    throw Error(cat("[nn.gradcheck] the backward must match finite differences (atol ", options_.atol, ", rtol ",
                    options_.rtol, "); for output ", o, " and input ", indices_[k], " the Jacobians differ most, by ",
                    worst_difference, ", at value ", shape_text(place_of(outputs_[o], worst / columns)),
                    " of the output and ", shape_text(place_of(wanted_[k], worst % columns)),
                    " of the input: analytical ", a[worst], ", numerical ", n[worst],
                    ". The backward is wrong there, or the function is not smooth."));
  }

  void zeros_give_zeros(size_t o) const {
    const auto found = gradients(outputs_[o], wanted_, at::zeros_like(outputs_[o]));
    for (size_t k = 0; k < found.size(); ++k)
      if (found[k].count_nonzero().item<int64_t>() != 0)
        throw Error(
            cat("[nn.gradcheck] the backward must be multiplied by the gradient of the output; zeros for output ", o,
                " give nonzero values for input ", indices_[k], "."));
  }

  const TensorFunction& function_;
  const GradcheckOptions options_;
  const std::vector<size_t> indices_;
  const std::vector<Tensor> moved_;  ///< inputs for differences: a graph would notice changes of its own
  std::vector<Tensor> wanted_, outputs_;
};

}  // namespace

void gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  const at::AutoGradMode with_graph(true);
  Check(function, inputs, options).run();
}

void gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  const at::AutoGradMode with_graph(true);
  const std::vector<size_t> indices = differentiable(inputs);
  std::vector<Tensor> all = inputs;
  std::vector<size_t> outputs;
  const std::vector<Tensor> found = function(copies_of(inputs));
  for (size_t o = 0; o < found.size(); ++o) {
    if (!found[o].defined() || !found[o].requires_grad()) continue;
    outputs.push_back(o);
    all.push_back(at::randn_like(found[o].detach(), at::kDouble).requires_grad_());
  }
  const auto first_derivative = [&](const std::vector<Tensor>& given) {
    const auto end = given.begin() + static_cast<std::ptrdiff_t>(inputs.size());
    const std::vector<Tensor> results = function({given.begin(), end});
    std::vector<Tensor> wanted, from, of_outputs(end, given.end());
    for (const size_t i : indices) wanted.push_back(given[i]);
    for (const size_t o : outputs) from.push_back(results[o]);
    return torch::autograd::grad(from, wanted, of_outputs, /*retain_graph=*/true, /*create_graph=*/true,
                                 /*allow_unused=*/true);
  };
  gradcheck(TensorFunction(first_derivative), all, options);
}

}  // namespace fulgur::nn
