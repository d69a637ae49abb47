#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/strategies/fsdp.h"
#include "fulgur/trainer/config.h"
#include "planning/meta_mode.h"

namespace fulgur::cli {

/// Parameters that a strategy exchanges together: a module of a `ModuleList`, or the rest.
struct PlannedUnit {
  std::string name;  ///< empty: the rest
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
};

/// What does not depend on the batch.
struct ModelSize {
  int64_t parameters = 0, trainable = 0;
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;  ///< of all trainable parameters
  int64_t master_bytes = 0;    ///< float32 copies of weights
  int64_t state_bytes = 0;     ///< of the optimizer
  int64_t buffer_bytes = 0;
  std::string optimizer;
  bool is_elementwise = false;  ///< whether the optimizer's states can be divided
  std::vector<PlannedUnit> units;
};

/// A step of one rank with a batch of `batch_size`, without the optimizer's part.
struct StepSize {
  int64_t batch_size = 0;
  int64_t tokens = 0;  ///< 0: the model counts none
  int64_t batch_bytes = 0;
  /// The most bytes of forward and backward, with temporary tensors, without gradients and the batch.
  int64_t activation_bytes = 0;
  int64_t backward_bytes = 0;        ///< the same with gradients, if there are none before backward
  int64_t bytes_with_optimizer = 0;  ///< `activation_bytes`, or those of the optimizers' step if they are more
  int64_t peak_bytes = 0;            ///< `backward_bytes`, or those of that step
  int64_t block_bytes = 0;           ///< that LibTorch's allocator adds, since blocks are larger than their tensors
  std::vector<Operation> operations;
};

/// The options of fsdp; nullptr if the config's strategy is another one.
const FSDPStrategy::Options* fsdp_of(const Config& config);

/// The model of a config on the device `meta`: it takes no memory, and needs no GPU.
class TracedModel {
 public:
  /// Creates the model. `inputs` are shapes of one sample, as `2048:int64`, one for each entry of a batch; if there are
  /// none, a batch is read from the config's data. Throws a ConfigError for a config that the plan does not cover.
  TracedModel(const Config& config, const std::vector<std::string>& inputs, std::optional<int64_t> batch_size = {});
  ~TracedModel();
  TracedModel(const TracedModel&) = delete;
  TracedModel& operator=(const TracedModel&) = delete;

  const ModelSize& size() const;
  /// The batch size of the config.
  int64_t batch_size() const;
  /// Traces a step.
  StepSize step(int64_t batch_size);

  /// For traces of a part of a step. They leave parameters without gradients, and `mode` outside of backward and
  /// autocast.
  LightningModule& module();
  MetaMode& mode();
  /// A batch of so many samples, as `training_step` gets it.
  Batch batch(int64_t samples);
  /// The format in which a step's operations compute; nullopt: that of their arguments.
  std::optional<at::ScalarType> autocast() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur::cli
