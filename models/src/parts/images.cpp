#include "parts/images.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {

namespace {

std::string floating_images_wanted(at::ScalarType found) {
  return cat("images must be floating-point; got ", c10::toString(found),
             ". Add ToFloat or Normalize to data.init_args.transforms and to data.init_args.eval_transforms, which is "
             "for validation, test and predict. For ArrayDataModule, set data.init_args.float_input: true.");
}

}  // namespace

void check_floating(const Tensor& input, const char* component) {
  if (input.is_floating_point()) return;
  if (input.dim() == 4)
    throw ConfigError(cat("[models.", component, "] ", floating_images_wanted(input.scalar_type())));
  throw ConfigError(
      cat("[models.", component, "] inputs must be floating-point; got ", c10::toString(input.scalar_type()),
          ". Convert them in the data module; for ArrayDataModule, set data.init_args.float_input: true."));
}

std::string hint_for_integer_images(const std::vector<Tensor>& arguments, std::string_view message) {
  // Such as "Input type (unsigned char) and bias type (float) should be the same", "expected scalar type Float".
  if (message.find("type") == std::string_view::npos) return {};
  for (const Tensor& argument : arguments)
    if (argument.defined() && argument.dim() == 4 && at::isIntegralType(argument.scalar_type(), /*includeBool=*/true))
      return floating_images_wanted(argument.scalar_type());
  return {};
}

void check_images(const Tensor& images, int64_t channels, int64_t least, const char* component) {
  if (images.dim() != 4 || images.size(1) != channels)
    throw ConfigError(cat("[models.", component, "] images must be [N, ", channels, ", H, W]; got ",
                          shape_text(images.sizes()),
                          images.dim() == 4 && images.size(3) == channels
                              ? ". The channels are last: transpose the arrays, numpy.transpose(x, (0, 3, 1, 2))."
                          : images.dim() == 4 ? ". Set model.init_args.in_channels to match the data."
                                              : ". Reshape the data: each sample is an image of channels, height and "
                                                "width."));
  check_floating(images, component);
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
