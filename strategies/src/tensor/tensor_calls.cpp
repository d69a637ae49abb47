#include "tensor/tensor_calls.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tensor/call_arguments.h"
#include "tensor/divided_random.h"
#include "tensor/rank_functions.h"

namespace fulgur::detail {
TensorCalls::TensorCalls(const TensorShards& shards, const std::vector<Tensor>& of_norms) : shards_(shards) {
  for (size_t i = 0; i < of_norms.size(); ++i) norms_.add(of_norms[i], i);
  if (!set_calls_of_process(this))
    throw Error("[strategies.mesh] a process divides the layers of one run at a time; another one has not ended");
}

TensorCalls::~TensorCalls() { set_calls_of_process(nullptr); }

void TensorCalls::start() {
  values_.forget_freed();
  computes_layers_ = true;
  see_calls(true);
}

void TensorCalls::stop() noexcept { see_calls(false); }

Tensor TensorCalls::whole(const Tensor& value, std::string_view what) const {
  const UnseenCalls unseen;
  const DividedValues::Value* const divided = value.defined() ? values_.find(value) : nullptr;
  if (divided && divided->parts == ValueParts::tokens)
    return whole_of_parts(value, -2, divided->tokens, shards_.ranks());
  if (divided)
    throw Error(cat("[strategies.mesh] ", what, " follows from values of which each rank has a part, since '",
                    escape_controls(divided->layer),
                    "' divides them. End with a layer that tensor_plan divides by row, "
                    "or divide this one by gathered_column."));
  return value;
}

DividedReads TensorCalls::reads_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  DividedReads read;
  const auto arguments = arguments_of(op, stack);
  for (size_t i = 0; i < arguments.size(); ++i)
    each_tensor_of(arguments[i], [&](const Tensor& tensor) {
      if (!tensor.has_storage()) return;
      if (const auto* parameter = shards_.with_memory(tensor)) {
        // The weight decides, if there is one.
        if (!read.parameter || parameter->is_weight) {
          read.is_second = read.parameter && read.parameter->is_weight;
          read.parameter = parameter;
          read.at = i;
        }
      } else if (const auto* value = values_.find(tensor)) {
        if (read.value && read.value->parts != value->parts)
          throw Error(cat("[strategies.mesh] ", op.schema().name(), " joins values that '",
                          escape_controls(read.value->layer), "' divides with those that '",
                          escape_controls(value->layer),
                          "' divides otherwise. End the former with a layer that "
                          "tensor_plan divides by row."));
        read.value = value;
        read.device = tensor.device();
      }
    });
  return read;
}

// All ranks have these arguments, and compute a part with them.
void TensorCalls::give_sum_of_gradients(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                                        const DividedReads& read) const {
  const auto& schema = op.schema().arguments();
  const auto replaced = [&](const Tensor& tensor, bool writes) {
    const bool is_whole =
        tensor.defined() && tensor.requires_grad() && !values_.find(tensor) && !shards_.with_memory(tensor);
    if (!is_whole) return tensor;
    if (writes || !at::GradMode::is_enabled())
      throw Error(cat("[strategies.mesh] ", op.schema().name(), writes ? " writes" : " joins",
                      " values of which each rank has a part, since '", escape_controls(read.value->layer),
                      writes ? "' divides them, into a value that all ranks have. Write the result to another tensor."
                             : "' divides them, with a value that all ranks have, in a function with a backward of its "
                               "own: its gradients would be those of one rank. Use operations that autograd knows."));
    return for_parts(tensor, shards_.ranks());
  };
  const size_t first = stack->size() - schema.size();
  for (size_t i = 0; i < schema.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    const bool writes = is_written(schema[i]);
    if (value.isTensor()) {
      value = replaced(value.toTensor(), writes);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(replaced(tensor, writes));
      value = std::move(list);
    }
  }
}

// Of the second argument, such an operation reads the shape or the type only.
bool TensorCalls::gives_only_a_form(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  if (!is_one_of(op, {"aten::expand_as", "aten::view_as", "aten::reshape_as", "aten::type_as", "aten::to"}))
    return false;
  const c10::IValue& first = arguments_of(op, stack)[0];
  return first.isTensor() && !values_.find(first.toTensor());
}

std::unordered_set<const void*> TensorCalls::memory_of_whole(const c10::OperatorHandle& op,
                                                             const torch::jit::Stack& stack) const {
  std::unordered_set<const void*> memory;
  for (const c10::IValue& argument : arguments_of(op, stack))
    each_tensor_of(argument, [&](const Tensor& tensor) {
      if (tensor.defined() && tensor.has_storage() && !values_.find(tensor))
        memory.insert(tensor.storage().unsafeGetStorageImpl());
    });
  return memory;
}

void TensorCalls::call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (!norms_.empty() && computes_layers_) divide_input_of_norm(op, stack);
  const DividedReads read = reads_of(op, *stack);
  if (!read.parameter && !read.value) return op.redispatchBoxed(below, stack);
  if (read.parameter && computes_layers_ && call_layer(op, read, stack)) return;
  if (!read.value || gives_only_a_form(op, *stack)) return op.redispatchBoxed(below, stack);
  const DividedValues::Value value = *read.value;
  const std::unordered_set<const void*> whole = memory_of_whole(op, *stack);
  const bool are_tokens = value.parts == ValueParts::tokens;
  if (are_tokens && !give_own_tokens(op, stack, value)) {
    give_all_tokens(op, stack);
    return op.redispatchBoxed(below, stack);
  }
  const bool are_logits = value.parts == ValueParts::vocabulary;
  if (are_logits && is_one_of(op, {"aten::cross_entropy_loss"})) return cross_entropy(op, stack, value);
  const WidthResult width = are_tokens ? WidthResult() : width_of(op, *stack, value);
  const bool adds_bias = read.parameter && !read.parameter->is_weight;
  const bool keeps_logits =
      adds_bias ||
      is_one_of(op, {"aten::view", "aten::reshape", "aten::flatten", "aten::contiguous", "aten::to", "aten::detach",
                     "aten::alias", "aten::slice", "aten::narrow", "aten::select", "aten::squeeze", "aten::unsqueeze"});
  if (!are_tokens) give_sum_of_gradients(op, stack, read);
  {
    std::optional<DividedRandom> random;
    // The device of plans has no values.
    if (op.hasTag(at::Tag::nondeterministic_seeded) && !read.device->is_meta())
      random.emplace(*read.device, shards_.rank());
    try {
      op.redispatchBoxed(below, stack);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      if (!are_tokens) throw Error(failure_on_parts(op, value, error.what_without_backtrace()));
      throw;
    }
  }
  const torch::jit::Stack none;
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    each_tensor_of((*stack)[i], [&](const Tensor& result) {
      const std::optional<Division> division = width ? width(result) : std::nullopt;
      const bool loses_classes = are_logits && (!keeps_logits || (division && division->dim != result.dim() - 1));
      if (!are_tokens && (!division || loses_classes)) refuse_width(op, none, value);
      if (result.has_storage() && whole.contains(result.storage().unsafeGetStorageImpl()))
        throw Error(cat("[strategies.mesh] ", op.schema().name(),
                        " returns a view of a value that all ranks have, "
                        "together with values of which each has a part, since '",
                        escape_controls(value.layer), "' divides them. Apply it to the former alone."));
      values_.add(result, value, division);
    });
}

}  // namespace fulgur::detail
