#include <ATen/ops/zeros.h>

#include "fulgur/models/gpt_block.h"

namespace fulgur {

std::pair<Tensor, Tensor> KeyValueCache::put(const Tensor& keys, const Tensor& values, const Tensor& places,
                                             int64_t used) {
  // Zeros: what a mask excludes must be finite.
  const auto room = [&](const Tensor& like) {
    return at::zeros({like.size(0), like.size(1), capacity_, like.size(3)}, like.options());
  };
  if (!keys_.defined()) {
    keys_ = room(keys);
    values_ = room(values);
  }
  if (!places.defined()) {
    keys_.narrow(2, 0, keys.size(2)).copy_(keys);
    values_.narrow(2, 0, values.size(2)).copy_(values);
    return {keys, values};
  }
  const Tensor index = places.view({-1, 1, 1, 1}).expand_as(keys);
  keys_.scatter_(2, index, keys);
  values_.scatter_(2, index, values);
  return {keys_.narrow(2, 0, used), values_.narrow(2, 0, used)};
}

}  // namespace fulgur
