#include "operator_rules.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace fulgur::detail {
namespace {

using Names = std::string_view;

// Without the overload.
template <size_t N>
bool is_among(const std::array<Names, N>& names, const c10::OperatorHandle& op) {
  return std::ranges::find(names, Names(op.operator_name().name)) != names.end();
}

constexpr std::array<Names, 6> kAllocate{"aten::empty",     "aten::empty_like",        "aten::empty_strided",
                                         "aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted"};
constexpr std::array<Names, 7> kFill{"aten::zeros_like", "aten::ones_like", "aten::full_like",    "aten::new_zeros",
                                     "aten::new_ones",   "aten::new_full",  "aten::scalar_tensor"};
constexpr std::array<Names, 3> kChangeMemory{"aten::resize_", "aten::set_", "aten::resize_as_"};
constexpr std::array<Names, 9> kMetadata{"aten::is_same_size",     "aten::_has_compatible_shallow_copy_type",
                                         "aten::is_pinned",        "aten::is_set_to",
                                         "aten::sym_size",         "aten::sym_numel",
                                         "aten::sym_stride",       "aten::sym_storage_offset",
                                         "aten::_fused_sdp_choice"};
// Their CPU kernels are made of operations, although they are registered for CPU.
constexpr std::array<Names, 4> kCompositeOnCpu{"aten::relu", "aten::embedding", "aten::native_dropout",
                                               "aten::native_dropout_backward"};
// Not tagged in LibTorch 2.11.
constexpr std::array<Names, 8> kDynamic{
    "aten::_local_scalar_dense", "aten::equal",    "aten::_unique",   "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive",  "aten::bincount", "aten::is_nonzero"};

bool reads_values(const RecordedCall& call) {
  if (name_of(call.op) == "aten::index.Tensor") {
    // Tagged because of masks; the result of integers has a fixed shape.
    bool by_mask = false;
    each_tensor(call.arguments[1], [&](const Tensor& index) {
      by_mask = by_mask || index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
    return by_mask;
  }
  return call.op.hasTag(at::Tag::data_dependent_output) || call.op.hasTag(at::Tag::dynamic_output_shape) ||
         is_among(kDynamic, call.op);
}

}  // namespace

bool only_allocates(const c10::OperatorHandle& op) {
  return is_among(kAllocate, op) && op.operator_name().overload_name != "out";
}

bool only_fills(const c10::OperatorHandle& op) {
  return is_among(kFill, op) && !op.operator_name().overload_name.ends_with("out");
}

bool makes_constants(const RecordedCall& call) {
  if (call.op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  bool reads = false;
  each_argument(call, [&reads](const Tensor&) { reads = true; });
  for (const c10::IValue& value : call.arguments) reads = reads || value.isGenerator();
  return !reads || only_fills(call.op);
}

bool changes_memory(const c10::OperatorHandle& op) { return is_among(kChangeMemory, op); }

bool changes_metadata(const c10::OperatorHandle& op) { return op.hasTag(at::Tag::inplace_view) && !changes_memory(op); }

bool reads_metadata(const c10::OperatorHandle& op) { return is_among(kMetadata, op); }

bool always_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool may_be_composite(const c10::OperatorHandle& op) {
  if (only_allocates(op) || only_fills(op)) return false;
  if (is_among(kCompositeOnCpu, op)) return true;
  return !op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional));
}

std::optional<ReusableArgument> reusable_argument(const c10::OperatorHandle& op) {
  const std::string name = name_of(op);
  if (name == "fulgur_nn::norm_pool_gradients") return ReusableArgument{.argument = 1, .result = 0};
  if (name == "aten::threshold_backward") return ReusableArgument{.argument = 0, .result = 0};
  return std::nullopt;
}

std::optional<std::string> why_refused(const RecordedCall& call) {
  if (reads_values(call)) return "it reads a tensor's values on the host, or the shape of its result depends on them";
  if (changes_memory(call.op)) return "it changes the memory of its argument";
  for (const c10::IValue& result : call.results)
    if (!result.isTensor() && !result.isTensorList() && !result.isNone()) return "its result is not a tensor";
  std::optional<std::string> reason;
  const auto look = [&](const Tensor& tensor) {
    if (!tensor.device().is_cpu())
      reason = "it uses a tensor on " + tensor.device().str();
    else if (tensor.layout() != at::kStrided || !tensor.has_storage())
      reason = "it uses a tensor that is not strided, such as a sparse one";
    else if (tensor.is_quantized())
      reason = "it uses a quantized tensor";
  };
  each_argument(call, look);
  each_result(call, look);
  return reason;
}

}  // namespace fulgur::detail
