#include "formats/shard_index.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kIndexEnd = ".index.json";
constexpr size_t kMostShards = 10'000;

[[noreturn]] void bad_index(const std::string& shown_path, const std::string& what) {
  throw CheckpointError(cat("[checkpoint.shards] ", shown_path, ": ", what, "."));
}

// A name that leads to another folder is never followed.
bool is_shard_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && !name.ends_with(".json");
}

}  // namespace

fs::path weights_file_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  constexpr std::array kNames = {"model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json",
                                 "pytorch_model.bin"};
  for (const char* name : kNames)
    if (fs::exists(path / name, error)) return path / name;
  throw CheckpointError(cat("[checkpoint.shards] the folder ", escape_controls(path.string()),
                            " has no weights: none of ", join({kNames.begin(), kNames.end()}),
                            ". Name the file of weights itself."));
}

bool is_shard_index(const fs::path& path) { return path.filename().string().ends_with(kIndexEnd); }

std::map<std::string, std::string> parse_shard_index(const std::string& text, const std::string& shown_path) {
  const auto index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded()) bad_index(shown_path, "it is not valid JSON");
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object() || map->empty())
    bad_index(shown_path, "an index of shards must have the object \"weight_map\" with at least one tensor");
  std::map<std::string, std::string> shards;
  std::map<std::string, int> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_shard_name(file.get_ref<const std::string&>()))
      bad_index(
          shown_path,
          cat("the shard of '", escape_controls(name), "' must be the name of a file beside it; got ",
              escape_controls(file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 100))));
    files[file.get<std::string>()] = 0;
    if (files.size() > kMostShards) bad_index(shown_path, cat("it names more than ", kMostShards, " shards"));
    shards.emplace(name, file.get<std::string>());
  }
  return shards;
}

}  // namespace fulgur::detail
