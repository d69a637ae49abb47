#include "sharding/bit_checksum.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

namespace fulgur::detail {
namespace {

constexpr int64_t kWordsAtOnce = int64_t{1} << 20;
// Odd; multiples of it differ in the high bits and the low ones.
constexpr int64_t kMixed = 0x1e3779b97f4a7c15;

}  // namespace

// The square makes the sum not linear in the words: that of words times factors is the same for weights that a power of
// two multiplies, if they are many.
Tensor BitChecksum::of(const Tensor& values) {
  if (!factors_.defined())
    factors_ = (at::arange(1, 2 * kWordsAtOnce, 2, at::TensorOptions(values.device()).dtype(at::kLong)) * kMixed);
  const Tensor words = values.view(at::kInt);
  Tensor sum = at::zeros({}, factors_.options());
  for (const Tensor& some : words.split(kWordsAtOnce)) {
    const Tensor mixed = some.bitwise_xor(factors_.narrow(0, 0, some.numel()));
    sum.mul_(31).add_(mixed.mul_(mixed.bitwise_right_shift(15).bitwise_xor_(mixed)).sum());
  }
  return sum;
}

}  // namespace fulgur::detail
