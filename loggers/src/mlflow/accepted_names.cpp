#include "mlflow/accepted_names.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "files/tf_record.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "mlflow/mlflow_client.h"

namespace fulgur::mlflow {
namespace {

std::string with_checksum(const std::string& accepted, std::string_view original) {
  char sum[10];
  std::snprintf(sum, sizeof sum, "_%08x", static_cast<unsigned>(crc32c(original)));
  return accepted.substr(0, std::min(accepted.size(), kLongestName - 9)) + sum;
}

}  // namespace

const std::string& AcceptedNames::of(std::string_view name) {
  if (const auto known = accepted_.find(name); known != accepted_.end()) return known->second;
  std::string accepted = accepted_name(name);
  const auto [owner, is_new] = originals_.try_emplace(accepted, name);
  if (!is_new) {
    const std::string changed = with_checksum(accepted, name);
    log::warn("logger.mlflow_name",
              cat("[loggers.MLflowLogger] names must differ in the characters that MLflow accepts; '",
                  escape_controls(owner->second), "' and '", escape_controls(name), "' would both be '", accepted,
                  "', so the second becomes '", changed, "'. Rename one of them."));
    originals_.try_emplace(changed, name);
    accepted = changed;
  }
  return accepted_.try_emplace(std::string(name), std::move(accepted)).first->second;
}

}  // namespace fulgur::mlflow
