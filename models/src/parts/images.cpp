#include "parts/images.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

void check_images(const Tensor& images, int64_t channels, int64_t least, const char* component) {
  if (images.dim() != 4 || images.size(1) != channels)
    throw ConfigError(cat("[models.", component, "] images must be [N, ", channels, ", H, W]; got ",
                          shape_text(images.sizes()),
                          images.dim() == 4 && images.size(3) == channels
                              ? ". The channels are last: transpose the arrays, numpy.transpose(x, (0, 3, 1, 2))."
                          : images.dim() == 4 ? ". Set model.init_args.in_channels to match the data."
                                              : ". Reshape the data: each sample is an image of channels, height and "
                                                "width."));
  if (!images.is_floating_point())
    throw ConfigError(cat("[models.", component, "] images must be floating-point; got ",
                          c10::toString(images.scalar_type()),
                          ". Add ToFloat or Normalize to data.init_args.transforms and to "
                          "data.init_args.eval_transforms, which is for validation, test and predict."));
  if (images.size(2) < least || images.size(3) < least)
    throw ConfigError(cat("[models.", component, "] images must have at least ", least, " x ", least,
                          " pixels, so that something is left after the downsampling; got ", images.size(2), " x ",
                          images.size(3), ". Resize the images, or use a smaller model."));
}

Tensor drop_paths(const Tensor& residual, double share, bool training) {
  if (share <= 0 || !training) return residual;
  std::vector<int64_t> shape(static_cast<size_t>(residual.dim()), 1);
  shape[0] = residual.size(0);
  Tensor kept = at::empty(shape, residual.options()).bernoulli_(1 - share);
  if (share < 1) kept.div_(1 - share);
  return residual * kept;
}

}  // namespace fulgur::detail
