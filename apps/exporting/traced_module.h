#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

#include "fulgur/core/contracts/module.h"

namespace fulgur::cli {

/// What a TorchScript file of a module computes: the logits of a Classifier, of others what `predict_step` returns, as
/// a tensor or as a Dict[str, Tensor].
c10::IValue exported_outputs(LightningModule& module, const Batch& batch);

/// A module as a TorchScript program.
struct TracedModule {
  torch::jit::Module script;
  std::vector<std::string> inputs;  ///< entries of the batch that `forward` takes, in its order
  bool any_batch_size = false;      ///< false: only that of the batch
  /// The only length of texts or series (dimension 1) that the program takes, if the module takes others; 0: no limit.
  int64_t only_length = 0;
};

/// Records what the module, in eval mode, computes from `batch`; parameters and buffers keep their names. Numbers that
/// follow the number of samples, or the length of texts and series, are found by further recordings, and become a
/// function of the inputs' sizes. The result was compared with the module, on other samples and, if possible, other
/// numbers and lengths of them. Throws a ConfigError if the
/// outputs differ or cannot be recorded.
TracedModule trace_module(LightningModule& module, const Batch& batch);

/// Throws a ConfigError if `script` computes something else from the batch than the module.
void check_script(torch::jit::Module& script, const std::vector<std::string>& inputs, LightningModule& module,
                  const Batch& batch);

/// `count` samples of a batch from number `first` on, from the beginning again after the last one; copies.
Batch samples_of(const Batch& batch, int64_t first, int64_t count);

}  // namespace fulgur::cli
