#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/options/options.h"

namespace fulgur {

/// Low-rank adapters of linear layers (`adapters:` in the config; LoRA, Hu et al. 2021). The Trainer adds them to the
/// module before its strategy gets it, and freezes all other parameters.
struct FULGUR_API Adapters {
  std::vector<std::string> target;  ///< patterns of layers, by their names in the module
  int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> train;  ///< patterns of other parameters that are trained
  /// Adapters that the run begins with, unless it begins with a checkpoint that has some. Every rank reads them.
  std::optional<std::filesystem::path> path;

  void fields(Fields& f);
};

}  // namespace fulgur
