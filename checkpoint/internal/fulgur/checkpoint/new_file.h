#pragma once

#include <filesystem>
#include <string>
#include <string_view>

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

/// Replaces `path` by a file with this text: a reader finds the old or the new one, also after a power failure. Several
/// processes, also of several machines, may do it at the same time; one of them wins. Throws a CheckpointError.
FULGUR_API void write_durably(const std::filesystem::path& path, std::string_view text);

/// A name next to `path` that no other process, of this machine or another one, uses.
FULGUR_API std::filesystem::path unused_sibling(const std::filesystem::path& path);

}  // namespace fulgur::detail
