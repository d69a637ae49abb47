#include "planning/meta_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/result_type.h>

#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "planning/tensor_rules.h"

namespace fulgur::cli {
namespace {

// Statistics of norms are float32 for half inputs.
at::ScalarType statistics_of(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

MetaStack broadcast_to_bool(const MetaStack& a) {
  const at::Tensor first = a[0].toTensor();
  return {made(at::infer_size(first.sizes(), a[1].toTensor().sizes()), first, at::kBool)};
}

MetaStack nothing(const MetaStack&) { return {}; }

MetaStack convolution(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor(), weight = a[1].toTensor();
  const Sizes stride = a[3].toIntVector(), padding = a[4].toIntVector(), dilation = a[5].toIntVector(),
              more = a[7].toIntVector();
  const bool transposed = a[6].toBool();
  const int64_t groups = a[8].toInt();
  const bool batched = input.dim() == weight.dim();
  Sizes sizes;
  if (batched) sizes.push_back(input.size(0));
  sizes.push_back(transposed ? weight.size(1) * groups : weight.size(0));
  for (int64_t d = 2; d < weight.dim(); ++d) {
    const auto i = static_cast<size_t>(d - 2);
    const int64_t size = input.size(batched ? d : d - 1), reach = at_or_last(dilation, i) * (weight.size(d) - 1);
    sizes.push_back(transposed ? (size - 1) * at_or_last(stride, i) - 2 * at_or_last(padding, i) + reach +
                                     at_or_last(more, i) + 1
                               : (size + 2 * at_or_last(padding, i) - reach - 1) / at_or_last(stride, i) + 1);
  }
  return {at::empty(sizes, input.options(),
                    batched && input.dim() == 4 ? input.suggest_memory_format() : at::MemoryFormat::Contiguous)};
}

MetaStack convolution_backward(const MetaStack& a) {
  const auto wanted = a[10].toBoolList();
  const at::Tensor grad = a[0].toTensor(), weight = a[2].toTensor();
  return {wanted[0] ? same(a[1].toTensor()) : at::Tensor(), wanted[1] ? same(weight) : at::Tensor(),
          wanted[2] ? made({grad.size(1)}, grad) : at::Tensor()};
}

// Sizes of the statistics of a norm over the last dimensions.
Sizes rows_of(const at::Tensor& input, size_t normalized) {
  Sizes sizes = input.sizes().vec();
  for (size_t i = sizes.size() - normalized; i < sizes.size(); ++i) sizes[i] = 1;
  return sizes;
}

MetaStack layer_norm(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  const Sizes rows = rows_of(input, a[1].toIntVector().size());
  const at::ScalarType type = statistics_of(input);
  return {same(input), made(rows, input, type), made(rows, input, type)};
}

MetaStack layer_norm_backward(const MetaStack& a) {
  const auto wanted = a[7].toBoolList();
  const at::Tensor input = a[1].toTensor();
  const auto of = [&](const c10::IValue& weight, bool is_wanted) {
    return is_wanted && weight.isTensor() && weight.toTensor().defined() ? same(weight.toTensor()) : at::Tensor();
  };
  return {wanted[0] ? same(input) : at::Tensor(), of(a[5], wanted[1]), of(a[6], wanted[2])};
}

MetaStack rms_norm(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  return {same(input), made(rows_of(input, a[1].toIntVector().size()), input, statistics_of(input))};
}

MetaStack rms_norm_backward(const MetaStack& a) {
  const auto wanted = a[5].toBoolList();
  return {wanted[0] ? same(a[1].toTensor()) : at::Tensor(),
          wanted[1] && a[4].isTensor() ? same(a[4].toTensor()) : at::Tensor()};
}

// (input, weight, bias, N, C, HxW, groups, eps)
MetaStack group_norm(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  const Sizes rows{a[3].toInt(), a[6].toInt()};
  return {same(input), made(rows, input), made(rows, input)};
}

// (grad, input, mean, rstd, weight, N, C, HxW, groups, mask)
MetaStack group_norm_backward(const MetaStack& a) {
  const auto wanted = a[9].toBoolList();
  const at::Tensor input = a[1].toTensor();
  const Sizes channels{a[6].toInt()};
  return {wanted[0] ? same(input) : at::Tensor(), wanted[1] ? made(channels, input) : at::Tensor(),
          wanted[2] ? made(channels, input) : at::Tensor()};
}

MetaStack batch_norm(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  const Sizes channels{input.size(1)};
  const at::ScalarType type = statistics_of(input);
  return {same(input), made(channels, input, type), made(channels, input, type)};
}

// (grad, input, weight, mean, var, save_mean, save_invstd, train, eps, mask)
MetaStack batch_norm_backward(const MetaStack& a) {
  const auto wanted = a[9].toBoolList();
  const at::Tensor input = a[1].toTensor();
  const Sizes channels{input.size(1)};
  const at::ScalarType type = statistics_of(input);
  return {wanted[0] ? same(input) : at::Tensor(), wanted[1] ? made(channels, input, type) : at::Tensor(),
          wanted[2] ? made(channels, input, type) : at::Tensor()};
}

MetaStack native_dropout(const MetaStack& a) {
  return {same(a[0].toTensor()), made(a[0].toTensor().sizes().vec(), a[0].toTensor(), at::kBool)};
}

// (grad, indices, rows, padding, scale)
MetaStack embedding_backward(const MetaStack& a) {
  const at::Tensor grad = a[0].toTensor();
  return {made({a[2].toInt(), grad.size(-1)}, grad)};
}

// (query, key, value, …): output, statistics of the rows, and what only a GPU uses.
MetaStack flash_attention(const MetaStack& a) {
  const at::Tensor query = a[0].toTensor(), value = a[2].toTensor();
  const int64_t n = query.size(0), heads = query.size(1), length = query.size(2);
  // The kernel works on (N, T, H, size), and returns a view of that.
  const at::Tensor output = made({n, length, heads, value.size(3)}, query).transpose(1, 2);
  const at::Tensor number = made({2}, query, at::kLong);
  return {output,          made({n, heads, length}, query, at::kFloat),
          at::Tensor(),    at::Tensor(),
          length,          a[1].toTensor().size(2),
          number,          made({}, query, at::kLong),
          made({0}, query)};
}

MetaStack three_gradients(const MetaStack& a) {
  return {same(a[1].toTensor()), same(a[2].toTensor()), same(a[3].toTensor())};
}

// (query, key, value, bias, compute_log_sumexp, …)
MetaStack efficient_attention(const MetaStack& a) {
  const at::Tensor query = a[0].toTensor(), value = a[2].toTensor();
  const int64_t n = query.size(0), heads = query.size(1), length = query.size(2);
  const at::Tensor output = made({n, length, heads, value.size(3)}, query).transpose(1, 2);
  const int64_t rows = a[4].toBool() ? (length + 31) / 32 * 32 : 0;
  return {output, made({n, heads, rows}, query, at::kFloat), made({}, query, at::kLong), made({}, query, at::kLong)};
}

MetaStack efficient_backward(const MetaStack& a) {
  const auto wanted = a[10].toBoolList();
  return {wanted[0] ? same(a[1].toTensor()) : at::Tensor(), wanted[1] ? same(a[2].toTensor()) : at::Tensor(),
          wanted[2] ? same(a[3].toTensor()) : at::Tensor(),
          wanted[3] && a[4].isTensor() && a[4].toTensor().defined() ? same(a[4].toTensor()) : at::Tensor()};
}

MetaStack where(const MetaStack& a) {
  const at::Tensor condition = a[0].toTensor(), x = a[1].toTensor(), y = a[2].toTensor();
  const Sizes sizes = at::infer_size(at::infer_size(condition.sizes(), x.sizes()), y.sizes());
  return {made(sizes, x.is_meta() ? x : y.is_meta() ? y : condition, at::result_type(x, y))};
}

MetaStack embedding(const MetaStack& a) {
  Sizes sizes = a[1].toTensor().sizes().vec();
  sizes.push_back(a[0].toTensor().size(1));
  return {made(sizes, a[0].toTensor())};
}

// (input, dim, indices)
MetaStack index_select(const MetaStack& a) {
  const at::Tensor input = a[0].toTensor();
  Sizes sizes = input.sizes().vec();
  if (!sizes.empty()) size_along(sizes, a[1].toInt()) = a[2].toTensor().numel();
  return {made(sizes, input)};
}

// The value is what the memory of the tensor holds: what host code has written, or 0.
MetaStack value_of(const MetaStack& a) {
  const at::Tensor tensor = a[0].toTensor();
  const void* const data = tensor.is_meta() ? tensor.storage().data() : nullptr;
  if (!tensor.is_meta()) return {tensor.item()};
  if (data == nullptr) return {c10::Scalar(0)};
  at::Tensor host = at::from_blob(const_cast<void*>(data), {tensor.storage_offset() + 1},
                                  at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
  return {host[tensor.storage_offset()].item()};
}

// Both are tensors without values.
MetaStack equal(const MetaStack& a) { return {a[0].toTensor().sizes() == a[1].toTensor().sizes()}; }

const MetaRules& layer_rules() {
  static const MetaRules all{{"aten::convolution", convolution},
                             {"aten::convolution_backward", convolution_backward},
                             {"aten::native_layer_norm", layer_norm},
                             {"aten::native_layer_norm_backward", layer_norm_backward},
                             {"aten::_fused_rms_norm", rms_norm},
                             {"aten::_fused_rms_norm_backward", rms_norm_backward},
                             {"aten::native_group_norm", group_norm},
                             {"aten::native_group_norm_backward", group_norm_backward},
                             {"aten::native_batch_norm", batch_norm},
                             {"aten::_native_batch_norm_legit", batch_norm},
                             {"aten::native_batch_norm_backward", batch_norm_backward},
                             {"aten::native_dropout", native_dropout},
                             {"aten::native_dropout_backward", like_first},
                             {"aten::embedding", embedding},
                             {"aten::embedding_dense_backward", embedding_backward},
                             {"aten::index_select", index_select},
                             {"aten::_scaled_dot_product_flash_attention", flash_attention},
                             {"aten::_scaled_dot_product_flash_attention_backward", three_gradients},
                             {"aten::_scaled_dot_product_efficient_attention", efficient_attention},
                             {"aten::_scaled_dot_product_efficient_attention_backward", efficient_backward},
                             {"aten::where", where},
                             {"aten::_adaptive_avg_pool2d", adaptive_pool},
                             {"aten::_adaptive_avg_pool2d_backward", like_second},
                             {"aten::_fused_adamw_", nothing},
                             {"aten::_fused_adam_", nothing},
                             {"aten::_fused_sgd_", nothing},
                             {"aten::_fused_adagrad_", nothing},
                             {"aten::equal", equal},
                             {"aten::flip", like_first},
                             {"aten::roll", like_first},
                             {"aten::binary_cross_entropy_backward", like_second},
                             {"aten::binary_cross_entropy_with_logits", reduced_loss<4>},
                             {"aten::mse_loss_backward", like_second},
                             {"aten::smooth_l1_loss_backward", like_second},
                             {"aten::huber_loss_backward", like_second},
                             {"aten::huber_loss", reduced_loss<2>},
                             {"aten::_standard_gamma", like_first},
                             {"aten::_dirichlet_grad", like_first},
                             {"aten::_sample_dirichlet", like_first},
                             {"aten::_index_put_impl_", first_itself},
                             {"aten::logical_and", broadcast_to_bool},
                             {"aten::logical_or", broadcast_to_bool},
                             {"aten::logical_xor", broadcast_to_bool},
                             {"aten::logical_not", bool_like_first},
                             {"aten::logical_and_", first_itself},
                             {"aten::logical_or_", first_itself},
                             {"aten::logical_xor_", first_itself},
                             {"aten::logical_not_", first_itself},
                             {"aten::_pin_memory", first_itself},
                             {"aten::pin_memory", first_itself},
                             {"aten::_local_scalar_dense", value_of}};
  return all;
}

double product(at::IntArrayRef sizes) {
  double all = 1;
  for (const int64_t size : sizes) all *= static_cast<double>(size);
  return all;
}

double product_of_matrices(const at::Tensor& a, const at::Tensor& b) {
  return 2 * product(a.sizes()) * static_cast<double>(b.size(-1));
}

// Of one of the three products of a convolution: (input, weight, transposed, output).
double convolution_flops(const at::Tensor& input, const at::Tensor& weight, bool transposed, const at::Tensor& output) {
  // The weight is (out, in / groups, kernel), or transposed (in, out / groups, kernel).
  return 2 * product((transposed ? input : output).sizes()) * product(weight.sizes().slice(1));
}

// Scores of a query with the keys before it are half of all.
double attention_flops(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal) {
  const double scores = product(query.sizes().slice(0, 3)) * static_cast<double>(key.size(2)) * (causal ? 0.5 : 1);
  return 2 * scores * static_cast<double>(query.size(3) + value.size(3));
}

}  // namespace

MetaRule meta_rule(const c10::FunctionSchema& operation) {
  for (const std::string& name : {cat(operation.name(), ".", operation.overload_name()), operation.name()})
    for (const MetaRules* rules : {&layer_rules(), &tensor_rules()})
      if (const auto found = rules->find(name); found != rules->end()) return found->second;
  return nullptr;
}

double meta_flops(const std::string& name, const MetaStack& a, const MetaStack& results) {
  const auto tensor = [&](size_t i) -> const at::Tensor& { return a[i].toTensor(); };
  if (name == "aten::mm" || name == "aten::bmm") return product_of_matrices(tensor(0), tensor(1));
  if (name == "aten::addmm" || name == "aten::baddbmm") return product_of_matrices(tensor(1), tensor(2));
  if (name == "aten::convolution") return convolution_flops(tensor(0), tensor(1), a[6].toBool(), results[0].toTensor());
  if (name == "aten::convolution_backward") {
    const auto wanted = a[10].toBoolList();
    return (wanted[0] + wanted[1]) * convolution_flops(tensor(1), tensor(2), a[7].toBool(), tensor(0));
  }
  if (name == "aten::_scaled_dot_product_flash_attention")
    return attention_flops(tensor(0), tensor(1), tensor(2), a[4].toBool());
  if (name == "aten::_scaled_dot_product_efficient_attention")
    return attention_flops(tensor(0), tensor(1), tensor(2), a[6].toBool());
  // Five products instead of two: the scores are computed again.
  if (name == "aten::_scaled_dot_product_flash_attention_backward")
    return 2.5 * attention_flops(tensor(1), tensor(2), tensor(3), a[11].toBool());
  if (name == "aten::_scaled_dot_product_efficient_attention_backward")
    return 2.5 * attention_flops(tensor(1), tensor(2), tensor(3), a[11].toBool());
  return 0;
}

}  // namespace fulgur::cli
