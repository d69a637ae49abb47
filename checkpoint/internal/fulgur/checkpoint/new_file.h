#pragma once

#include <filesystem>
#include <string>

#include "fulgur/core/export.h"

namespace fulgur::detail {

/// A file that has a hidden name until it is complete: `publish` renames it. The destructor removes it, unless `keep`
/// was called after that.
class FULGUR_API NewFile {
 public:
  /// Removes what a killed process may have left under the hidden name. `function` is the place in error messages, such
  /// as `trainer.predict`.
  NewFile(const std::filesystem::path& folder, const std::string& name, std::string function);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Where to write it.
  const std::filesystem::path& hidden() const { return hidden_; }
  /// Throws a CheckpointError if the file cannot be renamed.
  void publish();
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_, hidden_;
  std::string function_;
  bool published_ = false, kept_ = false;
};

}  // namespace fulgur::detail
