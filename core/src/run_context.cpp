#include "fulgur/core/run_context.h"

namespace fulgur {

RunContext::~RunContext() = default;

void RunContext::log_dict(const std::vector<std::pair<std::string, Tensor>>& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

void RunContext::log_dict(const Metrics& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

}  // namespace fulgur
