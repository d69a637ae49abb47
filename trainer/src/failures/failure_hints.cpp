#include "failures/failure_hints.h"

#include <array>

namespace fulgur::detail {
namespace {

struct Hint {
  std::string_view mark;  // in LibTorch's text
  const char* text;
};

constexpr const char* kDtypes =
    "two inputs have different dtypes. Labels of cross entropy are int64 (save those of a file so), and inputs have "
    "the module's dtype (trainer.precision); in a module or data set of your own, convert doubles with "
    "to(torch::kFloat). Images of bytes (Byte) become floating-point by the transform ToFloat or Normalize";

constexpr std::array kHints{
    Hint{"on the same device",
         "a tensor is not on the device of the run. A layer, parameter or buffer that is not registered stays on the "
         "CPU: register_module, register_parameter, register_buffer. Create tensors in a step on the device of "
         "another, with x.options() or device()"},
    Hint{"shapes cannot be multiplied",
         "a linear layer got a different number of features than its in_features: see the batch's shapes above. Should "
         "the input be flattened, or in_features changed?"},
    Hint{"Expected a proper Tensor but got None",
         "a tensor is undefined. Gradients are, before the first backward, and with fsdp or mesh.shard once they are "
         "exchanged: optimizer.gradients() has this rank's parts, and fulgur::grad_norm(optimizer) the norm of all"},
    Hint{"size mismatch", "the shapes of two inputs do not fit: see the batch's shapes above"},
    Hint{"is out of bounds",
         "an index or a label is not below the number of classes or rows. Labels count from 0. Does "
         "the last layer have one output per class?"},
    Hint{"index out of range",
         "an index is not below the number of rows, such as a token id beyond the embedding's size"},
    Hint{"expected scalar type", kDtypes},
    Hint{"must have the same dtype", kDtypes},
    Hint{"to have the same dtype", kDtypes},
    Hint{"target with class probabilities",
         "cross entropy takes labels of int64 as [samples], or probabilities of the input's dtype and shape"},
    Hint{"multi-target not supported",
         "the labels have one dimension too many: cross entropy takes [samples], such as labels.flatten() or "
         "labels.squeeze(1)"},
    Hint{"to match target batch_size", "input and labels have different numbers of samples"},
    Hint{"more than 1 value per channel when training",
         "batch norm needs at least two samples to train: set drop_last: true, or a batch size that does not leave a "
         "single sample over"},
    Hint{
        "Trying to backward through the graph a second time",
        "backward() runs twice over one graph. With automatic optimization the Trainer calls it: training_step returns "
        "the loss, and calls no backward(). Or a tensor of an earlier step is still in the graph: keep it with "
        "detach()"},
};

}  // namespace

std::optional<std::string> hint_for(std::string_view error) {
  for (const Hint& hint : kHints)
    if (error.find(hint.mark) != error.npos) return hint.text;
  return std::nullopt;
}

}  // namespace fulgur::detail
