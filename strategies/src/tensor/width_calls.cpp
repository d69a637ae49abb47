// Operations on values of which each rank has a part of a dimension: those that are known to be right on parts.
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tensor/call_arguments.h"
#include "tensor/tensor_calls.h"
#include "tensor/width_rules.h"

namespace fulgur::detail {
namespace {

std::string plain_name(const std::string& schema_name) {
  std::string name = schema_name.starts_with("aten::") ? schema_name.substr(6) : schema_name;
  if (name.ends_with('_') && !name.ends_with("__")) name.pop_back();
  return name;
}

// The argument that is the weight of a linear layer, after its input; 0: it is no linear layer.
size_t whole_weight(const c10::OperatorHandle& op) {
  if (is_one_of(op, {"aten::linear", "aten::matmul", "aten::mm"})) return 1;
  return is_one_of(op, {"aten::addmm"}) ? 2 : 0;
}

}  // namespace

void TensorCalls::refuse_width(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                               const DividedValues::Value& value) const {
  const std::string& name = op.schema().name();
  const std::string layer = escape_controls(value.layer);
  if (value.parts == ValueParts::vocabulary)
    throw Error(cat("[strategies.mesh] ", name, " reads logits that '", layer,
                    "' divides by vocabulary, so that each rank has a part of the classes; only cross_entropy_loss "
                    "can. Divide it by gathered_column, and the ranks have all logits."));
  const auto arguments = arguments_of(op, stack);
  if (const size_t weight = whole_weight(op);
      weight > 0 && weight < arguments.size() && arguments[weight].isTensor() && arguments[weight - 1].isTensor()) {
    const Tensor input = arguments[weight - 1].toTensor(), other = arguments[weight].toTensor();
    if (values_.find(input) && !values_.find(other) && !shards_.with_memory(other))
      throw Error(cat("[strategies.mesh] ", name, " multiplies the outputs of '", layer,
                      "', of which each rank has a part (tensor_plan: column), by a weight that all ranks have. Divide "
                      "the layer with this weight by row, or '",
                      layer, "' by gathered_column."));
  }
  throw Error(
      cat("[strategies.mesh] ", name, " works along the outputs of '", layer,
          "', of which each rank has a part (tensor_plan: column), or is not known to be right on parts. "
          "Divide the layer by gathered_column, and each rank has all outputs. If they are several things, such "
          "as queries, keys and values, name them as parts in the class's tensor_plan(); docs/mesh.md has the "
          "operations that are known."));
}

std::string TensorCalls::failure_on_parts(const c10::OperatorHandle& op, const DividedValues::Value& value,
                                          const std::string& reason) const {
  return cat("[strategies.mesh] ", op.schema().name(), " reads outputs of '", escape_controls(value.layer),
             "', of which each of ", shards_.size(), " ranks has a part (tensor_plan), and fails: ", reason,
             " Between this layer and the one divided by row, take sizes from the tensors, such as "
             "h.view({n, t, -1, head_size}), and not from the options of the module.");
}

WidthResult TensorCalls::width_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                  const DividedValues::Value& value) const {
  const auto arguments = arguments_of(op, stack);
  WidthCall call{.op = op, .arguments = arguments, .reads = {}, .name = plain_name(op.schema().name())};
  for (size_t i = 0; i < arguments.size(); ++i)
    each_tensor_of(arguments[i], [&](const Tensor& tensor) {
      WidthRead read{.argument = i, .tensor = tensor, .sizes = tensor.sizes().vec(), .division = std::nullopt};
      if (values_.find(tensor)) {
        const Division* const division = values_.division(tensor);
        if (!division) refuse_width(op, stack, value);
        read.division = *division;
      } else if (const auto* parameter = tensor.has_storage() ? shards_.with_memory(tensor) : nullptr) {
        // The bias of a layer, which is added to what the layer has returned.
        if (parameter->is_weight || tensor.dim() != 1 || parameter->split == TensorSplit::gathered_column)
          refuse_width(op, stack, value);
        read.division = own_division(*parameter);
      }
      call.reads.push_back(std::move(read));
    });
  // They read the form of a value, and not its elements.
  static const std::unordered_set<std::string> forms{"size",
                                                     "stride",
                                                     "dim",
                                                     "is_floating_point",
                                                     "is_complex",
                                                     "result_type",
                                                     "can_cast",
                                                     "numel",
                                                     "is_same_size",
                                                     "is_signed",
                                                     "record_stream",
                                                     "is_contiguous",
                                                     "sym_size",
                                                     "_version",
                                                     "is_leaf",
                                                     "output_nr",
                                                     "retain_grad",
                                                     "is_inference",
                                                     "_has_compatible_shallow_copy_type"};
  if (forms.contains(call.name)) return [](const Tensor&) { return std::optional<Division>(); };
  WidthResult rule = width_rule(call);
  if (!rule) refuse_width(op, stack, value);
  return rule;
}

Division TensorCalls::own_division(const DividedParameter& layer) const {
  Division division{.dim = 0, .parts = {}, .unit = layer.unit};
  if (layer.parts.size() > 1)
    for (const int64_t part : layer.parts) division.parts.push_back(part / shards_.size());
  return division;
}

}  // namespace fulgur::detail
