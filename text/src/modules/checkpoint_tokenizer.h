#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// Which tokenizer a data module has and which one its checkpoint names, by their fingerprints: they must be the same.
/// Each function that throws changes nothing.
class CheckpointTokenizer {
 public:
  /// `module` begins the messages: `text.PromptsDataModule`.
  explicit CheckpointTokenizer(std::string_view module) : module_(module) {}
  /// The module's tokenizer, read from `where`. Throws a CheckpointError if the checkpoint names another one.
  void set_own(std::string fingerprint, const std::filesystem::path& where);
  /// That of a checkpoint. Throws a CheckpointError if the module has another one.
  void load(std::string fingerprint);
  /// The module's, or else that of the checkpoint; empty if there is none.
  const std::string& fingerprint() const { return own_.empty() ? loaded_ : own_; }

 private:
  void check(const std::string& own, const std::filesystem::path& where, const std::string& loaded) const;
  std::string module_, own_, loaded_;
  std::filesystem::path where_;
};

}  // namespace fulgur::detail
