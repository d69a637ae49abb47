#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/safetensors_header.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "io/manifest.h"

namespace fulgur::detail {

/// A checkpoint folder whose files are read only as far as they match its manifest. Differences are collected.
class CheckedFolder {
 public:
  /// Reads the manifest. Throws a CheckpointError if `folder` is not a checkpoint or the manifest is damaged.
  explicit CheckedFolder(const std::filesystem::path& folder);
  /// A folder whose manifest is not written yet.
  CheckedFolder(std::filesystem::path folder, Manifest manifest)
      : folder_(std::move(folder)), manifest_(std::move(manifest)) {}

  const Manifest& manifest() const { return manifest_; }
  const std::vector<CheckpointProblem>& problems() const { return problems_; }

  /// Finds files that are missing, superfluous, or of another size than in the manifest.
  void check_names_and_sizes();
  /// Reads the whole of `file` and compares each part; keeps nothing.
  void check_contents(const std::string& file);
  /// The same, and returns what was read. Invalid if problems() is not empty afterwards.
  std::string read_text(const std::string& file);
  SafetensorsFile read_tensors(const std::string& file);
  /// The divided tensors that `whole_file` does not have, put together from the files that have their pieces.
  NamedTensors read_divided(const std::string& whole_file);

 private:
  void add_problem(std::string file, std::string part, std::string message);
  class PartReader;
  /// Reads a safetensors file, and returns its metadata. `place` says where the values of a tensor go; with nullptr
  /// they are only compared.
  std::map<std::string, std::string> read_entries(const std::string& file,
                                                  const std::function<void*(const SafetensorsEntry&)>& place);
  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<CheckpointProblem> problems_;
};

/// Tied parameter → name it is stored under, from the metadata of the file with the weights.
std::map<std::string, std::string> aliases_in(const std::map<std::string, std::string>& metadata);

/// `problems`, one per line, indented by two spaces, the first 20 of them.
std::string text_of(const std::vector<CheckpointProblem>& problems);

}  // namespace fulgur::detail
