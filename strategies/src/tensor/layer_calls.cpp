// The operations that read divided parameters.
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>

#include <optional>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tensor/call_arguments.h"
#include "tensor/rank_functions.h"
#include "tensor/tensor_calls.h"

namespace fulgur::detail {
namespace {

void give_layer_result(const c10::OperatorHandle& op, torch::jit::Stack* stack, Tensor result) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  torch::jit::push(*stack, std::move(result));
}

// The parameter is contiguous.
bool is_transposed(const Tensor& weight, const DividedParameter& layer) {
  return weight.dim() == 2 && weight.stride(0) == 1 && weight.size(0) == layer.value.size(1) &&
         weight.size(1) == layer.value.size(0);
}

}  // namespace

Tensor TensorCalls::input_of_column(const DividedParameter& layer, const Tensor& input) const {
  const auto* divided = values_.find(input);
  if (divided && divided->parts == ValueParts::tokens) return all_tokens_for_parts(input, shards_.ranks());
  if (divided)
    throw Error(cat("[strategies.mesh] tensor_plan divides '", escape_controls(layer.layer), "' by ",
                    enum_text(layer.split), ", and it reads values that '", escape_controls(divided->layer),
                    "' divides already. Divide it by row."));
  return for_parts(input, shards_.ranks());
}

Tensor TensorCalls::input_of_row(const DividedParameter& layer, const Tensor& input) const {
  if (const auto* divided = values_.find(input)) {
    if (divided->parts == ValueParts::features) {
      const Division* const division = values_.division(input);
      // The columns of its weight are consecutive.
      if (division && division->dim == input.dim() - 1 && division->parts.empty()) return input;
      throw Error(cat("[strategies.mesh] '", escape_controls(layer.layer),
                      "' (tensor_plan: row) needs values whose last dimension '", escape_controls(divided->layer),
                      "' divides, as one part; got another order or dimension of shape ", shape_text(input.sizes()),
                      ". Split the parts of the former, or bring the divided dimension to the last place."));
    }
    if (divided->parts == ValueParts::tokens)
      return part_of_value(whole_of_parts(input, -2, divided->tokens, shards_.ranks()), -1, shards_.ranks());
    throw Error(cat("[strategies.mesh] '", escape_controls(layer.layer), "' reads logits that '",
                    escape_controls(divided->layer), "' divides by vocabulary. Divide that by gathered_column."));
  }
  return input.size(-1) == layer.sizes[1] ? part_of_value(input, -1, shards_.ranks()) : input;
}

Tensor TensorCalls::sum_of_outputs(const DividedParameter& layer, const Tensor& output) {
  const bool divides_tokens = !norms_.empty() && output.dim() >= 3 && output.size(-2) % shards_.size() == 0;
  if (!divides_tokens) return sum_of_ranks(output, shards_.ranks());
  Tensor own = tokens_of_sum(output, shards_.ranks());
  values_.add(own, {.parts = ValueParts::tokens, .layer = layer.layer, .tokens = output.size(-2)});
  return own;
}

// `weight`: (outputs, inputs).
Tensor TensorCalls::linear(const DividedParameter& layer, const Tensor& input, const Tensor& weight,
                           const std::optional<Tensor>& bias) {
  LayerExchange& ranks = shards_.ranks();
  if (layer.split == TensorSplit::row) {
    const Tensor sum = sum_of_outputs(layer, at::linear(input_of_row(layer, input), weight));
    if (!bias) return sum;
    const auto* divided = values_.find(sum);
    Tensor output = sum + (divided ? for_parts(*bias, ranks) : *bias).to(sum.scalar_type());
    if (divided) values_.add(output, DividedValues::Value(*divided));
    return output;
  }
  Tensor output = at::linear(input_of_column(layer, input), weight, bias);
  if (layer.split == TensorSplit::gathered_column) return whole_of_parts(output, -1, layer.sizes[0], ranks);
  Division division = own_division(layer);
  division.dim = output.dim() - 1;
  values_.add(output,
              {.parts = layer.split == TensorSplit::vocabulary ? ValueParts::vocabulary : ValueParts::features,
               .layer = layer.layer},
              std::move(division));
  return output;
}

Tensor TensorCalls::embedding(const DividedParameter& layer, const Tensor& weight, const Tensor& index,
                              int64_t padding) {
  const int64_t rows = layer.sizes[0];
  const OwnRange own = own_range(rows, shards_.rank(), shards_.size());
  if (index.is_cpu() && index.numel() > 0)
    TORCH_CHECK_INDEX(index.min().item<int64_t>() >= 0 && index.max().item<int64_t>() < rows,
                      "index out of range in self");
  const Tensor here = index.ge(own.begin).logical_and(index.lt(own.begin + own.count));
  const Tensor own_index = (index - own.begin).masked_fill(here.logical_not(), 0);
  const bool has_padding = padding >= own.begin && padding < own.begin + own.count;
  const Tensor found = at::embedding(weight, own_index, has_padding ? padding - own.begin : -1);
  return sum_of_outputs(layer, found.masked_fill(here.logical_not().unsqueeze(-1), 0));
}

void TensorCalls::cross_entropy(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                                const DividedValues::Value& logits) const {
  const auto arguments = arguments_of(op, *stack);
  const Tensor values = arguments[0].toTensor(), targets = arguments[1].toTensor();
  const std::string layer =
      cat("[strategies.mesh] '", escape_controls(logits.layer), "' divides logits by vocabulary; ");
  const char* const advice = " Divide it by gathered_column, and the ranks have all logits.";
  if (!values_.find(values) || values.dim() != 2 || targets.dim() != 1 || targets.scalar_type() != at::kLong)
    throw Error(cat(layer, "a cross entropy of them needs logits (N, classes) and targets (N) int64; got ",
                    shape_text(values.sizes()), " and ", shape_text(targets.sizes()), ".", advice));
  if ((arguments[2].isTensor() && arguments[2].toTensor().defined()) || arguments[5].toDouble() != 0)
    throw Error(cat(layer, "a cross entropy of them has neither weights of classes nor label smoothing.", advice));
  const DividedParameter* weight = nullptr;
  for (const DividedParameter& each : shards_.parameters())
    if (each.is_weight && each.layer == logits.layer) weight = &each;
  const int64_t classes = weight->sizes[0];
  const Tensor loss = cross_entropy_of_parts(
      values, targets, {.begin = own_range(classes, shards_.rank(), shards_.size()).begin, .classes = classes},
      arguments[3].toInt(), arguments[4].toInt(), shards_.ranks());
  // Autocast does not know the device of plans.
  const bool is_autocast = values.is_meta() || at::autocast::is_autocast_enabled(values.device().type());
  give_layer_result(op, stack, is_autocast ? loss : loss.to(values.scalar_type()));
}

bool TensorCalls::call_layer(const c10::OperatorHandle& op, const DividedReads& read, torch::jit::Stack* stack) {
  const DividedParameter& layer = *read.parameter;
  const auto arguments = arguments_of(op, *stack);
  const auto tensor = [&](size_t i) { return arguments[i].toTensor(); };
  // Without autograd, this may be inside a torch::autograd::Function, whose backward knows no other ranks.
  const bool is_plain_call = layer.is_weight && !read.is_second && at::GradMode::is_enabled();
  if (is_plain_call && is_one_of(op, {"aten::linear"}) && read.at == 1) {
    const bool has_bias = arguments[2].isTensor() && tensor(2).defined();
    const auto bias = has_bias ? std::optional(tensor(2)) : std::nullopt;
    give_layer_result(op, stack, linear(layer, tensor(0), tensor(1), bias));
    return true;
  }
  // LibTorch's own layer.
  if (is_plain_call && is_one_of(op, {"aten::matmul", "aten::mm"}) && read.at == 1 && is_transposed(tensor(1), layer)) {
    give_layer_result(op, stack, linear(layer, tensor(0), tensor(1).t(), std::nullopt));
    return true;
  }
  if (is_plain_call && is_one_of(op, {"aten::addmm"}) && read.at == 2 && is_transposed(tensor(2), layer) &&
      arguments[3].toScalar().equal(1) && arguments[4].toScalar().equal(1)) {
    give_layer_result(op, stack, linear(layer, tensor(1), tensor(2).t(), tensor(0)));
    return true;
  }
  if (is_plain_call && is_one_of(op, {"aten::embedding"}) && layer.split == TensorSplit::vocabulary && read.at == 0 &&
      !arguments[3].toBool() && !arguments[4].toBool()) {
    give_layer_result(op, stack, embedding(layer, tensor(0), tensor(1), arguments[2].toInt()));
    return true;
  }
  if (layer.is_weight && is_one_of(op, {"aten::t", "aten::transpose", "aten::numpy_T"})) return false;
  if (!layer.is_weight && read.value && is_one_of(op, {"aten::add", "aten::add_"})) return false;
  // All ranks have the outputs of such a layer.
  if (!layer.is_weight && layer.split == TensorSplit::gathered_column && read.at == 1 &&
      is_one_of(op, {"aten::add", "aten::add_"})) {
    (*stack)[stack->size() - arguments.size() + 1] = whole_of_parts(tensor(1), -1, layer.sizes[0], shards_.ranks());
    return false;
  }
  throw Error(cat("[strategies.mesh] ", op.schema().name(), " reads '", escape_controls(layer.name),
                  "', of which each rank has a part (tensor_plan: ", enum_text(layer.split),
                  "), and the ranks cannot compute this together: they know linear layers, and embeddings divided by "
                  "vocabulary, outside of functions with a backward of their own and of NoGradGuard. Add '",
                  escape_controls(layer.layer), ": whole' to tensor_plan."));
}

}  // namespace fulgur::detail
