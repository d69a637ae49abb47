#include "fulgur/nn/batch_norm.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/checkpoint.h"
#include "norm_pool.h"
#include "sync_batch_norm.h"

namespace fulgur::nn {

template <class Derived>
BatchNormImplBase<Derived>::BatchNormImplBase(const BatchNormOptions& options_) : options(options_) {
  if (options.num_features() < 1)
    throw ConfigError(
        cat("[nn.", Derived::kName, "] num_features must be at least 1; got ", options.num_features(), "."));
  BatchNormImplBase::reset();
}

template <class Derived>
void BatchNormImplBase<Derived>::reset() {
  const int64_t channels = options.num_features();
  const bool affine = options.affine(), tracks = options.track_running_stats();
  weight = this->register_parameter("weight", affine ? at::ones({channels}) : Tensor(), affine);
  bias = this->register_parameter("bias", affine ? at::zeros({channels}) : Tensor(), affine);
  running_mean = this->register_buffer("running_mean", tracks ? at::zeros({channels}) : Tensor());
  running_var = this->register_buffer("running_var", tracks ? at::ones({channels}) : Tensor());
  num_batches_tracked = this->register_buffer("num_batches_tracked", tracks ? at::zeros({}, at::kLong) : Tensor());
}

template <class Derived>
void BatchNormImplBase<Derived>::reset_running_stats() {
  if (!options.track_running_stats()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

template <class Derived>
void BatchNormImplBase<Derived>::reset_parameters() {
  reset_running_stats();
  if (!options.affine()) return;
  at::NoGradGuard no_grad;
  weight.fill_(1);
  bias.zero_();
}

template <class Derived>
void BatchNormImplBase<Derived>::check(const Tensor& input) const {
  const int64_t dims = input.dim(), channels = options.num_features();
  if (dims < Derived::kMinDims || dims > Derived::kMaxDims || input.size(1) != channels) {
    const std::string wanted = Derived::kMinDims == Derived::kMaxDims
                                   ? cat(Derived::kMinDims)
                                   : cat(Derived::kMinDims, " or ", Derived::kMaxDims);
    throw Error(cat("[nn.", Derived::kName, "] the input must have ", wanted, " dimensions with ", channels,
                    " channels in dimension 1; got ", shape_text(input.sizes()), "."));
  }
}

template <class Derived>
void BatchNormImplBase<Derived>::sync_over(Collectives* collectives) {
  collectives_ = collectives != nullptr && collectives->world_size() > 1 ? collectives : nullptr;
}

template <class Derived>
double BatchNormImplBase<Derived>::begin(const Tensor& input) {
  const bool by_batch = this->is_training() || !options.track_running_stats();
  check(input);
  if (by_batch && !is_synced() && input.numel() == options.num_features())
    throw Error(cat("[nn.", Derived::kName, "] training needs more than one value per channel; got ",
                    shape_text(input.sizes()), ". Use larger batches, or drop_last for a last batch of one sample."));
  double factor = options.momentum().value_or(0.0);
  if (in_recompute()) {
    factor = 0;  // the batch is counted already
  } else if (this->is_training() && num_batches_tracked.defined()) {
    num_batches_tracked.add_(1);
    if (!options.momentum()) factor = 1.0 / num_batches_tracked.template item<double>();
  }
  return factor;
}

template <class Derived>
Tensor BatchNormImplBase<Derived>::forward(const Tensor& input) {
  const bool by_batch = this->is_training() || !options.track_running_stats();
  const double factor = begin(input);
  if (is_synced())
    return sync_batch_norm(input, weight, bias,
                           {collectives_, {running_mean, running_var, factor}, options.eps(), Derived::kName});
  return at::batch_norm(input, weight, bias, running_mean, running_var, by_batch, factor, options.eps(),
                        at::globalContext().userEnabledCuDNN());
}

Tensor BatchNorm2dImpl::forward_max_pool_relu(const Tensor& input) {
  const bool by_batch = is_training() || !options.track_running_stats();
  const bool known = by_batch ? is_training() && !is_synced() : !at::GradMode::is_enabled();
  if (!known || !takes_norm_pool(input, weight, bias) ||
      (!by_batch && !takes_running_statistics(input, {running_mean, running_var})))
    return at::max_pool2d(forward(input), 2).relu_();
  const RunningStatistics running{running_mean, running_var, begin(input)};
  return by_batch ? norm_max_pool_relu(input, weight, bias, running, options.eps())
                  : evaluated_norm_max_pool_relu(input, weight, bias, running, options.eps());
}

template <class Derived>
void BatchNormImplBase<Derived>::pretty_print(std::ostream& stream) const {
  stream << "fulgur::nn::" << Derived::kName << '(' << options.num_features() << ", eps=" << options.eps()
         << ", momentum=" << (options.momentum() ? format_double(*options.momentum()) : "None")
         << ", affine=" << (options.affine() ? "true" : "false")
         << ", track_running_stats=" << (options.track_running_stats() ? "true" : "false") << ')';
}

template class BatchNormImplBase<BatchNorm1dImpl>;
template class BatchNormImplBase<BatchNorm2dImpl>;
template class BatchNormImplBase<BatchNorm3dImpl>;

}  // namespace fulgur::nn
