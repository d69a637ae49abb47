// Operations along the outputs of which each rank has a part.
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tensor/call_arguments.h"
#include "tensor/tensor_calls.h"

namespace fulgur::detail {
namespace {

enum class Along {
  takes,   // a part of a dimension: right for the parts that a rule names
  mixes,   // computes with all of a dimension
  always,  // the same, with the last dimension
};

const std::unordered_map<std::string, Along>& operations_along() {
  static const std::unordered_map<std::string, Along> all = [] {
    std::unordered_map<std::string, Along> kinds{
        {"aten::layer_norm", Along::always},         {"aten::rms_norm", Along::always},
        {"aten::cross_entropy_loss", Along::always}, {"aten::nll_loss", Along::always},
        {"aten::nll_loss_nd", Along::always},        {"aten::glu", Along::mixes}};
    for (const char* name :
         {"chunk", "unsafe_chunk", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes",
          "tensor_split", "narrow", "slice", "select", "unbind", "index_select"})
      kinds.emplace(cat("aten::", name), Along::takes);
    for (const char* name : {"softmax",
                             "log_softmax",
                             "sum",
                             "mean",
                             "amax",
                             "amin",
                             "max",
                             "min",
                             "argmax",
                             "argmin",
                             "prod",
                             "median",
                             "norm",
                             "linalg_vector_norm",
                             "var",
                             "std",
                             "var_mean",
                             "std_mean",
                             "cumsum",
                             "cumprod",
                             "logsumexp",
                             "sort",
                             "argsort",
                             "topk",
                             "flip",
                             "roll",
                             "cat",
                             "concat",
                             "concatenate",
                             "gather",
                             "cosine_similarity"})
      kinds.emplace(cat("aten::", name), Along::mixes);
    return kinds;
  }();
  return all;
}

// The argument that is the weight of a linear layer, after its input; 0: it is no linear layer.
size_t whole_weight(const c10::OperatorHandle& op) {
  if (is_one_of(op, {"aten::linear", "aten::matmul", "aten::mm"})) return 1;
  return is_one_of(op, {"aten::addmm"}) ? 2 : 0;
}

// Whether the argument `dim`, or `dims`, names the last of `count` dimensions; a reduction of all does not.
bool is_along_last(const c10::OperatorHandle& op, const torch::jit::Stack& stack, int64_t count) {
  const auto& schema = op.schema().arguments();
  const auto arguments = arguments_of(op, stack);
  const auto is_last = [&](int64_t dim) { return dim == -1 || dim == count - 1; };
  for (size_t i = 0; i < schema.size(); ++i) {
    if (schema[i].name() != "dim" && schema[i].name() != "dims") continue;
    if (arguments[i].isInt()) return is_last(arguments[i].toInt());
    if (arguments[i].isIntList()) return std::ranges::any_of(arguments[i].toIntVector(), is_last);
  }
  return false;
}

}  // namespace

bool mixes_dimensions(const c10::OperatorHandle& op) {
  return is_one_of(op, {"aten::view",      "aten::reshape",   "aten::_unsafe_view",
                        "aten::unflatten", "aten::transpose", "aten::permute",
                        "aten::movedim",   "aten::moveaxis",  "aten::swapaxes",
                        "aten::swapdims",  "aten::t",         "aten::numpy_T",
                        "aten::mT",        "aten::unfold",    "aten::matmul",
                        "aten::mm",        "aten::bmm",       "aten::baddbmm",
                        "aten::addmm",     "aten::einsum",    "aten::scaled_dot_product_attention"});
}

void TensorCalls::check_width(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  const auto arguments = arguments_of(op, stack);
  // The first one, which the others follow.
  const DividedValues::Value* value = nullptr;
  int64_t dims = 0, divided = 0;
  for (const c10::IValue& argument : arguments)
    each_tensor_of(argument, [&](const Tensor& tensor) {
      const DividedValues::Value* const found = values_.find(tensor);
      if (!found) return;
      ++divided;
      if (value || !DividedValues::has_width(tensor, *found)) return;
      value = found;
      dims = tensor.dim();
    });
  if (!value) return;
  const std::string& name = op.schema().name();
  const auto along = operations_along().find(name);
  bool is_wrong = false;
  if (along != operations_along().end()) {
    const bool is_last = along->second == Along::always || is_along_last(op, stack, dims);
    is_wrong = is_last && !(along->second == Along::takes && value->is_fused);
  }
  // A sum of products over the outputs.
  if (divided > 1 && is_one_of(op, {"aten::matmul", "aten::mm", "aten::bmm", "aten::dot"}))
    is_wrong = arguments[0].isTensor() && values_.find(arguments[0].toTensor()) == value;
  if (const size_t weight = whole_weight(op); weight > 0 && arguments[weight].isTensor()) {
    const Tensor input = arguments[weight - 1].toTensor(), other = arguments[weight].toTensor();
    if (values_.find(input) == value && !values_.find(other) && !shards_.with_memory(other))
      throw Error(cat("[strategies.mesh] ", name, " multiplies the outputs of '", escape_controls(value->layer),
                      "', of which each rank has a part (tensor_plan: column), by a weight that all ranks have. Divide "
                      "the layer with this weight by row, or '",
                      escape_controls(value->layer), "' by gathered_column."));
  }
  if (!is_wrong) return;
  throw Error(cat("[strategies.mesh] ", name, " works along the outputs of '", escape_controls(value->layer),
                  "', of which each rank has a part (tensor_plan: column), so its result would not be that of one "
                  "process. ",
                  along != operations_along().end() && along->second == Along::takes
                      ? "If they are several things, such as queries, keys and values, name them as parts in the "
                        "class's tensor_plan(); or divide the layer by gathered_column."
                      : "Divide the layer by gathered_column, and each rank has all outputs."));
}

}  // namespace fulgur::detail
