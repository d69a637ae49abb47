#include "fulgur/nn/placed_call.h"

#include <ATen/ops/cat.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/parallel_apply.h"

namespace fulgur::nn::detail {
namespace {

// The first in the order of `named_parameters`, without building that list in each call.
Tensor first_parameter(const torch::nn::Module& module) {
  for (const Tensor& parameter : module.parameters(/*recurse=*/false))
    if (parameter.defined()) return parameter;
  for (const auto& child : module.children())
    if (Tensor found = first_parameter(*child); found.defined()) return found;
  return {};
}

std::string name_of(const torch::nn::Module& module, const Tensor& parameter) {
  for (const auto& item : module.named_parameters())
    if (item.value().is_same(parameter)) return item.key();
  return {};
}

}  // namespace

Tensor move_tensor(const Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  // A non-blocking copy to the CPU could be read too early.
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

void throw_empty_placed() {
  throw Error(
      "[nn.Placed] it must hold a module, but is empty. Assign it the result of nn::register_placed, in the "
      "constructor, setup or configure_model.");
}

void throw_not_shareable(const PlacedModule& placed) {
  throw Error(cat("[nn.Placed] '", placed.name(), "' computes on ", placed.devices().size(),
                  " devices, so its forward must take arguments by value or const reference; it modifies or takes "
                  "ownership of one. Return what it modifies, or place the module on one device."));
}

InputCheck::InputCheck(const PlacedModule& placed) : placed_(placed) {
  if (const Tensor parameter = first_parameter(*placed.module()); parameter.defined()) device_ = parameter.device();
}

void InputCheck::look(const Tensor& tensor, size_t argument) const {
  if (!device_ || !tensor.defined() || tensor.device() == *device_) return;
  const torch::nn::Module& module = *placed_.module();
  throw Error(cat("[nn.Placed] inputs of '", placed_.name(),
                  "' must be on its device, since it was placed manually; argument ", argument, " is on ",
                  tensor.device().str(), ", parameter '", placed_.name(), ".", name_of(module, first_parameter(module)),
                  "' on ", device_->str(),
                  ". Move the argument there before the call, or let the strategy place the module (placement: {",
                  placed_.name(), ": …})."));
}

std::string GroupCall::where() const {
  return cat("[nn.Placed] '", placed_.name(), "' computes on ", placed_.devices().size(), " devices, ");
}

void GroupCall::look(const Tensor& tensor, size_t argument) {
  if (!tensor.defined() || tensor.dim() == 0) return;
  if (!samples_) {
    samples_ = tensor.size(0);
    first_argument_ = argument;
  }
  if (tensor.size(0) == *samples_) return;
  throw Error(
      cat(where(), "so all tensors among its arguments must have the same number of samples in dimension 0; argument ",
          first_argument_, " has ", *samples_, ", argument ", argument, " has ", tensor.size(0), " (shape ",
          shape_text(tensor.sizes()), "). Pass what is not a batch as a buffer of the module, or as a number."));
}

size_t GroupCall::parts() const {
  return static_cast<size_t>(
      std::clamp<int64_t>(samples_.value_or(1), 1, static_cast<int64_t>(placed_.devices().size())));
}

// A batch without samples is one part.
std::vector<int64_t> GroupCall::sizes() const {
  return samples_.value_or(0) > 0 ? even_parts(*samples_, static_cast<int64_t>(parts())) : std::vector<int64_t>{0};
}

Tensor GroupCall::part(const Tensor& tensor, size_t part) {
  const at::Device device = placed_.devices()[part];
  if (!tensor.defined() || tensor.dim() == 0 || parts() == 1) return move_tensor(tensor, device);
  // Split once, so that backward concatenates the parts' gradients instead of adding padded ones.
  auto known = std::ranges::find_if(cut_, [&](const Whole& whole) { return whole.tensor.is_same(tensor); });
  if (known == cut_.end()) known = cut_.insert(cut_.end(), {tensor, tensor.split_with_sizes(sizes(), 0)});
  return move_tensor(known->parts[part], device);
}

void GroupCall::run(const std::function<void(size_t, torch::nn::Module&)>& work) const {
  // Current streams are per thread; the parts were copied on the caller's.
  std::vector<c10::Stream> streams;
  for (size_t i = 0; i < parts(); ++i) {
    const at::Device device = placed_.devices()[i];
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  parallel_apply(parts(), [&](size_t i) {
    const c10::StreamGuard current(streams[i]);
    work(i, *placed_.replicas()[i]);
  });
}

Tensor GroupCall::join(const std::vector<Tensor>& rows) const {
  const std::vector<int64_t> samples = sizes();
  std::vector<Tensor> here;
  int64_t per_sample = -1;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Tensor& part = rows[i];
    if (part.defined() != rows[0].defined()) throw_unlike_results();
    if (!part.defined()) continue;
    if (part.dim() == 0)
      throw Error(cat(where(),
                      "so its results must have a row for each sample; one has no dimension (a mean or a sum?). Return "
                      "a row per sample, and take the mean of "
                      "what the call returns."));
    // Rows that do not follow the samples, as in a state of (layers, N, H), would be joined in the wrong order.
    if (samples_ && samples[i] > 0) {
      if (per_sample < 0) per_sample = part.size(0) / samples[i];
      if (part.size(0) != per_sample * samples[i])
        throw Error(
            cat(where(),
                "so its results must have their samples in dimension 0, with the same number of rows for each; for ",
                samples[i], " samples one has shape ", shape_text(part.sizes()), ". Return it transposed."));
    }
    here.push_back(move_tensor(part, placed_.devices()[0]));
  }
  if (here.empty()) return {};
  return here.size() == 1 ? here[0] : at::cat(here, 0);
}

void GroupCall::throw_unlike_results() const {
  throw Error(
      cat(where(),
          "so its results must have the same structure for each part of a batch; one part has more tensors than "
          "another. Return the same structure for all samples."));
}

}  // namespace fulgur::nn::detail
