#include "completion/completion_verb.h"

#include <algorithm>
#include <exception>

#include "completion/candidates.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

// bash counts `=` as a word. NAME is the program, FUNCTION the name of a shell function.
constexpr const char* kBash = R"(# Completion of NAME in bash: source <(NAME completion bash)
FUNCTION() {
  local line word=${COMP_WORDS[COMP_CWORD]}
  [[ $word == "=" ]] && word=
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :continues) compopt -o nospace 2>/dev/null ;;
      :files)
        compopt -o filenames 2>/dev/null
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word") ;;
      :folders)
        compopt -o filenames 2>/dev/null
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$word") ;;
      *) COMPREPLY+=("${line%%$'\t'*}") ;;
    esac
  done < <("${COMP_WORDS[0]}" __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F FUNCTION NAME
)";

constexpr const char* kZsh = R"(#compdef NAME
# Completion of NAME in zsh: source <(NAME completion zsh), after compinit
FUNCTION() {
  local line tab=$'\t'
  local -a values ends
  local files= folders=
  for line in "${(@f)$("${words[1]}" __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      '') ;;
      :continues) ends=(-S '') ;;
      :files) files=1 ;;
      :folders) folders=1 ;;
      *) line=${line//:/\\:}; values+=("${line/$tab/:}") ;;
    esac
  done
  (( ${#values} )) && _describe -t values value values "${(@)ends}"
  [[ -n $files$folders ]] && compset -P '--*='
  [[ -n $files ]] && _files
  [[ -n $folders ]] && _files -/
  return 0
}
compdef FUNCTION NAME
)";

constexpr const char* kFish = R"(# Completion of NAME in fish: NAME completion fish | source
function FUNCTION
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  for line in ($words[1] __complete fish $words[2..-1] "$current" 2>/dev/null)
    switch $line
      case ':files'
        __fish_complete_path (string replace -r '^--[^=]*=' '' -- "$current")
      case ':folders'
        __fish_complete_directories (string replace -r '^--[^=]*=' '' -- "$current")
      case ':*'
      case '*'
        printf '%s\n' $line
    end
  end
end
complete -c NAME -f -a '(FUNCTION)'
)";

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
  return text;
}

/// The words as the program gets them: bash counts `=` as a separate word.
std::vector<std::string> joined_at_equals(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  bool joins = false;
  for (const std::string& word : words) {
    if (joins || (word == "=" && !out.empty() && out.back().starts_with("--")))
      out.back() += word;
    else
      out.push_back(word);
    joins = word == "=" && out.back().starts_with("--");
  }
  return out;
}

std::string answer_to(const std::string& shell, std::vector<std::string> words) {
  const bool is_bash = shell == "bash";
  if (is_bash) words = joined_at_equals(words);
  if (words.empty()) words.emplace_back();
  const Candidates found = find_candidates(words);
  const size_t equals = words.back().starts_with("--") ? words.back().find('=') : std::string::npos;
  // It completes only what follows the `=`.
  const size_t skipped = is_bash && equals != std::string::npos ? equals + 1 : 0;
  std::string text;
  for (const auto& [word, doc] : found.words) {
    text += escape_controls(word.substr(std::min(skipped, word.size())));
    text += doc.empty() || is_bash ? std::string("\n") : cat("\t", escape_controls(doc), "\n");
  }
  if (found.files) text += ":files\n";
  if (found.folders) text += ":folders\n";
  if (found.continues) text += ":continues\n";
  return text;
}

}  // namespace

std::string completion_script(const std::string& shell) {
  const std::string& program = program_name();
  std::string function = "_" + program + "_completion";
  for (char& c : function) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!is_plain) c = '_';
  }
  const char* const script = shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish;
  return replaced(replaced(script, "FUNCTION", function), "NAME", shell_word(program));
}

std::string candidates_text(const std::vector<std::string>& arguments) noexcept {
  try {
    if (arguments.empty() || !std::ranges::all_of(arguments, [](const auto& word) { return is_utf8(word); })) return {};
    return answer_to(arguments.front(), {arguments.begin() + 1, arguments.end()});
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace fulgur::cli
