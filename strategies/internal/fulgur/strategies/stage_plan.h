#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/core/export.h"
#include "fulgur/strategies/pipeline_actions.h"

namespace fulgur::detail {

/// A parameter or buffer of the module, and the ranks of the pipeline whose stages read it; the first of them owns it:
/// it steps a parameter, and its value is that of the module.
struct StageTensor {
  std::string name;
  Tensor value;
  bool is_parameter = true;
  std::vector<int64_t> stages = {};  ///< in increasing order
  std::vector<int64_t> ranks = {};   ///< that of the first stage first, each once
  int64_t owner() const { return ranks.front(); }
};

/// Which layers of a chain a stage computes, and which ranks have which tensors.
struct StagePlan {
  std::vector<std::pair<size_t, size_t>> stages;  ///< first layer of each stage, and the one after its last
  std::vector<StageTensor> tensors;               ///< each once
};

/// Divides the chain into `shape.stages()` stages. `cuts` are the names of the layers with which the stages after the
/// first begin; nullopt: stages have numbers of parameters that are as equal as possible. Throws a ConfigError for a
/// module without a chain, a chain with fewer layers than stages, cuts that do not fit, and for names of modules that
/// the module does not have or parameters that no layer names.
FULGUR_API StagePlan plan_stages(const LightningModule& module, const LayerChain& chain,
                                 const std::optional<std::vector<std::string>>& cuts, const PipelineShape& shape);
/// All tensors of the module on one rank, without layers.
FULGUR_API StagePlan plan_one_stage(const LightningModule& module);

}  // namespace fulgur::detail
