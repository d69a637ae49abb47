#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

namespace fulgur::detail {

/// The end of an error about a path that does not exist, if it may be a name of Hugging Face's hub, such as
/// `openai/gpt2` or `bert-base-uncased`; otherwise empty.
inline std::string hub_name_hint(const std::filesystem::path& path) {
  const std::string name = path.string();
  if (name.empty() || path.is_absolute() || name.starts_with('.') || name.ends_with('/')) return {};
  if (std::count(name.begin(), name.end(), '/') > 1) return {};
  constexpr std::string_view kFiles[] = {".safetensors", ".pt", ".pth", ".bin", ".json", ".txt", ".ckpt", ".model"};
  for (const std::string_view end : kFiles)
    if (name.ends_with(end)) return {};
  return " Names of Hugging Face's hub are not downloaded: save it in Python (save_pretrained) and name that folder.";
}

}  // namespace fulgur::detail
