#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fulgur::cli {

/// The options of `plan`.
struct PlanArguments {
  std::string nodes = "1";
  std::optional<int64_t> devices;
  std::string profile = "h100";
  std::vector<std::string> inputs;
  std::optional<int64_t> batch_size;  ///< of one rank; that of the config's data if not given
};

}  // namespace fulgur::cli
