#include "planning/tensor_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/result_type.h>

namespace fulgur::cli {
namespace {

MetaStack number_like_first(const MetaStack& a) { return {made({}, a[0].toTensor())}; }

// Sums of whole numbers are int64.
at::ScalarType sum_type(const at::Tensor& input, const c10::IValue& wanted) {
  if (wanted.isInt()) return wanted.toScalarType();
  return at::isIntegralType(input.scalar_type(), /*includeBool=*/true) ? at::kLong : input.scalar_type();
}

template <size_t dtype>
MetaStack sum_of_all(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  return {made({}, input, sum_type(input, dtype < a.size() ? a[dtype] : c10::IValue()))};
}

// What remains of a tensor if `dims` are reduced: all of them if there are none.
Sizes reduced(const at::Tensor& input, const c10::IValue& dims, bool keeps) {
  Sizes of;
  if (dims.isIntList()) of = dims.toIntVector();
  if (dims.isInt()) of = {dims.toInt()};
  std::vector<bool> is_reduced(static_cast<size_t>(input.dim()), of.empty());
  for (const int64_t dim : of) is_reduced[static_cast<size_t>(dim < 0 ? dim + input.dim() : dim)] = true;
  Sizes sizes;
  for (size_t d = 0; d < is_reduced.size(); ++d)
    if (!is_reduced[d] || keeps) sizes.push_back(is_reduced[d] ? 1 : input.size(static_cast<int64_t>(d)));
  return sizes;
}

// (input, dims, correction, keepdim): `count` results.
template <size_t count>
MetaStack variance(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  MetaStack results;
  for (size_t i = 0; i < count; ++i) results.emplace_back(made(reduced(input, a[1], a[3].toBool()), input));
  return results;
}

// (input, dim, keepdim): values and their places.
MetaStack chosen_of(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  const Sizes sizes = reduced(input, a[1], a[2].toBool());
  return {made(sizes, input), made(sizes, input, at::kLong)};
}

MetaStack kth_value(const MetaStack& a) { return chosen_of({a[0], a[2], a[3]}); }

MetaStack nansum(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  return {made(reduced(input, a[1], a[2].toBool()), input, sum_type(input, a[3]))};
}

MetaStack count_nonzero(const MetaStack& a) {
  return {made(reduced(a[0].toTensor(), a[1], false), a[0].toTensor(), at::kLong)};
}

// Of two tensors, or of one and a number.
MetaStack broadcast(const MetaStack& a) {
  if (!a[0].isTensor())
    return {made(a[1].toTensor().sizes().vec(), a[1].toTensor(), at::result_type(a[0].toScalar(), a[1].toTensor()))};
  const at::Tensor first = a[0].toTensor();
  if (!a[1].isTensor()) return {made(first.sizes().vec(), first, at::result_type(first, a[1].toScalar()))};
  const at::Tensor second = a[1].toTensor();
  return {made(at::infer_size(first.sizes(), second.sizes()), first.is_meta() ? first : second,
               at::result_type(first, second))};
}

// (input, padding of the last dimensions, the last one first)
MetaStack padded_sizes(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  const Sizes padding = a[1].toIntVector();
  Sizes sizes = input.sizes().vec();
  for (size_t i = 0; i < padding.size() / 2; ++i) sizes[sizes.size() - 1 - i] += padding[2 * i] + padding[2 * i + 1];
  return {made(sizes, input)};
}

// (input, kernel, stride, padding, dilation, ceil_mode): values and their places.
MetaStack max_pool(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  const Sizes kernel = a[1].toIntVector(), padding = a[3].toIntVector(), dilation = a[4].toIntVector();
  const Sizes stride = a[2].toIntVector().empty() ? kernel : a[2].toIntVector();
  constexpr size_t kDims = 3;
  Sizes sizes = input.sizes().vec();
  for (size_t i = 0; i < kDims; ++i) {
    int64_t& size = sizes[sizes.size() - kDims + i];
    const int64_t step = at_or_last(stride, i), pad = at_or_last(padding, i),
                  whole = size + 2 * pad - at_or_last(dilation, i) * (at_or_last(kernel, i) - 1) - 1;
    int64_t places = (a[5].toBool() ? (whole + step - 1) / step : whole / step) + 1;
    // The last window begins inside.
    if (a[5].toBool() && (places - 1) * step >= size + pad) --places;
    size = places;
  }
  return {made(sizes, input), made(sizes, input, at::kLong)};
}

// (grad, sizes, …)
MetaStack of_sizes(const MetaStack& a) { return {made(a[1].toIntVector(), a[0].toTensor())}; }

// (grad, a, b, …)
MetaStack two_gradients(const MetaStack& a) { return {same(a[1].toTensor()), same(a[2].toTensor())}; }

MetaStack log_sigmoid(const MetaStack& a) {
  // The second is used on CPUs only.
  return {same(a[0].toTensor()), made({0}, a[0].toTensor())};
}

// (input [N, C, …], target [N, …], weight, reduction, …): the loss, and the sum of weights.
MetaStack nll_loss_of_images(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  return {made(a[3].toInt() == 0 ? a[1].toTensor().sizes().vec() : Sizes{}, input), made({}, input)};
}

MetaStack prelu_backward(const MetaStack& a) { return {same(a[1].toTensor()), same(a[1].toTensor())}; }

MetaStack distances(const MetaStack& a) {
  const at::Tensor x = a[0].toTensor(), y = a[1].toTensor();
  Sizes sizes = at::infer_size(x.sizes().slice(0, static_cast<size_t>(x.dim() - 2)),
                               y.sizes().slice(0, static_cast<size_t>(y.dim() - 2)));
  sizes.insert(sizes.end(), {x.size(-2), y.size(-2)});
  return {made(sizes, x)};
}

// (input [N, C, …], grid [N, …, dims])
MetaStack grid_sampler(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor(), grid = a[1].toTensor();
  Sizes sizes{input.size(0), input.size(1)};
  for (int64_t d = 1; d + 1 < grid.dim(); ++d) sizes.push_back(grid.size(d));
  return {made(sizes, input)};
}

// (grad, input, grid, …, mask)
MetaStack grid_sampler_backward(const MetaStack& a) {
  return {a[6].toBoolList()[0] ? same(a[1].toTensor()) : at::Tensor(), same(a[2].toTensor())};
}

// (input, kernel, dilation, padding, stride)
MetaStack im2col(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  const Sizes kernel = a[1].toIntVector(), dilation = a[2].toIntVector(), padding = a[3].toIntVector(),
              stride = a[4].toIntVector();
  int64_t blocks = 1, elements = input.size(-3);
  for (size_t i = 0; i < 2; ++i) {
    elements *= kernel[i];
    blocks *=
        (input.size(static_cast<int64_t>(i) - 2) + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
  }
  Sizes sizes{elements, blocks};
  if (input.dim() == 4) sizes.insert(sizes.begin(), input.size(0));
  return {made(sizes, input)};
}

// (columns, output size, kernel, …)
MetaStack col2im(const MetaStack& a) {
  const at::Tensor columns = a[0].toTensor();
  const Sizes output = a[1].toIntVector(), kernel = a[2].toIntVector();
  Sizes sizes{columns.size(-2) / (kernel[0] * kernel[1]), output[0], output[1]};
  if (columns.dim() == 3) sizes.insert(sizes.begin(), columns.size(0));
  return {made(sizes, columns)};
}

// (added, a [B, N, M], b [B, M, P])
MetaStack sum_of_products(const MetaStack& a) {
  return {made({a[1].toTensor().size(1), a[2].toTensor().size(2)}, a[0].toTensor())};
}

// (input, dims, normalization, onesided): complex.
MetaStack fft_of_real(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  Sizes sizes = input.sizes().vec();
  int64_t& size = size_along(sizes, a[1].toIntVector().back());
  if (a[3].toBool()) size = size / 2 + 1;
  return {made(sizes, input, at::toComplexType(input.scalar_type()))};
}

// (input, dims, normalization, size of the last)
MetaStack fft_to_real(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  Sizes sizes = input.sizes().vec();
  size_along(sizes, a[1].toIntVector().back()) = a[3].toInt();
  return {made(sizes, input, at::toRealValueType(input.scalar_type()))};
}

// Places of `values` among sorted ones.
template <size_t values>
MetaStack places_of(const MetaStack& a) {
  const at::Tensor like = a[a[0].isTensor() ? 0 : 1].toTensor();
  const Sizes sizes = a[values].isTensor() ? a[values].toTensor().sizes().vec() : Sizes{};
  return {made(sizes, like, a[2].toBool() ? at::kInt : at::kLong)};
}

MetaStack magnitude(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  return {made(input.sizes().vec(), input, at::toRealValueType(input.scalar_type()))};
}

MetaStack complex_of(const MetaStack& a) {
  const at::Tensor first = a[0].toTensor();
  return {made(at::infer_size(first.sizes(), a[1].toTensor().sizes()), first, at::toComplexType(first.scalar_type()))};
}

// (input, dims, keepdim)
MetaStack reduction(const MetaStack& a) {
  return {made(reduced(a[0].toTensor(), a[1], a[2].toBool()), a[0].toTensor())};
}

MetaStack take(const MetaStack& a) { return {made(a[1].toTensor().sizes().vec(), a[0].toTensor())}; }

MetaStack multinomial(const MetaStack& a) {
  Sizes sizes = a[0].toTensor().sizes().vec();
  sizes.back() = a[1].toInt();
  return {made(sizes, a[0].toTensor(), at::kLong)};
}

// (log_probs [T, N, C], targets, …): losses, and what backward needs.
MetaStack ctc_loss(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor(), targets = a[1].toTensor();
  const int64_t longest = targets.size(-1);  // of all targets at most, if they are in one row
  return {made({input.size(1)}, input), made({input.size(1), input.size(0), 2 * longest + 1}, input)};
}

MetaStack weight_norm(const MetaStack& a) { return {same(a[0].toTensor()), same(a[1].toTensor())}; }

}  // namespace

const MetaRules& tensor_rules() {
  static const MetaRules all{{"aten::relu", like_first},
                             {"aten::relu_", first_itself},
                             {"aten::hardtanh", like_first},
                             {"aten::hardtanh_", first_itself},
                             {"aten::hardtanh_backward", like_second},
                             {"aten::hardswish", like_first},
                             {"aten::hardswish_", first_itself},
                             {"aten::hardswish_backward", like_second},
                             {"aten::rrelu_with_noise", like_first},
                             {"aten::log_sigmoid_forward", log_sigmoid},
                             {"aten::log_sigmoid_backward", like_second},
                             {"aten::glu_backward", like_second},
                             {"aten::_prelu_kernel", like_first},
                             {"aten::_prelu_kernel_backward", prelu_backward},
                             {"aten::logit", like_first},
                             {"aten::angle", magnitude},
                             {"aten::abs", magnitude},
                             {"aten::abs_", first_itself},
                             {"aten::complex", complex_of},
                             {"aten::polar", complex_of},
                             {"aten::conj_physical", like_first},
                             {"aten::nan_to_num", like_first},
                             {"aten::nan_to_num_", first_itself},
                             {"aten::mvlgamma", like_first},
                             {"aten::bernoulli", like_first},
                             {"aten::logcumsumexp", like_first},
                             {"aten::logsumexp", reduction},
                             {"aten::isnan", bool_like_first},
                             {"aten::channel_shuffle", like_first},
                             {"aten::_logcumsumexp", like_first},
                             {"aten::rsub.Tensor", broadcast},
                             {"aten::floor_divide.", broadcast},
                             {"aten::remainder.Scalar_Tensor", broadcast},
                             {"aten::dot", number_like_first},
                             {"aten::vdot", number_like_first},
                             {"aten::trace", sum_of_all<1>},
                             {"aten::prod.", sum_of_all<1>},
                             {"aten::max.", number_like_first},
                             {"aten::min.", number_like_first},
                             {"aten::median.", number_like_first},
                             {"aten::nanmedian.", number_like_first},
                             {"aten::median.dim", chosen_of},
                             {"aten::nanmedian.dim", chosen_of},
                             {"aten::mode", chosen_of},
                             {"aten::kthvalue.", kth_value},
                             {"aten::nansum", nansum},
                             {"aten::count_nonzero.dim_IntList", count_nonzero},
                             {"aten::var.correction", variance<1>},
                             {"aten::std.correction", variance<1>},
                             {"aten::var_mean.correction", variance<2>},
                             {"aten::std_mean.correction", variance<2>},
                             {"aten::binary_cross_entropy", reduced_loss<3>},
                             {"aten::nll_loss2d_forward", nll_loss_of_images},
                             {"aten::nll_loss2d_backward", like_second},
                             {"aten::_ctc_loss", ctc_loss},
                             {"aten::_ctc_loss_backward", like_second},
                             {"aten::reflection_pad2d", padded_sizes},
                             {"aten::reflection_pad2d_backward", like_second},
                             {"aten::replication_pad2d_backward", like_second},
                             {"aten::replication_pad3d_backward", like_second},
                             {"aten::_adaptive_avg_pool3d", adaptive_pool},
                             {"aten::_adaptive_avg_pool3d_backward", like_second},
                             {"aten::max_pool3d_with_indices", max_pool},
                             {"aten::max_pool3d_with_indices_backward", like_second},
                             {"aten::unfold_backward", of_sizes},
                             {"aten::im2col", im2col},
                             {"aten::col2im", col2im},
                             {"aten::grid_sampler_2d", grid_sampler},
                             {"aten::grid_sampler_3d", grid_sampler},
                             {"aten::grid_sampler_2d_backward", grid_sampler_backward},
                             {"aten::grid_sampler_3d_backward", grid_sampler_backward},
                             {"aten::_cdist_forward", distances},
                             {"aten::_cdist_backward", like_second},
                             {"aten::addbmm", sum_of_products},
                             {"aten::_fft_r2c", fft_of_real},
                             {"aten::_fft_c2r", fft_to_real},
                             {"aten::_fft_c2c", like_first},
                             {"aten::bucketize", places_of<0>},
                             {"aten::searchsorted", places_of<1>},
                             {"aten::take", take},
                             {"aten::multinomial", multinomial},
                             {"aten::binomial", like_first},
                             {"aten::poisson", like_first},
                             {"aten::_weight_norm_interface", weight_norm},
                             {"aten::_weight_norm_interface_backward", two_gradients}};
  return all;
}

}  // namespace fulgur::cli
