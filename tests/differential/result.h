#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "fulgur/core/state/tensor.h"

namespace fulgur::test {

/// The result of a fit, as DifferentialEvents (or a loop written by hand) has kept it.
struct Result {
  std::map<std::string, Tensor> tensors;  ///< `weights.first.bias`, `optimizers.0.state.first.bias.exp_avg`
  std::map<std::string, double> numbers;  ///< `metrics.val_loss`, `facts.global_step`
};

/// That of a rank; nullopt if the fit did not come to its end.
std::optional<Result> result_in(const std::filesystem::path& folder, int64_t rank = 0);

/// What differs by more than `tolerance`, relative to 1 + the value; nullopt if all agrees. 0: to the bit. Names that
/// begin with one of `without` do not count.
std::optional<std::string> difference(const Result& a, const Result& b, double tolerance = 0,
                                      const std::set<std::string>& without = {});

/// How often each sample was trained on over all processes of a run; see DifferentialEvents. By epochs of one batch
/// number: samples of the batches [from, to) of the run.
std::map<int64_t, int64_t> seen_in(const std::filesystem::path& folder);

/// The batches at which each process began and the samples that each of its ranks saw, as text.
std::string lives_in(const std::filesystem::path& folder);

}  // namespace fulgur::test
