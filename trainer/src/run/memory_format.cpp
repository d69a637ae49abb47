#include "run/memory_format.h"

#include <c10/core/MemoryFormat.h>

#include "fulgur/core/contracts/optimizer.h"
#include "fulgur/core/state/stored_values.h"

namespace fulgur::detail {
namespace {

bool is_image(const Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 4 && tensor.is_floating_point() && tensor.layout() == at::kStrided;
}

void convert(Tensor& tensor) {
  if (!is_image(tensor)) return;
  tensor = tensor.contiguous(at::MemoryFormat::ChannelsLast);
  // With one channel both layouts look equal and the strides would stay; convolutions choose their kernel by the
  // strides.
  const auto strides = c10::get_channels_last_strides_2d(tensor.sizes());
  if (tensor.strides() != at::IntArrayRef(strides)) tensor = tensor.as_strided(tensor.sizes(), strides);
}

// torch::nn::Module has no to(memory_format); other holders of the tensor see the new memory.
void convert_in_place(const Tensor& tensor) {
  if (is_image(tensor))
    replace_data(tensor, changed_values(tensor, [](const Tensor& value) {
                   return value.detach().contiguous(at::MemoryFormat::ChannelsLast);
                 }));
}

}  // namespace

void to_channels_last(LightningModule& module) {
  for (const auto& [name, value] : unique_parameters(module)) convert_in_place(value);
  for (const Tensor& buffer : module.buffers()) convert_in_place(buffer);
}

void to_channels_last(Batch& batch) {
  for (auto& [name, value] : batch) {
    if (auto* tensor = std::get_if<Tensor>(&value))
      convert(*tensor);
    else if (auto* list = std::get_if<std::vector<Tensor>>(&value))
      for (Tensor& item : *list) convert(item);
  }
}

}  // namespace fulgur::detail
