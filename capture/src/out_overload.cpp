#include "out_overload.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

#include "saved_state.h"

namespace fulgur::detail {
namespace {

const std::vector<c10::OperatorName>& overloads_of(const std::string& name) {
  static const std::unordered_map<std::string, std::vector<c10::OperatorName>> all = [] {
    std::unordered_map<std::string, std::vector<c10::OperatorName>> by_name;
    for (const c10::OperatorName& one : c10::Dispatcher::singleton().getAllOpNames()) by_name[one.name].push_back(one);
    return by_name;
  }();
  static const std::vector<c10::OperatorName> none;
  const auto found = all.find(name);
  return found == all.end() ? none : found->second;
}

bool is_out_of(const c10::FunctionSchema& overload, const c10::FunctionSchema& functional) {
  const size_t shared = functional.arguments().size();
  if (overload.arguments().size() != shared + functional.returns().size()) return false;
  for (size_t i = 0; i < overload.arguments().size(); ++i) {
    const c10::Argument& argument = overload.arguments()[i];
    if (i >= shared) {
      if (!argument.is_out() || argument.type()->kind() != c10::TypeKind::TensorType) return false;
    } else if (const c10::Argument& same = functional.arguments()[i];
               argument.is_out() || argument.name() != same.name() || *argument.type() != *same.type()) {
      return false;
    }
  }
  return true;
}

// An `out` that is used as scratch memory of another shape is reported, and would be in each replay.
struct CountedWarnings final : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override { ++count; }
  int count = 0;
};

bool same_bits(const Tensor& one, const Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() && one.is_non_overlapping_and_dense() &&
         (one.nbytes() == 0 || std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0);
}

}  // namespace

std::optional<c10::OperatorHandle> out_overload(const c10::OperatorHandle& op) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : overloads_of(op.operator_name().name)) {
    const auto overload = dispatcher.findSchema(name);
    if (overload && overload->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
        is_out_of(overload->schema(), op.schema()))
      return overload;
  }
  return std::nullopt;
}

bool out_gives_same_bits(const RecordedCall& call, const c10::OperatorHandle& overload,
                         const std::vector<Tensor>& outputs, const std::optional<ReusableArgument>& reused) {
  SavedState before;
  for (const c10::IValue& value : call.arguments)
    if (value.isGenerator()) return false;
  if (call.op.hasTag(at::Tag::nondeterministic_seeded))
    before.add(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)));
  each_argument(call, [&before](const Tensor& tensor) { before.add(tensor.storage()); });
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  CountedWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&warnings);
  bool same = true;
  try {
    torch::jit::Stack functional(call.arguments), into(call.arguments);
    call.op.redispatchBoxed(cpu, &functional);
    before.restore();
    std::vector<Tensor> given;
    std::vector<const void*> memory;
    for (size_t i = 0; i < outputs.size(); ++i) {
      Tensor fresh = at::empty_strided(outputs[i].sizes(), outputs[i].strides(), outputs[i].options());
      // Values that a kernel would notice if it read them.
      if (fresh.nbytes() > 0) std::memset(fresh.mutable_data_ptr(), 0xA5, fresh.storage().nbytes());
      if (reused && reused->result == i)
        into[reused->argument] = fresh.copy_(call.arguments[reused->argument].toTensor());
      memory.push_back(fresh.const_data_ptr());
      into.emplace_back(fresh);
      given.push_back(std::move(fresh));
    }
    warnings.count = 0;
    overload.redispatchBoxed(cpu, &into);
    same = warnings.count == 0;
    for (size_t i = 0; same && i < given.size(); ++i)
      same = given[i].const_data_ptr() == memory[i] && same_bits(functional[i].toTensor(), given[i]);
  } catch (const std::exception&) {
    same = false;
  }
  before.restore();
  return same;
}

}  // namespace fulgur::detail
