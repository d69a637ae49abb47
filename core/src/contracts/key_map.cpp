#include "fulgur/core/contracts/key_map.h"

#include "fulgur/core/text/text.h"

namespace fulgur {

KeyMap::~KeyMap() = default;

std::optional<std::string> renamed_by(const KeyRule& rule, std::string_view name) {
  const std::vector<std::string> parts = split_text(name, '.'), wanted = split_text(rule.from, '.');
  const bool takes_rest = wanted.back() == "**";
  const size_t fixed = wanted.size() - (takes_rest ? 1 : 0);
  if (takes_rest ? parts.size() <= fixed : parts.size() != fixed) return std::nullopt;
  std::vector<std::string> found;
  for (size_t i = 0; i < fixed; ++i) {
    if (wanted[i] == "*")
      found.push_back(parts[i]);
    else if (wanted[i] != parts[i])
      return std::nullopt;
  }
  if (takes_rest) found.push_back(join({parts.begin() + static_cast<std::ptrdiff_t>(fixed), parts.end()}, "."));
  // A placeholder may stand inside a part of the new name: `encoder_layer_*`.
  std::string renamed;
  size_t next = 0;
  for (size_t i = 0; i < rule.to.size(); ++i) {
    if (rule.to[i] != '*') {
      renamed += rule.to[i];
      continue;
    }
    if (next < found.size()) renamed += found[next++];
    if (rule.to.compare(i, 2, "**") == 0) ++i;
  }
  return renamed;
}

}  // namespace fulgur
