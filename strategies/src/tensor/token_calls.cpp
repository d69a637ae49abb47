// Operations on values of which each rank has a part of the tokens.
#include <utility>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tensor/call_arguments.h"
#include "tensor/rank_functions.h"
#include "tensor/tensor_calls.h"

namespace fulgur::detail {

void TensorCalls::divide_input_of_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!is_one_of(op, {"aten::layer_norm", "aten::rms_norm"})) return;
  const size_t count = op.schema().arguments().size();
  const c10::IValue& weight = (*stack)[stack->size() - count + 2];
  if (!weight.isTensor() || !norms_.find(weight.toTensor())) return;
  c10::IValue& argument = (*stack)[stack->size() - count];
  const Tensor input = argument.toTensor();
  if (values_.find(input) || input.dim() < 3 || input.size(-2) % shards_.size() != 0) return;
  Tensor own = part_of_value(input, -2, shards_.ranks());
  values_.add(own, {.parts = ValueParts::tokens, .layer = "a norm", .tokens = input.size(-2)});
  argument = std::move(own);
}

bool TensorCalls::give_own_tokens(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                                  const DividedValues::Value& value) const {
  // They compute each token by itself, and keep the dimensions.
  if (!is_one_of(
          op, {"aten::add",   "aten::add_",       "aten::sub",     "aten::sub_",       "aten::mul",      "aten::mul_",
               "aten::div",   "aten::div_",       "aten::gelu",    "aten::relu",       "aten::relu_",    "aten::silu",
               "aten::tanh",  "aten::sigmoid",    "aten::dropout", "aten::layer_norm", "aten::rms_norm", "aten::to",
               "aten::clone", "aten::contiguous", "aten::detach"}))
    return false;
  const auto& schema = op.schema().arguments();
  const size_t first = stack->size() - schema.size();
  std::vector<std::pair<size_t, Tensor>> given;
  for (size_t i = 0; i < schema.size(); ++i) {
    const c10::IValue& argument = (*stack)[first + i];
    if (!argument.isTensor() || !argument.toTensor().defined() || values_.find(argument.toTensor())) continue;
    const Tensor tensor = argument.toTensor();
    if (is_written(schema[i])) return false;
    if (tensor.dim() >= 2 && tensor.size(-2) > 1 && tensor.size(-2) != value.tokens)
      throw Error(cat("[strategies.mesh] ", op.schema().name(), " joins values of which each rank has a part of the ",
                      value.tokens, " tokens (tensor_plan: sequence) with one for ", tensor.size(-2),
                      " tokens that all ranks have. A number of tokens must come from the batch, and not from the size "
                      "of such values: take it from the ids before the embedding."));
    if (tensor.dim() >= 2 && tensor.size(-2) == value.tokens)
      given.emplace_back(i, part_of_value(tensor, -2, shards_.ranks()));
    else if (tensor.requires_grad())
      given.emplace_back(i, for_parts(tensor, shards_.ranks()));
  }
  for (auto& [i, tensor] : given) (*stack)[first + i] = std::move(tensor);
  return true;
}

void TensorCalls::give_all_tokens(const c10::OperatorHandle& op, torch::jit::Stack* stack) const {
  const auto& schema = op.schema().arguments();
  const auto whole_of = [&](const Tensor& tensor) { return tensor.defined() ? whole(tensor, "a value") : tensor; };
  const size_t first = stack->size() - schema.size();
  for (size_t i = 0; i < schema.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (is_written(schema[i]))
      throw Error(cat("[strategies.mesh] ", op.schema().name(),
                      " changes a value in place of which each rank has a part "
                      "of the tokens, or with such a value. Write the result to another tensor."));
    if (value.isTensor()) {
      value = whole_of(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(whole_of(tensor));
      value = std::move(list);
    }
  }
}

}  // namespace fulgur::detail
