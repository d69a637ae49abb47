// Convolutions of cuDNN, and depthwise convolutions. The backward of all of them is in aten::convolution_backward,
// which has a CPU kernel.
#include <ATen/ops/convolution.h>

#include "twin.h"

namespace simulated_cuda {
namespace {

using Sizes = std::vector<int64_t>;

// (self, weight, padding, stride, dilation, groups, benchmark, deterministic, allow_tf32)
void cudnn_convolution(const TwinCall& call) {
  const auto &padding = call.arguments[2].toIntVector(), &stride = call.arguments[3].toIntVector(),
             &dilation = call.arguments[4].toIntVector();
  call.arguments = {at::convolution(call.tensor(0), call.tensor(1), {}, stride, padding, dilation, false,
                                    Sizes(padding.size(), 0), call.arguments[5].toInt())};
}

// (self, weight, padding, output_padding, stride, dilation, groups, benchmark, deterministic, allow_tf32)
void cudnn_convolution_transpose(const TwinCall& call) {
  const auto &padding = call.arguments[2].toIntVector(), &output_padding = call.arguments[3].toIntVector(),
             &stride = call.arguments[4].toIntVector(), &dilation = call.arguments[5].toIntVector();
  call.arguments = {at::convolution(call.tensor(0), call.tensor(1), {}, stride, padding, dilation, true, output_padding,
                                    call.arguments[6].toInt())};
}

// (self, weight, bias?, stride, padding, dilation, groups)
void cudnn_convolution_relu(const TwinCall& call) {
  const auto &stride = call.arguments[3].toIntVector(), &padding = call.arguments[4].toIntVector(),
             &dilation = call.arguments[5].toIntVector();
  call.arguments = {at::convolution(call.tensor(0), call.tensor(1), call.optional(2), stride, padding, dilation, false,
                                    Sizes(padding.size(), 0), call.arguments[6].toInt())
                        .relu()};
}

// (self, weight, z, alpha?, bias?, stride, padding, dilation, groups)
void cudnn_convolution_add_relu(const TwinCall& call) {
  const auto &stride = call.arguments[5].toIntVector(), &padding = call.arguments[6].toIntVector(),
             &dilation = call.arguments[7].toIntVector();
  const at::Scalar alpha = call.arguments[3].isNone() ? at::Scalar(1) : call.arguments[3].toScalar();
  const at::Tensor y = at::convolution(call.tensor(0), call.tensor(1), call.optional(4), stride, padding, dilation,
                                       false, Sizes(padding.size(), 0), call.arguments[8].toInt());
  call.arguments = {(y + call.tensor(2) * alpha).relu()};
}

// (self, weight, kernel_size, bias?, stride, padding, dilation); channels are computed separately
void depthwise(const TwinCall& call) {
  const auto &stride = call.arguments[4].toIntVector(), &padding = call.arguments[5].toIntVector(),
             &dilation = call.arguments[6].toIntVector();
  call.arguments = {at::convolution(call.tensor(0), call.tensor(1), call.optional(3), stride, padding, dilation, false,
                                    Sizes(padding.size(), 0), call.tensor(0).size(1))};
}

}  // namespace

void add_convolution_twins(HandWrittenTwins& twins) {
  twins["aten::cudnn_convolution"] = {Mode::instead, cudnn_convolution};
  twins["aten::cudnn_convolution_transpose"] = {Mode::instead, cudnn_convolution_transpose};
  twins["aten::cudnn_convolution_relu"] = {Mode::instead, cudnn_convolution_relu};
  twins["aten::cudnn_convolution_add_relu"] = {Mode::instead, cudnn_convolution_add_relu};
  twins["aten::_conv_depthwise2d"] = {Mode::beside, depthwise};
  twins["aten::conv_depthwise3d"] = {Mode::beside, depthwise};
}

}  // namespace simulated_cuda
