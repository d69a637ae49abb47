#pragma once

#include <string>
#include <vector>

namespace fulgur::cli {

/// The first argument with which the scripts ask the program for candidates; it is not a verb that help shows.
inline constexpr const char* kAskCandidates = "__complete";

/// The script of `completion SHELL`, for `bash`, `zsh` or `fish`. It asks the program itself for candidates.
std::string completion_script(const std::string& shell);

/// The answer to `__complete SHELL WORD…`, of which `arguments` are the words after `__complete`: one candidate per
/// line, followed by a tab and its meaning if it has one; then `:files`, `:folders` and `:continues`, if they hold
/// (Candidates). Never throws: an argument that cannot be read has no candidates.
std::string candidates_text(const std::vector<std::string>& arguments) noexcept;

}  // namespace fulgur::cli
