#pragma once

#include <map>
#include <string>
#include <string_view>

namespace fulgur::mlflow {

/// Names as MLflow accepts them (`accepted_name`), each for one original name: if another original already has a name,
/// an underscore and the CRC-32C of the original are appended, with a warning.
class AcceptedNames {
 public:
  const std::string& of(std::string_view name);

 private:
  std::map<std::string, std::string, std::less<>> accepted_;  ///< by original name
  std::map<std::string, std::string> originals_;              ///< by accepted name
};

}  // namespace fulgur::mlflow
