#include "sweep/environment_values.h"

#include <cstdlib>
#include <string_view>

#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace {

// Not the value, which may be a secret.
std::string hash_of_value(std::string_view value) {
  uint64_t hash = value.size();
  for (const char byte : value) hash = mix_bits(hash + static_cast<unsigned char>(byte) + 0x9e3779b97f4a7c15u);
  return cat(hash);
}

void collect_references(const std::string& text, std::map<std::string, std::string>& found) {
  constexpr std::string_view kLiteral = "$${", kBegin = "${env:";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, kLiteral.size(), kLiteral) == 0) {
      i += kLiteral.size() - 1;
      continue;
    }
    if (text.compare(i, kBegin.size(), kBegin) != 0) continue;
    const size_t begin = i + kBegin.size(), end = text.find('}', begin);
    if (end == std::string::npos) return;
    const std::string name = text.substr(begin, end - begin);
    if (const char* const value = std::getenv(name.c_str())) found[name] = hash_of_value(value);
  }
}

void collect_references(const ConfigNode& node, const std::string& path, std::map<std::string, std::string>& found) {
  if (path == "trainer.logger" || path == "trainer.default_root_dir") return;
  if (node.is_scalar()) collect_references(node.text(), found);
  for (const ConfigNode& item : node.items()) collect_references(item, path, found);
  for (const auto& [key, value] : node.entries())
    collect_references(value, path.empty() ? key : path + "." + key, found);
}

}  // namespace

std::map<std::string, std::string> environment_values(const ConfigNode& node) {
  std::map<std::string, std::string> found;
  collect_references(node, "", found);
  return found;
}

}  // namespace fulgur::cli
