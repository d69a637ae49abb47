#pragma once

#include <functional>
#include <optional>

#include "fulgur/core/state/batch.h"
#include "fulgur/core/state/outputs.h"

namespace fulgur::detail {

/// Another way than calling the module to compute the steps of an evaluation, such as captured ones.
class EvaluationSteps {
 public:
  /// Computes the step of a batch eagerly.
  using Body = std::function<Outputs(const Batch& batch)>;
  EvaluationSteps() = default;
  virtual ~EvaluationSteps() = default;
  EvaluationSteps(const EvaluationSteps&) = delete;
  EvaluationSteps& operator=(const EvaluationSteps&) = delete;

  /// Called before the first batch of a pass over the loaders, and after its last.
  virtual void begin_pass() = 0;
  virtual void end_pass() = 0;
  /// Called before the first batch of each loader. `limit`: how many batches of it are read at most, if that is known;
  /// `is_exact`: it has so many.
  virtual void begin_loader(std::optional<int64_t> limit, bool is_exact) = 0;
  /// The step's outputs, in their own memory; nullopt if it must run eagerly. `left`: how many batches of the loader
  /// follow, if that is known.
  virtual std::optional<Outputs> step(const Batch& batch, std::optional<int64_t> left, const Body& body) = 0;
};

}  // namespace fulgur::detail
