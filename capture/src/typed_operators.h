#pragma once

// The operations that replays call by their type: those of the steps that were measured. Others are called boxed, which
// takes some 0.1 to 0.5 µs more. `USE(name)`: the name in at::_ops.

#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_ops.h>
#include <ATen/ops/_amp_update_scale_ops.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/_fused_adagrad_ops.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>
#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addbmm_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/amin_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp_max_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/convolution_overrideable_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/elu_backward_ops.h>
#include <ATen/ops/elu_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/erf_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expm1_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/hardsigmoid_ops.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/huber_loss_ops.h>
#include <ATen/ops/index_add_ops.h>
#include <ATen/ops/index_copy_ops.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_put_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/isfinite_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/leaky_relu_backward_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/log_sigmoid_forward_ops.h>
#include <ATen/ops/logical_and_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mish_ops.h>
#include <ATen/ops/mkldnn_convolution_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/normal_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/random_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/scatter_add_ops.h>
#include <ATen/ops/scatter_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/select_scatter_ops.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/smooth_l1_loss_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/softplus_backward_ops.h>
#include <ATen/ops/softplus_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/triu_ops.h>
#include <ATen/ops/uniform_ops.h>
#include <ATen/ops/unsafe_split_ops.h>
#include <ATen/ops/upsample_nearest2d_ops.h>
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_ops.h>

// clang-format off
#define FULGUR_TYPED_OPERATORS(USE) \
  USE(_adaptive_avg_pool2d) USE(_amp_foreach_non_finite_check_and_unscale_) USE(_amp_update_scale_) \
  USE(_foreach_add__Scalar) USE(_foreach_addcdiv__Scalar) USE(_foreach_lerp__Scalar) USE(_foreach_mul__Tensor) \
  USE(_foreach_norm_Scalar) USE(_fused_adagrad_) USE(_fused_adam_) USE(_fused_adam__tensor_lr) \
  USE(_fused_adamw_) USE(_fused_adamw__tensor_lr) USE(_fused_sgd_) USE(_index_put_impl_) \
  USE(_log_softmax_backward_data_out) USE(_log_softmax_out) USE(_scaled_dot_product_flash_attention_for_cpu) \
  USE(_scaled_dot_product_flash_attention_for_cpu_backward) USE(_softmax_backward_data_out) USE(_softmax_out) \
  USE(_to_copy) USE(abs_out) USE(add_Scalar) USE(add__Scalar) USE(add__Tensor) USE(add_out) USE(addbmm_out) \
  USE(addcdiv_) USE(addcdiv_out) USE(addcmul_) USE(addcmul_out) USE(addmm) USE(addmm_out) USE(addmv_out) \
  USE(amax_out) USE(amin_out) USE(argmax_out) USE(avg_pool2d_backward_grad_input) USE(avg_pool2d_out) \
  USE(baddbmm_out) USE(bernoulli__Tensor) USE(bernoulli__float) USE(bmm_out) USE(cat_out) USE(clamp_max_out) \
  USE(clamp_min_out) USE(clamp_out) USE(convolution) USE(convolution_backward) USE(convolution_overrideable) \
  USE(copy_) USE(cos_out) USE(cumsum_out) USE(div_Tensor) USE(div__Scalar) USE(div__Tensor) USE(div_out) \
  USE(dot) USE(elu_backward_grad_input) USE(elu_out) USE(embedding) USE(embedding_dense_backward) \
  USE(eq_Scalar_out) USE(eq_Tensor_out) USE(erf_out) USE(exp_out) USE(expm1_out) USE(fill__Scalar) \
  USE(fill__Tensor) USE(gather_out) USE(ge_Scalar_out) USE(gelu_backward_grad_input) USE(gelu_out) \
  USE(gt_Scalar_out) USE(hardsigmoid_out) USE(hardswish_out) USE(hardtanh_out) USE(huber_loss_out) \
  USE(index_Tensor_out) USE(index_add_) USE(index_copy_) USE(index_put_) USE(index_select_out) USE(isfinite) \
  USE(le_Scalar_out) USE(leaky_relu_backward_grad_input) USE(leaky_relu_out) USE(lerp_Scalar_out) \
  USE(lerp__Scalar) USE(linalg_vector_norm_out) USE(log1p_out) USE(log_out) USE(log_sigmoid_forward_output) \
  USE(logical_and_out) USE(logical_not_out) USE(lt_Scalar_out) USE(masked_fill__Scalar) \
  USE(masked_fill__Tensor) USE(max_dim_max) USE(max_pool2d_with_indices_backward_grad_input) \
  USE(max_pool2d_with_indices_out) USE(maximum_out) USE(mean_dim) USE(mean_out) USE(minimum_out) USE(mish_out) \
  USE(mkldnn_convolution) USE(mkldnn_rnn_layer) USE(mkldnn_rnn_layer_backward) USE(mm_out) \
  USE(mse_loss_backward_grad_input) USE(mse_loss_out) USE(mul_Scalar) USE(mul__Scalar) USE(mul__Tensor) \
  USE(mul_out) USE(mv_out) USE(native_batch_norm) USE(native_batch_norm_backward) USE(native_batch_norm_out) \
  USE(native_dropout) USE(native_dropout_backward) USE(native_group_norm) USE(native_group_norm_backward) \
  USE(native_layer_norm) USE(native_layer_norm_backward) USE(ne_Scalar_out) USE(neg_out) \
  USE(nll_loss_backward_grad_input) USE(nll_loss_forward_output) USE(normal_) USE(pow_Tensor_Scalar_out) \
  USE(pow_Tensor_Tensor_out) USE(random_) USE(reciprocal_out) USE(relu) USE(rsqrt_out) USE(scatter_add_) \
  USE(scatter_src_out) USE(select_backward) USE(select_scatter) USE(sgn_out) USE(sigmoid_) \
  USE(sigmoid_backward_grad_input) USE(sigmoid_out) USE(silu_backward_grad_input) USE(silu_out) USE(sin_out) \
  USE(slice_backward) USE(smooth_l1_loss_out) USE(softmax_int_out) USE(softplus_backward_grad_input) \
  USE(softplus_out) USE(split_with_sizes) USE(sqrt_out) USE(squeeze_dim) USE(squeeze_dims) USE(stack) \
  USE(sub_Scalar) USE(sub__Tensor) USE(sub_out) USE(sum) USE(sum_IntList_out) USE(sum_out) USE(tanh_) \
  USE(tanh_backward_grad_input) USE(tanh_out) USE(threshold_backward_grad_input) USE(tril_out) USE(triu_out) \
  USE(uniform_) USE(unsafe_split_Tensor) USE(upsample_nearest2d_out) USE(var_mean_correction) \
  USE(where_self_out) USE(zero_) USE(zeros)
// clang-format on
