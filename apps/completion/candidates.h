#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fulgur::cli {

/// What may stand in the place of the word that is being written.
struct Candidates {
  std::vector<std::pair<std::string, std::string>> words;  ///< with what they mean, which may be empty
  bool files = false;                                      ///< names of files, too, which the shell completes
  bool folders = false;                                    ///< names of folders
  bool continues = false;                                  ///< the word is not complete: no space follows it
};

/// Candidates for the last of `words`, the arguments of the program so far; `words` is not empty. Reads the config
/// files that the arguments name. Unknown or incomplete arguments give fewer candidates, and no error.
Candidates find_candidates(const std::vector<std::string>& words);

}  // namespace fulgur::cli
