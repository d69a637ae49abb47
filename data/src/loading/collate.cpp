#include "fulgur/data/collate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::collate {
namespace {

bool names(const std::vector<std::string>& list, const std::string& name) {
  return std::ranges::find(list, name) != list.end();
}

void check_names(const std::vector<std::string>& wanted, const Batch& batch) {
  for (const auto& name : wanted) {
    if (batch.contains(name)) continue;
    std::vector<std::string> all;
    for (const auto& [key, value] : batch) all.push_back(key);
    throw DataError(cat("[data.collate] the samples must have the entry '", name, "'; they have ", join(all),
                        did_you_mean(name, all), "."));
  }
}

Tensor stacked(const std::string& name, const std::vector<Tensor>& samples) {
  for (const Tensor& sample : samples)
    if (sample.sizes() != samples[0].sizes())
      throw DataError(cat("[data.collate] samples of entry '", name, "' must have the same shape to be stacked; got ",
                          shape_text(samples[0].sizes()), " and ", shape_text(sample.sizes()),
                          ". Name it in stack_all_but or pad."));
  return at::stack(samples);
}

void add_padded(Batch& out, const std::string& name, const std::vector<Tensor>& samples, double value) {
  std::vector<int64_t> sizes = samples[0].sizes().vec();
  if (sizes.empty())
    throw DataError(cat("[data.collate] entry '", name, "' must have a dimension to be padded; it is a scalar."));
  Tensor lengths = at::empty({static_cast<int64_t>(samples.size())}, at::kLong);
  for (size_t s = 0; s < samples.size(); ++s) {
    if (samples[s].dim() != samples[0].dim())
      throw DataError(cat("[data.collate] samples of entry '", name,
                          "' must have the same number of dimensions to be padded; got ",
                          shape_text(samples[0].sizes()), " and ", shape_text(samples[s].sizes()), "."));
    for (size_t d = 0; d < sizes.size(); ++d) sizes[d] = std::max(sizes[d], samples[s].size(static_cast<int64_t>(d)));
    lengths.mutable_data_ptr<int64_t>()[s] = samples[s].size(0);
  }
  sizes.insert(sizes.begin(), static_cast<int64_t>(samples.size()));
  const Tensor filled = at::full(sizes, value, samples[0].options());
  for (size_t s = 0; s < samples.size(); ++s) {
    Tensor place = filled.select(0, static_cast<int64_t>(s));
    for (int64_t d = 0; d < samples[s].dim(); ++d) place = place.narrow(d, 0, samples[s].size(d));
    place.copy_(samples[s]);
  }
  out.add(name, filled);
  out.add(name + ".length", lengths);
}

}  // namespace

std::function<Batch(Batch)> stack_all_but(std::vector<std::string> lists) {
  return [lists = std::move(lists)](Batch samples) {
    check_names(lists, samples);
    Batch out;
    for (auto& [name, value] : samples) {
      const auto* tensors = std::get_if<std::vector<Tensor>>(&value);
      if (tensors != nullptr && !names(lists, name))
        out.add(name, stacked(name, *tensors));
      else
        out.add(name, std::move(value));
    }
    return out;
  };
}

std::function<Batch(Batch)> pad(std::vector<std::string> padded, double fill) {
  return [padded = std::move(padded), fill](Batch samples) {
    check_names(padded, samples);
    Batch out;
    for (auto& [name, value] : samples) {
      const auto* tensors = std::get_if<std::vector<Tensor>>(&value);
      if (tensors == nullptr)
        out.add(name, std::move(value));
      else if (names(padded, name))
        add_padded(out, name, *tensors, fill);
      else
        out.add(name, stacked(name, *tensors));
    }
    return out;
  };
}

}  // namespace fulgur::collate
