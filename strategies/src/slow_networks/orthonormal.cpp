#include "slow_networks/orthonormal.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>

namespace fulgur::detail {
namespace {

using at::Tensor;

/// What is left of a column of length 1 after its part in the span of others: less than this is rounding.
constexpr double kLeast = 1e-4;

// The part of `column` [n, 1] that is orthogonal to the orthonormal columns `before` [n, k]; the second pass removes
// what rounding has left of the first one.
Tensor orthogonal_part(Tensor column, const Tensor& before) {
  if (before.size(1) == 0) return column;
  for (int pass = 0; pass < 2; ++pass) column = column - before.mm(before.t().mm(column));
  return column;
}

Tensor unit(const Tensor& column) {
  // The smallest normal float: a column of zeros stays one.
  return column / at::linalg_vector_norm(column).clamp_min(1.2e-38);
}

}  // namespace

void make_orthonormal(Tensor& matrix, const Tensor& spare) {
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < matrix.size(1); ++i) {
    const Tensor before = matrix.narrow(1, 0, i), column = matrix.narrow(1, i, 1);
    const Tensor own = orthogonal_part(unit(column), before);
    // NaN fails the comparison's opposite: a column that is not finite is not replaced, so that it is noticed.
    const Tensor depends = at::linalg_vector_norm(own).lt(kLeast);
    const Tensor chosen = at::where(depends, orthogonal_part(unit(spare.narrow(1, i, 1)), before), own);
    column.copy_(unit(chosen));
  }
}

}  // namespace fulgur::detail
