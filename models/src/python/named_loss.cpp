#include "python/named_loss.h"

#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/hinge_embedding_loss.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/multi_margin_loss.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/poisson_nll_loss.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/soft_margin_loss.h>
#include <c10/util/Exception.h>

#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/models/classifier.h"

namespace fulgur {
namespace {

constexpr int64_t kIgnoredClass = -100;

bool is_half(const Tensor& values) {
  return values.scalar_type() == at::kBFloat16 || values.scalar_type() == at::kHalf;
}

Tensor compute_named_loss(NamedLoss loss, const Tensor& output, const Tensor& target, double label_smoothing) {
  constexpr int64_t kMean = at::Reduction::Mean;
  switch (loss) {
    case NamedLoss::cross_entropy:
      return at::cross_entropy_loss(output, target, {}, kMean, kIgnoredClass, label_smoothing);
    case NamedLoss::nll_loss:
      return at::nll_loss_nd(output, target, {}, kMean, kIgnoredClass);
    case NamedLoss::binary_cross_entropy:
      return at::binary_cross_entropy(output, target, {}, kMean);
    case NamedLoss::binary_cross_entropy_with_logits:
      return at::binary_cross_entropy_with_logits(output, target, {}, {}, kMean);
    case NamedLoss::multi_margin_loss:
      return at::multi_margin_loss(output, target);
    case NamedLoss::soft_margin_loss:
      return at::soft_margin_loss(output, target);
    case NamedLoss::hinge_embedding_loss:
      return at::hinge_embedding_loss(output, target);
    case NamedLoss::mse_loss:
      return at::mse_loss(output, target);
    case NamedLoss::l1_loss:
      return at::l1_loss(output, target);
    case NamedLoss::smooth_l1_loss:
      return at::smooth_l1_loss(output, target);
    case NamedLoss::huber_loss:
      return at::huber_loss(output, target);
    case NamedLoss::kl_div:
      return at::kl_div(output, target);
    case NamedLoss::poisson_nll_loss:
      return at::poisson_nll_loss(output, target, /*log_input=*/true, /*full=*/false, /*eps=*/1e-8, kMean);
    case NamedLoss::module:
      break;
  }
  throw Error("[models.named_loss] the loss of the file has no name.");
}

// PyTorch's losses broadcast, and mean_squared_error of (N, 1) and (N) is then a mistake that is not noticed.
Tensor fitting_target(NamedLoss loss, const Tensor& output, const Tensor& target, const char* component) {
  Tensor fitting = target.dim() + 1 == output.dim() && output.size(-1) == 1 ? target.unsqueeze(-1) : target;
  if (fitting.sizes() != output.sizes())
    throw DataError(cat("[models.", component, "] the target of ", enum_text(loss),
                        " must have the shape of the output, ", shape_text(output.sizes()), "; got ",
                        shape_text(target.sizes()), ". Is model.init_args.target the right entry of the batch?"));
  // PyTorch's kernels want one dtype; a target in float32 is not rounded to a shorter one.
  return fitting.scalar_type() == output.scalar_type() ? fitting : fitting.to(output.scalar_type());
}

// LibTorch takes an output without a column per class for one sample, and a target of its shape for probabilities.
void check_classes(NamedLoss loss, const Tensor& output, const Tensor& target, const char* component) {
  const bool has_columns = output.dim() >= 2 && output.size(1) >= 2;
  const bool has_labels = target.is_floating_point() || target.dim() + 1 == output.dim();
  if (has_columns && has_labels) return;
  const char* const advice =
      has_columns ? "The target has a label for each sample, (N), or for each place, (N, …): is model.init_args.target "
                    "the right entry of the batch?"
                  : "For two classes and one column, use binary_cross_entropy_with_logits; for numbers, mse_loss.";
  throw DataError(
      cat("[models.", component, "] the loss ", enum_text(loss),
          " needs an output with a column for each class, (N, classes) or (N, classes, …), and int64 labels "
          "without that dimension; got an output of shape ",
          shape_text(output.sizes()), " and a target of shape ", shape_text(target.sizes()), ". ", advice));
}

}  // namespace

Tensor named_loss(NamedLoss loss, const Tensor& output, const Tensor& target, double label_smoothing,
                  const char* component) {
  const Tensor values = is_half(output) ? output.to(at::kFloat) : output;
  const bool wants_labels = detail::is_of_classes(loss);
  if (!values.is_floating_point())
    throw DataError(cat("[models.", component, "] the output of the network must be floating-point for the loss ",
                        enum_text(loss), "; got ", c10::toString(values.scalar_type()), "."));
  if (wants_labels) check_classes(loss, values, target, component);
  // Its errors name the label that is out of range.
  if (loss == NamedLoss::cross_entropy && values.dim() == 2 && !target.is_floating_point())
    return classification_loss(values, target, label_smoothing);
  const Tensor wanted = wants_labels ? target : fitting_target(loss, values, target, component);
  try {
    return compute_named_loss(loss, values, wanted, label_smoothing);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw DataError(cat("[models.", component, "] the loss ", enum_text(loss), " does not take an output of shape ",
                        shape_text(values.sizes()), " and a target of shape ", shape_text(target.sizes()),
                        " and dtype ", c10::toString(target.scalar_type()),
                        ". LibTorch says: ", first_line(error.what_without_backtrace())));
  }
}

namespace detail {

bool is_of_classes(NamedLoss loss) {
  return loss == NamedLoss::cross_entropy || loss == NamedLoss::nll_loss || loss == NamedLoss::multi_margin_loss;
}

bool is_of_binary_classes(NamedLoss loss) {
  return loss == NamedLoss::binary_cross_entropy || loss == NamedLoss::binary_cross_entropy_with_logits;
}

Tensor accuracy_of(NamedLoss loss, const Tensor& output, const Tensor& target) {
  // In double: the mean over batches is then exact to the last digit shown.
  if (is_of_classes(loss)) {
    const Tensor wanted = target.is_floating_point() ? target.argmax(1) : target;
    return output.argmax(1).eq(wanted).to(at::kDouble).mean();
  }
  const double threshold = loss == NamedLoss::binary_cross_entropy ? 0.5 : 0.0;
  const Tensor predicted = output.gt(threshold);
  return predicted.eq(target.gt(0.5).reshape(predicted.sizes())).to(at::kDouble).mean();
}

Outputs predictions_of(NamedLoss loss, const Tensor& output) {
  const Tensor values = is_half(output) ? output.to(at::kFloat) : output;
  if (loss == NamedLoss::multi_margin_loss) return {{"scores", values}, {"prediction", values.argmax(1)}};
  if (is_of_classes(loss)) {
    const Tensor shares = loss == NamedLoss::nll_loss ? values.exp() : values.softmax(1);
    return {{"probabilities", shares}, {"prediction", shares.argmax(1)}};
  }
  const Tensor probabilities = loss == NamedLoss::binary_cross_entropy ? values : values.sigmoid();
  return {{"probabilities", probabilities}, {"prediction", probabilities.gt(0.5).to(at::kLong)}};
}

}  // namespace detail
}  // namespace fulgur
