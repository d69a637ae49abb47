#include "fulgur/nn/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::nn {

Rotation rotation_at(const Tensor& positions, int64_t head_size, double theta, at::ScalarType dtype) {
  if (head_size < 2 || head_size % 2 != 0)
    throw Error(cat("[nn.rotation_at] rotary positions need heads of an even size; got ", head_size, "."));
  const auto options = positions.options().dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
  const Tensor exponents = at::arange(0, head_size, 2, options) / static_cast<double>(head_size);
  const Tensor frequencies = 1.0 / at::pow(at::Scalar(theta), exponents);
  Tensor angles = positions.to(options).unsqueeze(-1) * frequencies;
  if (positions.dim() == 2) angles = angles.unsqueeze(1);
  return {angles.cos(), angles.sin()};
}

Tensor rotate(const Tensor& heads, const Rotation& rotation) {
  const auto halves = heads.chunk(2, -1);
  const Tensor& first = halves[0];
  const Tensor& second = halves[1];
  return at::cat({first * rotation.cos - second * rotation.sin, second * rotation.cos + first * rotation.sin}, -1)
      .to(heads.scalar_type());
}

}  // namespace fulgur::nn
