#include "fulgur/models/mixing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_standard_gamma.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

namespace {

// Beta(alpha, alpha) as a ratio of gamma variables. In double, so that small alphas do not underflow.
Tensor draw_share(double alpha, at::Device device) {
  const Tensor gamma = at::_standard_gamma(at::full({2}, alpha, at::TensorOptions(device).dtype(at::kDouble)));
  return gamma[0] / gamma.sum();
}

Tensor of_others(const Tensor& values) { return at::roll(values, {1}, {0}); }

// Whether each of `size` pixels is at most `half` from a random one.
Tensor cut_range(int64_t size, const Tensor& ratio) {
  const Tensor half = (0.5 * ratio * static_cast<double>(size)).floor();
  const Tensor middle = at::rand({}, ratio.options()).mul_(static_cast<double>(size)).floor_();
  const Tensor pixel = at::arange(size, ratio.options());
  return pixel.ge(middle - half).logical_and_(pixel.lt(middle + half));
}

void require_floating(const Tensor& input, const char* function) {
  if (!input.is_floating_point())
    throw DataError(cat("[models.", function, "] inputs that are mixed must be floating-point; got ",
                        c10::toString(input.scalar_type()), ". Convert them in the data module, or set alpha to 0."));
}

}  // namespace

MixedBatch mix_up(const Tensor& input, const Tensor& labels, double alpha) {
  require_floating(input, "mix_up");
  const Tensor share = draw_share(alpha, input.device());
  return {.input = at::lerp(of_others(input), input, share.to(input.scalar_type())),
          .labels = labels,
          .other_labels = of_others(labels),
          .share = share.to(at::kFloat)};
}

MixedBatch cut_mix(const Tensor& images, const Tensor& labels, double alpha) {
  if (images.dim() != 4)
    throw DataError(cat("[models.cut_mix] images must have 4 dimensions (N, C, H, W); got ", shape_text(images.sizes()),
                        ". Set cutmix_alpha to 0 for other inputs."));
  const Tensor ratio = (1 - draw_share(alpha, images.device())).sqrt_();
  const Tensor rows = cut_range(images.size(2), ratio), columns = cut_range(images.size(3), ratio);
  const Tensor cut = rows.unsqueeze(1).logical_and(columns);
  return {.input = at::where(cut, of_others(images), images),
          .labels = labels,
          .other_labels = of_others(labels),
          .share = 1 - cut.to(at::kFloat).mean()};
}

MixedBatch mix(const Tensor& input, const Tensor& labels, double mixup_alpha, double cutmix_alpha) {
  if (mixup_alpha <= 0 && cutmix_alpha <= 0)
    return {.input = input,
            .labels = labels,
            .other_labels = labels,
            .share = at::ones({}, at::TensorOptions(input.device()).dtype(at::kFloat))};
  if (cutmix_alpha <= 0) return mix_up(input, labels, mixup_alpha);
  MixedBatch cut = cut_mix(input, labels, cutmix_alpha);
  if (mixup_alpha <= 0) return cut;
  // Both are computed: a choice on the host would wait for the device, or stay the same in a captured step.
  const MixedBatch mixed = mix_up(input, labels, mixup_alpha);
  const Tensor takes_cut = at::rand({}, cut.share.options()).lt(0.5);
  cut.input = at::where(takes_cut, cut.input, mixed.input);
  cut.share = at::where(takes_cut, cut.share, mixed.share);
  return cut;
}

}  // namespace fulgur
