#include "modules/padded_samples.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

namespace fulgur::detail {

Batch padded_samples(const Batch& samples, const std::vector<std::string>& numbers, int64_t width, int64_t pad_id) {
  const std::vector<Tensor>& tokens = samples.list("tokens");
  const auto count = static_cast<int64_t>(tokens.size());
  for (const Tensor& one : tokens) width = std::max(width, one.numel());
  const Tensor padded = at::full({count, width}, pad_id, at::kLong), mask = at::zeros({count, width}, at::kBool);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto* from = tokens[i].const_data_ptr<int64_t>();
    const int64_t here = static_cast<int64_t>(i) * width;
    std::copy(from, from + tokens[i].numel(), padded.mutable_data_ptr<int64_t>() + here);
    std::fill_n(mask.mutable_data_ptr<bool>() + here, tokens[i].numel(), true);
  }
  Batch batch({Batch::Entry{"tokens", padded}, Batch::Entry{"mask", mask}});
  for (const std::string& name : numbers) {
    const Tensor of_samples = at::empty({count}, at::kLong);
    auto* to = of_samples.mutable_data_ptr<int64_t>();
    for (const Tensor& one : samples.list(name)) *to++ = *one.const_data_ptr<int64_t>();
    batch.add(name, of_samples);
  }
  return batch;
}

}  // namespace fulgur::detail
