#include "creation/deferred_calls.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "fulgur/core/system/free_memory.h"
#include "fulgur/core/text/text.h"
#include "operations/operator_arguments.h"

namespace fulgur::detail {
namespace {

bool makes_tensor(const c10::OperatorHandle& op) {
  return is_one_of(op, {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty",
                        "aten::new_empty_strided", "aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::ones",
                        "aten::ones_like", "aten::new_ones", "aten::full", "aten::full_like", "aten::new_full",
                        "aten::rand", "aten::rand_like", "aten::randn", "aten::randn_like", "aten::normal"}) &&
         std::ranges::any_of(op.schema().arguments(), [](const auto& each) { return each.name() == "device"; });
}

bool leaves_values_open(const c10::OperatorHandle& op) {
  return is_one_of(
      op, {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"});
}

bool returns_tensors(const c10::OperatorHandle& op) {
  return std::ranges::all_of(op.schema().returns(), [](const c10::Argument& result) {
    const auto kind = result.type()->kind();
    return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType;
  });
}

// A tensor without memory is on `meta`, and code that asks for its device and uses it means the CPU.
bool is_here(const c10::IValue& device) {
  return device.isNone() || (device.isDevice() && (device.toDevice().is_cpu() || device.toDevice().is_meta()));
}

// Arguments with their devices replaced, if they name one.
torch::jit::Stack on_device(std::span<const c10::IValue> arguments, at::Device device) {
  torch::jit::Stack changed(arguments.begin(), arguments.end());
  for (c10::IValue& argument : changed)
    if (argument.isDevice() && is_here(argument)) argument = device;
  return changed;
}

Tensor without_values(const Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

at::Generator generator_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return {};
  for (const c10::IValue& argument : arguments)
    if (argument.isGenerator() && argument.toGenerator().defined()) return argument.toGenerator().clone();
  return at::detail::getDefaultCPUGenerator().clone();
}

void replace_arguments(const c10::OperatorHandle& op, torch::jit::Stack* stack, torch::jit::Stack results) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

}  // namespace

DeferredCalls::DeferredCalls(size_t least_bytes) : least_bytes_(least_bytes) {
  set_calls_of_thread(this);
  were_seen_ = see_calls(true);
}

DeferredCalls::~DeferredCalls() {
  see_calls(were_seen_);
  set_calls_of_thread(nullptr);
}

void DeferredCalls::call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  bool reads = false, writes = false, writes_others = false;
  const auto& schema = op.schema().arguments();
  const auto arguments = arguments_of(op, *stack);
  for (size_t i = 0; i < arguments.size(); ++i)
    each_tensor_of(arguments[i], [&](const Tensor& tensor) {
      const bool is_known = log_->has(tensor);
      reads = reads || is_known;
      if (!is_written(schema[i])) return;
      (is_known ? writes : writes_others) = true;
    });
  if (!reads) {
    if (!makes_tensor(op) || !make(op, stack)) op.redispatchBoxed(below, stack);
    return;
  }
  const bool leaves =
      std::ranges::any_of(arguments, [](const auto& each) { return each.isDevice() && !is_here(each); });
  if (!writes && (writes_others || leaves || !returns_tensors(op))) return compute(op, stack);
  if (writes_others || leaves || is_one_of(op, {"aten::set_", "aten::resize_", "aten::resize_as_"}))
    throw CannotDefer(cat(op.schema().name(), " is called for a parameter that has no memory yet"));
  defer(op, stack);
}

bool DeferredCalls::make(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = arguments_of(op, *stack);
  const auto& schema = op.schema().arguments();
  torch::jit::Stack on_meta(arguments.begin(), arguments.end()), later = on_meta;
  for (size_t i = 0; i < schema.size(); ++i) {
    const std::string& name = schema[i].name();
    if (name == "device") {
      if (!is_here(arguments[i])) return false;
      // Beside a tensor, no device is that of the tensor.
      on_meta[i] = at::Device(at::kMeta);
      later[i] = at::Device(at::kCPU);
    } else if (name == "pin_memory" && arguments[i].isBool() && arguments[i].toBool()) {
      return false;
    } else if (name == "names" && !arguments[i].isNone()) {
      return false;
    } else {
      change_tensors_of(on_meta[i], without_values);
    }
  }
  op.callBoxed(&on_meta);
  const Tensor made = on_meta.front().toTensor();
  if (!made.is_floating_point() || made.layout() != at::kStrided || made.nbytes() < least_bytes_) {
    // A tensor of a device that code asked a tensor without memory for.
    for (size_t i = 0; i < schema.size(); ++i)
      if (schema[i].name() == "device" && arguments[i].isDevice())
        (*stack)[stack->size() - schema.size() + i] = later[i];
    return false;
  }
  if (leaves_values_open(op)) {
    log_->add_memory(made);
  } else {
    const at::Generator generator = generator_of(op, arguments);
    if (generator.defined()) {
      const at::NoGradGuard no_grad;
      torch::jit::Stack drawn = later;
      op.callBoxed(&drawn);
      drawn.clear();
      return_free_memory();
    }
    log_->add(op, later, on_meta, generator);
  }
  replace_arguments(op, stack, std::move(on_meta));
  return true;
}

void DeferredCalls::compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
  const size_t first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size(); ++i)
    change_tensors_of((*stack)[i],
                      [&](const Tensor& tensor) { return log_->has(tensor) ? log_->read(tensor) : tensor; });
  op.callBoxed(stack);
}

void DeferredCalls::defer(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto arguments = arguments_of(op, *stack);
  const auto& schema = op.schema().arguments();
  torch::jit::Stack on_meta = on_device(arguments, at::kMeta);
  for (c10::IValue& argument : on_meta)
    change_tensors_of(argument, [&](const Tensor& tensor) {
      return log_->has(tensor) || tensor.dim() == 0 ? tensor : without_values(tensor);
    });
  const bool writes = std::ranges::any_of(schema, is_written);
  try {
    op.callBoxed(&on_meta);
  } catch (const c10::NotImplementedError&) {
    if (!writes) return compute(op, stack);
    throw CannotDefer(cat(op.schema().name(), " has no rule for tensors without memory"));
  }
  bool makes = false;
  for (const c10::IValue& result : on_meta)
    each_tensor_of(result, [&](const Tensor& tensor) {
      makes = makes || !log_->has(tensor);
      if (!tensor.is_meta() || tensor.is_conj() || tensor.is_neg())
        throw CannotDefer(cat(op.schema().name(), " returns what cannot be computed later"));
    });
  // A view needs nothing: memory and geometry are those of the tensor.
  if (writes || makes) {
    const at::Generator generator = generator_of(op, arguments);
    if (generator.defined()) draw(op, arguments);
    log_->add(op, on_device(arguments, at::kCPU), on_meta, generator);
  }
  replace_arguments(op, stack, std::move(on_meta));
}

void DeferredCalls::draw(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) const {
  const at::NoGradGuard no_grad;
  const auto& schema = op.schema().arguments();
  torch::jit::Stack drawn = on_device(arguments, at::kCPU);
  for (size_t i = 0; i < schema.size(); ++i)
    change_tensors_of(drawn[i], [&](const Tensor& tensor) {
      if (!log_->has(tensor)) return is_written(schema[i]) ? tensor.clone() : tensor;
      // How many numbers are drawn follows from the shape.
      return is_written(schema[i])
                 ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU))
                 : log_->read(tensor);
    });
  op.callBoxed(&drawn);
  drawn.clear();
  // Blocks that stay lie between those of many draws.
  return_free_memory();
}

}  // namespace fulgur::detail
