#include "reading/run_files.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::history {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

// Discarded if the file does not exist or is not JSON.
Json read_json(const fs::path& file) {
  try {
    const auto text = read_regular_file(file);
    return text ? Json::parse(*text, nullptr, /*allow_exceptions=*/false) : Json(Json::value_t::discarded);
  } catch (const Error&) {
    return Json(Json::value_t::discarded);
  }
}

template <class T>
std::optional<T> value_of(const Json& json, const char* key) {
  if (!json.is_object() || !json.contains(key)) return std::nullopt;
  const Json& value = json[key];
  if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) return std::nullopt;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) return std::nullopt;
  } else if constexpr (std::is_integral_v<T>) {
    if (!value.is_number_integer()) return std::nullopt;
  } else if (!value.is_number()) {
    return std::nullopt;
  }
  return value.get<T>();
}

// A field of `state.json`, which has one field per line: the other lines may be long and are not parsed.
Json field_of_state(const fs::path& checkpoint, const std::string& key) {
  const fs::path path = checkpoint / "state.json";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return Json(Json::value_t::discarded);
  std::ifstream file(path, std::ios::binary);
  const std::string start = cat("\"", key, "\": ");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(start)) continue;
    if (line.ends_with(',')) line.pop_back();
    return Json::parse(line.begin() + static_cast<std::ptrdiff_t>(start.size()), line.end(), nullptr, false);
  }
  return Json(Json::value_t::discarded);
}

CheckpointEntry read_entry(const fs::path& folder) {
  CheckpointEntry entry;
  entry.name = folder.filename().string();
  const Json manifest = read_json(folder / "manifest.json");
  if (!manifest.is_object()) {
    entry.problem = "its manifest cannot be read";
    return entry;
  }
  entry.epoch = value_of<int64_t>(manifest, "epoch").value_or(0);
  entry.step = value_of<int64_t>(manifest, "global_step").value_or(0);
  entry.weights_only = value_of<bool>(manifest, "weights_only").value_or(false);
  if (manifest.contains("files") && manifest["files"].is_object())
    for (const auto& [name, file] : manifest["files"].items())
      entry.bytes += value_of<uint64_t>(file, "bytes").value_or(0);
  entry.fit_time_s = value_of<double>(field_of_state(folder, "progress"), "fit_time_s");
  if (const Json metrics = field_of_state(folder, "metrics"); metrics.is_object())
    for (const auto& [name, value] : metrics.items())
      if (value.is_number()) entry.metrics.emplace(name, value.get<double>());
  return entry;
}

}  // namespace

std::optional<FinishedFile> read_finished(const fs::path& run_dir) {
  const Json json = read_json(run_dir / run_layout::kFinished);
  const auto reason = value_of<std::string>(json, "reason");
  if (!reason) return std::nullopt;
  return FinishedFile{*reason, value_of<int64_t>(json, "epochs").value_or(0),
                      value_of<int64_t>(json, "global_step").value_or(0),
                      value_of<double>(json, "fit_time_s").value_or(0)};
}

std::optional<std::string> read_failure(const fs::path& run_dir) {
  return value_of<std::string>(read_json(run_dir / run_layout::kFailed), "error");
}

std::vector<CheckpointEntry> read_checkpoints(const fs::path& folder) {
  std::vector<CheckpointEntry> entries;
  const auto target_of = [&](const char* link) {
    std::error_code none;
    return fs::read_symlink(folder / link, none);
  };
  const fs::path last = target_of(run_layout::kLast), best = target_of(run_layout::kBest);
  std::error_code error;
  for (fs::directory_iterator found(folder, error), end; !error && found != end; found.increment(error)) {
    std::error_code ignored;
    const std::string name = found->path().filename().string();
    if (found->path().extension() != run_layout::kExtension || name.starts_with('.') || found->is_symlink(ignored) ||
        !found->is_directory(ignored))
      continue;
    entries.push_back(read_entry(found->path()));
    entries.back().is_last = name == last;
    entries.back().is_best = name == best;
  }
  // Checkpoints in another folder (ModelCheckpoint.dirpath) are known by their links only.
  for (const fs::path& target : {last, last == best ? fs::path() : best}) {
    const fs::path elsewhere = folder / target;
    std::error_code none;
    if (!target.has_parent_path() || !fs::is_directory(elsewhere, none)) continue;
    entries.push_back(read_entry(elsewhere));
    entries.back().name = fs::proximate(elsewhere, folder, none).string();
    entries.back().is_last = target == last;
    entries.back().is_best = target == best;
  }
  std::sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return std::pair(a.step, a.name) < std::pair(b.step, b.name);
  });
  return entries;
}

std::optional<int64_t> completed_epochs(const fs::path& checkpoint) {
  const Json progress = field_of_state(checkpoint, "progress");
  return progress.is_object() && progress.contains("epochs") ? value_of<int64_t>(progress["epochs"], "completed")
                                                             : std::nullopt;
}

std::vector<std::pair<std::string, std::string>> read_system(const fs::path& checkpoint) {
  std::vector<std::pair<std::string, std::string>> out;
  const Json manifest = read_json(checkpoint / "manifest.json");
  if (!manifest.is_object() || !manifest.contains("origin")) return out;
  const Json& origin = manifest["origin"];
  const auto add = [&](const char* name, const auto& value) {
    if (value) out.emplace_back(name, cat(*value));
  };
  add("devices", value_of<std::string>(origin, "device"));
  add("processes", value_of<int64_t>(origin, "world_size"));
  add("threads", value_of<int64_t>(origin, "threads"));
  add("deterministic", value_of<bool>(origin, "deterministic"));
  add("Fulgur", value_of<std::string>(origin, "fulgur"));
  add("LibTorch", value_of<std::string>(origin, "libtorch"));
  return out;
}

}  // namespace fulgur::history
