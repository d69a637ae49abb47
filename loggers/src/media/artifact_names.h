#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace fulgur {

/// The names under which a logger stores artifacts: those of the files and folders themselves. If another file of the
/// same name was stored before, `-v1` is appended, as for checkpoints; the same file keeps its name.
class ArtifactNames {
 public:
  std::string name_of(const std::filesystem::path& artifact);

 private:
  std::map<std::string, std::filesystem::path> sources_;  ///< by name
};

}  // namespace fulgur
