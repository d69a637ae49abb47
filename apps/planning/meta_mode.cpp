#include "planning/meta_mode.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/native_dropout.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/nn/checkpoint.h"
#include "planning/meta_rules.h"

namespace fulgur::cli {
namespace {

using c10::DispatchKey;
using c10::IValue;

// Above autograd, where autocast is on other devices; nothing else in the process uses this key.
constexpr DispatchKey kAbove = DispatchKey::AutocastIPU;
// Below autograd, where a recorder of steps would be.
constexpr DispatchKey kBelow = DispatchKey::Fake;

struct MetaState {
  std::optional<at::ScalarType> autocast;
  bool backward = false;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> casts;  // of parameters, as autocast's cache
  std::vector<Operation> operations;
};

MetaState* meta_state = nullptr;

// Forward that backward computes again has the formats of the first time.
std::optional<at::ScalarType> autocast_now() {
  if (meta_state == nullptr || (meta_state->backward && !nn::in_recompute())) return std::nullopt;
  return meta_state->autocast;
}

template <class Change>
void change_tensors(IValue& value, const Change& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = change(tensor);
    value = tensors;
  } else if (value.isList()) {
    // A list of optional tensors.
    c10::List<IValue> list = value.toList();
    for (size_t i = 0; i < list.size(); ++i)
      if (const IValue& one = list.get(i); one.isTensor()) list.set(i, change(one.toTensor()));
  }
}

template <class Visit>
void each_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) visit(tensor);
  } else if (value.isList()) {
    for (const IValue& one : value.toListRef()) each_tensor(one, visit);
  }
}

// ---- above autograd ----

bool takes_part(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
}

at::Tensor cast_to(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!takes_part(tensor) || tensor.scalar_type() == dtype) return tensor;
  // As autocast does: a parameter is converted once in a forward.
  const bool kept = dtype != at::kFloat && tensor.is_leaf() && tensor.requires_grad() && !tensor.is_view() &&
                    meta_state != nullptr && !meta_state->backward;
  if (!kept) return tensor.to(dtype);
  at::Tensor& cast = meta_state->casts[tensor.unsafeGetTensorImpl()];
  if (!cast.defined()) cast = tensor.to(dtype);
  return cast;
}

enum class CastPolicyOfMeta { half, full, full_result, widest };

void cast_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack, CastPolicyOfMeta policy) {
  const std::optional<at::ScalarType> half = autocast_now();
  if (!half) return;
  const auto& parameters = op.schema().arguments();
  auto arguments = torch::jit::last(stack, parameters.size());
  at::ScalarType dtype = policy == CastPolicyOfMeta::half ? *half : at::kFloat;
  if (policy == CastPolicyOfMeta::widest) {
    dtype = *half;
    for (const IValue& argument : arguments)
      each_tensor(argument, [&](const at::Tensor& tensor) {
        if (tensor.scalar_type() == at::kFloat) dtype = at::kFloat;
      });
  }
  if (policy == CastPolicyOfMeta::full_result) {
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].name() == "dtype" && arguments[0].isTensor() && takes_part(arguments[0].toTensor()) &&
          const_cast<IValue&>(arguments[i]).isNone())
        const_cast<IValue&>(arguments[i]) = static_cast<int64_t>(at::kFloat);
    return;
  }
  for (const IValue& argument : arguments)
    change_tensors(const_cast<IValue&>(argument), [&](const at::Tensor& tensor) { return cast_to(tensor, dtype); });
}

template <CastPolicyOfMeta policy>
void cast_and_call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAbove);
  cast_arguments(op, *stack, policy);
  op.callBoxed(stack);
}

// Attention as LibTorch chooses it on a GPU of 2020 or later.
void attention(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kAbove);
    cast_arguments(op, *stack, CastPolicyOfMeta::half);
  }
  const auto a = torch::jit::last(*stack, 8);
  const at::Tensor query = a[0].toTensor(), key = a[1].toTensor(), value = a[2].toTensor();
  const bool masked = a[3].isTensor() && a[3].toTensor().defined();
  const double dropout = a[4].toDouble();
  const bool causal = a[5].toBool();
  const std::optional<double> scale = a[6].isNone() ? std::nullopt : std::optional(a[6].toDouble());
  const bool is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  const int64_t size = query.dim() == 4 ? query.size(3) : 0;
  const bool same_heads = query.dim() == 4 && key.dim() == 4 && query.size(1) == key.size(1);
  const bool fits = query.dim() == 4 && query.scalar_type() != at::kDouble && value.size(3) == size;
  const c10::impl::ExcludeDispatchKeyGuard below(kAbove);
  at::Tensor result;
  if (fits && is_half && !masked && size % 8 == 0 && size <= 256) {
    result = std::get<0>(at::_scaled_dot_product_flash_attention(query, key, value, dropout, causal, false, scale));
  } else if (fits && same_heads && size % (is_half ? 8 : 4) == 0) {
    std::optional<at::Tensor> bias;
    if (masked) bias = a[3].toTensor();
    result = std::get<0>(at::_scaled_dot_product_efficient_attention(
        query, key, value, bias, query.requires_grad() || key.requires_grad() || value.requires_grad(), dropout, causal,
        scale));
  } else {
    return op.callBoxed(stack);
  }
  torch::jit::drop(*stack, 8);
  stack->emplace_back(std::move(result));
}

at::Tensor dropout(const at::Tensor& input, double share, bool training) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAbove);
  if (!training || share == 0) return input;
  return std::get<0>(at::native_dropout(input, share, true));
}

at::Tensor rms_norm_on_gpu(const at::Tensor& input, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                           std::optional<double> eps) {
  const c10::impl::ExcludeDispatchKeyGuard below(kAbove);
  return std::get<0>(at::_fused_rms_norm(input, C10_AS_INTARRAYREF_SLOW(shape), weight, eps));
}

void register_above() {
  auto rest = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kAbove, __FILE__, __LINE__);
  rest->fallback(torch::CppFunction::makeFallthrough());
  rest.release();  // NOLINT(bugprone-unused-return-value)
  auto aten = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kAbove, __FILE__, __LINE__);
  const std::unordered_set<std::string> own{"scaled_dot_product_attention", "dropout", "rms_norm"};
#define FULGUR_META_NAME(op, ...) std::string(#op) + (std::string(#__VA_ARGS__).empty() ? "" : "." #__VA_ARGS__)
#define FULGUR_META_CAST(policy, ...)                                                                           \
  if (const std::string name = FULGUR_META_NAME(__VA_ARGS__);                                                   \
      !own.contains(name) && c10::Dispatcher::singleton().findSchema(                                           \
                                 {"aten::" + name.substr(0, name.find('.')),                                    \
                                  name.find('.') == std::string::npos ? "" : name.substr(name.find('.') + 1)})) \
    aten->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&cast_and_call<CastPolicyOfMeta::policy>>());
#define FULGUR_META_HALF(...) FULGUR_META_CAST(half, __VA_ARGS__)
#define FULGUR_META_FULL(...) FULGUR_META_CAST(full, __VA_ARGS__)
#define FULGUR_META_RESULT(...) FULGUR_META_CAST(full_result, __VA_ARGS__)
#define FULGUR_META_WIDEST(...) FULGUR_META_CAST(widest, __VA_ARGS__)
  AT_FORALL_LOWER_PRECISION_FP(FULGUR_META_HALF)
  AT_FORALL_FP32(FULGUR_META_FULL)
  AT_FORALL_FP32_SET_OPT_DTYPE(FULGUR_META_RESULT)
  AT_FORALL_PROMOTE(FULGUR_META_WIDEST)
#undef FULGUR_META_WIDEST
#undef FULGUR_META_RESULT
#undef FULGUR_META_FULL
#undef FULGUR_META_HALF
#undef FULGUR_META_CAST
#undef FULGUR_META_NAME
  aten->impl("scaled_dot_product_attention", torch::CppFunction::makeFromBoxedFunction<&attention>());
  aten->impl("dropout", TORCH_FN(dropout));
  aten->impl("rms_norm", TORCH_FN(rms_norm_on_gpu));
  aten.release();  // NOLINT(bugprone-unused-return-value)
}

// ---- below autograd ----

at::Tensor on_meta(const at::Tensor& tensor) {
  // A number of the host may be an argument of any operation.
  if (!tensor.defined() || tensor.is_meta() || tensor.dim() == 0) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// Arguments such as the device of a new tensor become those of `meta`.
void move_arguments(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto& parameters = schema.arguments();
  auto arguments = torch::jit::last(stack, parameters.size());
  bool takes_tensors = false;
  for (const IValue& argument : arguments) each_tensor(argument, [&](const at::Tensor&) { takes_tensors = true; });
  for (size_t i = 0; i < parameters.size(); ++i) {
    IValue& argument = const_cast<IValue&>(arguments[i]);
    change_tensors(argument, on_meta);
    if (argument.isDevice() || (parameters[i].name() == "device" && argument.isNone() && !takes_tensors))
      argument = at::Device(at::kMeta);
    else if (parameters[i].name() == "pin_memory")
      argument = IValue();
  }
}

// Operations on tensors of the host alone, such as states of generators, are computed.
bool is_of_host(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  bool takes_tensors = false, takes_meta = false;
  for (const IValue& argument : torch::jit::last(stack, schema.arguments().size()))
    each_tensor(argument, [&](const at::Tensor& tensor) {
      takes_tensors = true;
      takes_meta = takes_meta || tensor.is_meta();
    });
  return takes_tensors && !takes_meta;
}

bool only_makes(const std::string& name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") ||
         name == "aten::_local_scalar_dense" || name == "aten::detach" || name == "aten::lift_fresh";
}

void note_operation(const c10::FunctionSchema& schema, const MetaStack& arguments, const MetaStack& results) {
  if (only_makes(schema.name())) return;
  Operation operation;
  std::unordered_set<const c10::StorageImpl*> given;
  double read = 0;
  bool has_dtype = false;
  for (const IValue& argument : arguments)
    each_tensor(argument, [&](const at::Tensor& tensor) {
      if (tensor.has_storage()) given.insert(tensor.storage().unsafeGetStorageImpl());
      read += static_cast<double>(tensor.numel() * tensor.element_size());
      if (tensor.is_floating_point() && !std::exchange(has_dtype, true)) operation.dtype = tensor.scalar_type();
    });
  bool writes = schema.is_mutable();
  double written = 0;
  for (const IValue& result : results)
    each_tensor(result, [&](const at::Tensor& tensor) {
      if (schema.is_mutable() || !tensor.has_storage() || !given.contains(tensor.storage().unsafeGetStorageImpl())) {
        writes = true;
        written += static_cast<double>(tensor.numel() * tensor.element_size());
      }
    });
  if (!writes) return;  // a view
  // Rows that are looked up are read, and not the whole table.
  operation.bytes =
      (schema.name() == "aten::embedding" || schema.name() == "aten::index_select" ? written : read) + written;
  operation.flops = meta_flops(schema.name(), arguments, results);
  operation.in_backward = meta_state->backward;
  meta_state->operations.push_back(operation);
}

bool follows_from_values(const std::string& name) {
  static const std::unordered_set<std::string> all{"aten::nonzero",
                                                   "aten::masked_select",
                                                   "aten::_unique",
                                                   "aten::_unique2",
                                                   "aten::unique_dim",
                                                   "aten::unique_consecutive",
                                                   "aten::unique_dim_consecutive",
                                                   "aten::bincount",
                                                   "aten::repeat_interleave"};
  return all.contains(name);
}

void compute_shapes(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kBelow);
  const c10::FunctionSchema& schema = op.schema();
  if (meta_state == nullptr || is_of_host(schema, *stack)) return op.callBoxed(stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  move_arguments(schema, *stack);
  const auto given = torch::jit::last(*stack, schema.arguments().size());
  const MetaStack arguments(given.begin(), given.end());
  if (const MetaRule rule = meta_rule(schema)) {
    MetaStack results = rule(arguments);
    torch::jit::drop(*stack, arguments.size());
    for (IValue& result : results) stack->push_back(std::move(result));
  } else {
    try {
      op.callBoxed(stack);
    } catch (const c10::NotImplementedError&) {
      throw Error(cat("[plan] the operation ", schema.name(),
                      follows_from_values(schema.name())
                          ? " has results whose shapes follow from values, which a plan does not have. Plan a model "
                            "without it."
                          : " is not known to the plan: LibTorch has no rule for the shapes of its results. Plan a "
                            "model without it, and report the operation."));
    }
  }
  const auto made = torch::jit::last(*stack, schema.returns().size());
  note_operation(schema, arguments, MetaStack(made.begin(), made.end()));
}

void whole_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto given = torch::jit::last(*stack, op.schema().arguments().size());
  MetaStack results = meta_rule(op.schema())(MetaStack(given.begin(), given.end()));
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (IValue& result : results) stack->push_back(std::move(result));
}

// Operations that autograd takes apart on devices without a kernel for them. The rules compute their shapes.
void register_kernels() {
  auto aten = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", DispatchKey::Meta, __FILE__, __LINE__);
  aten->impl("_fused_rms_norm", torch::CppFunction::makeFromBoxedFunction<&whole_kernel>());
  aten.release();  // NOLINT(bugprone-unused-return-value)
}

void register_meta_mode() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_above();
    register_kernels();
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kBelow, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&compute_shapes>());
    library.release();  // NOLINT(bugprone-unused-return-value)
  });
}

}  // namespace

struct MetaMode::Impl {
  MetaState state;
  std::optional<c10::impl::IncludeDispatchKeyGuard> above, below;
};

MetaMode::MetaMode() : impl_(std::make_unique<Impl>()) {
  register_meta_mode();
  meta_state = &impl_->state;
  // As autocast's own switch: its keys are excluded unless it is on.
  c10::impl::tls_set_dispatch_key_excluded(kAbove, false);
  impl_->above.emplace(kAbove);
  impl_->below.emplace(kBelow);
}

MetaMode::~MetaMode() {
  impl_->below.reset();
  impl_->above.reset();
  c10::impl::tls_set_dispatch_key_excluded(kAbove, true);
  meta_state = nullptr;
}

void MetaMode::set_autocast(std::optional<at::ScalarType> dtype) {
  impl_->state.autocast = dtype;
  impl_->state.casts.clear();
}

void MetaMode::set_backward(bool backward) {
  impl_->state.backward = backward;
  impl_->state.casts.clear();
}

std::vector<Operation> MetaMode::take_operations() { return std::exchange(impl_->state.operations, {}); }

}  // namespace fulgur::cli
