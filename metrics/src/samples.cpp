#include "samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "fulgur/core/device/moved_to.h"
#include "fulgur/core/device/recorded_step.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::metrics {

void check_options(std::string_view metric, const Classification& options) {
  if (options.task != Task::binary && options.num_classes < (options.task == Task::multiclass ? 2 : 1))
    throw ConfigError(cat("[metrics.options] ", metric, " for ", enum_text(options.task),
                          " needs num_classes of at least ", options.task == Task::multiclass ? 2 : 1, "; got ",
                          options.num_classes, "."));
}

int64_t columns_of(const Classification& options) { return options.task == Task::binary ? 1 : options.num_classes; }

void check_batch(const Classification& options, const Tensor& prediction, const Tensor& target) {
  const auto refuse = [&](std::string_view wanted) {
    throw Error(cat("[metrics.update] a ", enum_text(options.task), " metric needs ", wanted, "; got predictions ",
                    shape_text(prediction.sizes()), " and targets ", shape_text(target.sizes()),
                    ". Are task and num_classes right?"));
  };
  if (target.is_floating_point()) refuse("integer targets");
  if (options.task != Task::multiclass) {
    if (prediction.sizes() != target.sizes()) refuse("predictions and targets of the same shape");
    if (options.task == Task::multilabel && (target.dim() < 2 || target.size(1) != options.num_classes))
      refuse(cat("the shape (N, ", options.num_classes, ", …)"));
    return;
  }
  if (!prediction.is_floating_point()) {
    if (prediction.sizes() != target.sizes()) refuse("integer predictions of the targets' shape");
    return;
  }
  std::vector<int64_t> expected(target.sizes().begin(), target.sizes().end());
  if (expected.empty()) refuse("targets with at least one dimension");
  expected.insert(expected.begin() + 1, options.num_classes);
  if (prediction.sizes() != at::IntArrayRef(expected))
    refuse(cat("predictions of the shape ", shape_text(expected), " for these targets"));
}

namespace {

// (N, C, …) → (N · …, C)
Tensor rows_of(const Tensor& value, int64_t columns) {
  if (value.dim() == 2) return value;
  return value.movedim(1, -1).reshape({-1, columns});
}

Tensor probabilities(const Tensor& prediction, Task task) {
  // Without a wait for the device, both are computed.
  const Tensor outside = prediction.lt(0).logical_or_(prediction.gt(1)).any();
  const Tensor converted = task == Task::multiclass ? at::softmax(prediction, 1) : at::sigmoid(prediction);
  return at::where(outside, converted, prediction);
}

// On the host only: on a device, asking would wait for it. A captured step must not ask either.
void check_classes(const Tensor& classes, int64_t count) {
  if (!classes.is_cpu() || classes.numel() == 0 || is_recording_cpu_step()) return;
  const auto [least, most] = classes.aminmax();
  const int64_t low = least.item<int64_t>(), high = most.item<int64_t>();
  if (low >= 0 && high < count) return;
  throw Error(cat("[metrics.update] a prediction or target is ", low < 0 ? low : high, ", but there are only ", count,
                  " classes, counted from 0. Is num_classes right, or ignore_index missing?"));
}

}  // namespace

Samples samples_of(const Classification& options, const Tensor& given, const Tensor& given_target,
                   bool as_probabilities) {
  check_batch(options, given, given_target);
  const Tensor prediction = given.detach();
  const bool has_columns = options.task == Task::multilabel;
  Samples samples;
  samples.target = has_columns ? rows_of(given_target, options.num_classes) : given_target.reshape({-1});
  if (options.task == Task::binary) samples.target = samples.target.unsqueeze(1);
  samples.target = detail::moved_to(samples.target, prediction.device()).to(at::kLong);
  if (options.ignore_index) {
    samples.valid = samples.target.ne(*options.ignore_index);
    samples.target = samples.target.where(samples.valid, 0);
  }
  if (prediction.is_floating_point()) {
    Tensor scores =
        options.task == Task::binary ? prediction.reshape({-1, 1}) : rows_of(prediction, options.num_classes);
    // Half precision would join scores that differ.
    if (scores.scalar_type() != at::kDouble) scores = scores.to(at::kFloat);
    samples.scores = as_probabilities ? probabilities(scores, options.task) : scores;
  } else {
    samples.labels = options.task == Task::multiclass ? prediction.reshape({-1})
                     : has_columns                    ? rows_of(prediction, options.num_classes)
                                                      : prediction.reshape({-1, 1});
    samples.labels = samples.labels.to(at::kLong);
    if (samples.valid.defined()) samples.labels = samples.labels.where(samples.valid, 0);
  }
  const int64_t classes = options.task == Task::multiclass ? options.num_classes : 2;
  check_classes(samples.target, classes);
  if (samples.labels.defined()) check_classes(samples.labels, classes);
  return samples;
}

Tensor count(const Tensor& index, int64_t bins) {
  const Tensor flat = index.reshape({-1});
  if (flat.is_cpu() && !is_recording_cpu_step()) return at::bincount(flat, {}, bins);
  // The size of bincount's result depends on the values, so it would wait for the device.
  Tensor counts = at::zeros({bins}, flat.options().dtype(at::kLong));
  return counts.scatter_add_(0, flat, at::ones_like(flat, at::kLong));
}

Tensor safe_divide(const Tensor& a, const Tensor& b) { return (a / b).masked_fill_(b.eq(0), 0); }

}  // namespace fulgur::metrics
