#include "setup/setup_steps.h"

#include <torch/nn/modules/rnn.h>

#include <string>
#include <vector>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

template <class Layer>
bool drops_between_layers(const torch::nn::Module& part) {
  const auto* const layer = dynamic_cast<const Layer*>(&part);
  return layer && layer->options_base.num_layers() > 1 && layer->options_base.dropout() > 0;
}

}  // namespace

void warn_of_recurrent_dropout(const RunState& run) {
  if (!run.strategy->device().is_cuda()) return;
  std::vector<std::string> names;
  for (const auto& item : run.model->named_modules("", /*include_self=*/false)) {
    const torch::nn::Module& part = *item.value();
    if (drops_between_layers<torch::nn::GRUImpl>(part) || drops_between_layers<torch::nn::LSTMImpl>(part) ||
        drops_between_layers<torch::nn::RNNImpl>(part))
      names.push_back(item.key());
  }
  if (!names.empty())
    log::warn("trainer.recurrent_dropout",
              cat("dropout between the layers of ", join(names),
                  " is drawn by cuDNN from a state that no checkpoint holds: a resumed or captured run draws different "
                  "masks. Recurrent modules of one layer each with a Dropout between them are exact"));
}

}  // namespace fulgur::detail
