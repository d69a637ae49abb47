#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "io/manifest.h"

namespace fulgur::detail {

/// A checkpoint folder whose files are read only as far as they agree with its manifest. What does not is collected.
class CheckedFolder {
 public:
  /// Reads the manifest. Throws a CheckpointError where `folder` is none of a checkpoint or the manifest is damaged.
  explicit CheckedFolder(const std::filesystem::path& folder);

  const Manifest& manifest() const { return manifest_; }
  const std::vector<CheckpointProblem>& problems() const { return problems_; }

  /// Files that are missing, too many, or of another size than the manifest says.
  void check_names_and_sizes();
  /// Reads the whole of `file` and compares each part; keeps nothing.
  void check_contents(const std::string& file);
  /// The same, and returns what was read. Meaningless where problems() is not empty afterwards.
  std::string read_text(const std::string& file);
  SafetensorsFile read_tensors(const std::string& file);

 private:
  void add_problem(std::string file, std::string part, std::string message);
  class PartReader;
  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<CheckpointProblem> problems_;
};

/// `problems`, one a line with two spaces before it, the first 20 of them.
std::string text_of(const std::vector<CheckpointProblem>& problems);

}  // namespace fulgur::detail
