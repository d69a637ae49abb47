#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "fulgur/core/contracts/callback.h"

namespace torch::nn {
class Module;
}

namespace fulgur {

/// Prints a table of the layers and their parameters when a fit begins, and notes about ineffective settings. A tied
/// weight counts once, in the first layer that has it. Deviation from Lightning: no FLOPs and no input and output
/// sizes, since LibTorch modules have no hooks to measure them.
class FULGUR_API ModelSummary final : public Callback {
 public:
  struct FULGUR_API Options {
    int64_t max_depth = 1;
    void fields(Fields& f);
  };
  explicit ModelSummary(Options options);
  void on_fit_start(RunContext& run) override;
  /// A line with the trainable parameters, if a callback such as Finetuning has changed them since.
  void on_train_start(RunContext& run) override;

 private:
  Options options_;
  std::set<std::string> trained_;  // names of parameters when the table was printed
};

/// The lines that `ModelSummary` prints. `max_depth` is the number of levels of layers that get a row: -1 shows all of
/// them, 0 only the totals.
FULGUR_API std::vector<std::string> summarize(const torch::nn::Module& module, int64_t max_depth);

}  // namespace fulgur
