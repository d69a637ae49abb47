#include "fulgur/checkpoint/checkpoint_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "durable_file.h"
#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"
#include "state_json.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFormatVersion = 1;
constexpr size_t kMaxStateBytes = 256u << 20;
constexpr const char* kTemporaryMark = ".tmp-";

std::map<std::string, Tensor> by_name(NamedTensors tensors) {
  std::map<std::string, Tensor> map;
  for (auto& [name, tensor] : tensors) map.emplace(std::move(name), std::move(tensor));
  return map;
}

fs::path temporary_sibling(const fs::path& path) {
  static std::atomic<uint64_t> counter{0};
  return path.parent_path() / cat(".", path.filename(), kTemporaryMark, static_cast<int64_t>(getpid()), "-", ++counter);
}

void write_files(const fs::path& folder, const CheckpointContent& content) {
  NamedTensors optimizer_tensors, state_tensors;
  Json json;
  json["format"] = "fulgur-checkpoint";
  json["format_version"] = kFormatVersion;
  json["optimizers"] = detail::state_to_json(content.optimizers, "", optimizer_tensors);
  json["state"] = detail::state_to_json(content.state, "", state_tensors);
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const auto& [alias, name] : content.aliases) metadata["alias:" + alias] = name;
  write_safetensors(folder / "model.safetensors", content.module, metadata);
  write_safetensors(folder / "optimizer.safetensors", optimizer_tensors);
  if (!state_tensors.empty()) write_safetensors(folder / "state.safetensors", state_tensors);
  std::string text;
  try {
    text = json.dump(1);
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("[checkpoint.write] a text of the state is not UTF-8.");
  }
  detail::DurableFile file(folder / "state.json");
  file.write(text);
  file.commit();
}

Json read_state_json(const fs::path& folder) {
  const fs::path path = folder / "state.json";
  Json json = Json::parse(detail::read_file(path, kMaxStateBytes), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) throw CheckpointError(cat("[checkpoint.read] ", path, " is damaged: it is no JSON object."));
  if (!json.contains("format") || json["format"] != "fulgur-checkpoint")
    throw CheckpointError(cat("[checkpoint.read] ", path, " is not the state of a checkpoint."));
  if (!json.contains("format_version") || !json["format_version"].is_number_integer())
    throw CheckpointError(cat("[checkpoint.read] ", path, " names no format version."));
  if (const auto version = json["format_version"].get<int64_t>(); version > kFormatVersion || version < 1)
    throw CheckpointError(cat("[checkpoint.read] ", path, " has format version ", version, "; this program reads up to ", kFormatVersion,
                              ". Use a newer version of Fulgur."));
  if (!json.contains("state") || !json.contains("optimizers")) throw CheckpointError(cat("[checkpoint.read] ", path, " is damaged: parts are missing."));
  return json;
}

void check_is_folder(const fs::path& folder) {
  std::error_code error;
  const auto status = fs::status(folder, error);
  if (error || status.type() == fs::file_type::not_found)
    throw CheckpointError(cat("[checkpoint.read] ", folder, " does not exist or cannot be read", error ? ": " + error.message() : "", "."));
  if (status.type() != fs::file_type::directory)
    throw CheckpointError(cat("[checkpoint.read] ", folder, " is no checkpoint: a checkpoint is a folder with model.safetensors and state.json."));
}

}  // namespace

fs::path write_checkpoint(fs::path folder, const CheckpointContent& content) {
  const fs::path parent = folder.parent_path();
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) detail::throw_errno("creating the folder", parent, error.value());
  const fs::path temporary = temporary_sibling(folder);
  if (mkdir(temporary.c_str(), 0755) != 0) detail::throw_errno("creating the folder", temporary, errno);
  try {
    write_files(temporary, content);
    detail::sync_folder(temporary);
    // rename() onto a folder that has files fails, so a name is never reused.
    const std::string stem = folder.stem().string();
    for (int version = 1;; ++version) {
      if (!fs::exists(fs::symlink_status(folder))) {
        if (rename(temporary.c_str(), folder.c_str()) == 0) break;
        if (errno != ENOTEMPTY && errno != EEXIST) detail::throw_errno("publishing", folder, errno);
      }
      folder = parent / cat(stem, "-v", version, ".ckpt");
    }
    detail::sync_folder(parent);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  return folder;
}

CheckpointContent read_checkpoint(const fs::path& folder, CheckpointParts parts) {
  check_is_folder(folder);
  const Json json = read_state_json(folder);
  CheckpointContent content;
  SafetensorsFile weights = read_safetensors(folder / "model.safetensors");
  content.module = std::move(weights.tensors);
  for (const auto& [key, value] : weights.metadata)
    if (key.starts_with("alias:")) content.aliases.emplace(key.substr(6), value);
  std::map<std::string, Tensor> state_tensors;
  if (fs::exists(folder / "state.safetensors")) state_tensors = by_name(read_safetensors(folder / "state.safetensors").tensors);
  content.state = detail::state_from_json(json["state"], state_tensors);
  content.optimizers = nullptr;
  if (parts == CheckpointParts::all)
    content.optimizers = detail::state_from_json(json["optimizers"], by_name(read_safetensors(folder / "optimizer.safetensors").tensors));
  return content;
}

void link_checkpoint(const fs::path& link, const fs::path& target) {
  const fs::path folder = link.parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) detail::throw_errno("creating the folder", folder, error.value());
  const fs::path temporary = temporary_sibling(link);
  const fs::path relative = target.parent_path() == folder ? target.filename() : fs::absolute(target);
  if (symlink(relative.c_str(), temporary.c_str()) != 0) detail::throw_errno("linking", temporary, errno);
  if (rename(temporary.c_str(), link.c_str()) != 0) {
    const int reason = errno;
    unlink(temporary.c_str());
    detail::throw_errno("linking", link, reason);
  }
  detail::sync_folder(folder);
}

void remove_checkpoint(const fs::path& folder) {
  const fs::path temporary = temporary_sibling(folder);
  if (rename(folder.c_str(), temporary.c_str()) != 0) {
    if (errno == ENOENT) return;
    detail::throw_errno("removing", folder, errno);
  }
  std::error_code error;
  fs::remove_all(temporary, error);
  if (error) detail::throw_errno("removing", temporary, error.value());
}

void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".") && name.find(cat(".ckpt", kTemporaryMark)) != std::string::npos) fs::remove_all(entry.path(), error);
  }
}

CheckpointSummary summarize_checkpoint(const fs::path& folder) {
  check_is_folder(folder);
  const Json json = read_state_json(folder);
  CheckpointSummary summary{.path = folder};
  const auto& state = json["state"];
  if (state.contains("progress") && state["progress"].contains("global_step") && state["progress"]["global_step"].is_number_integer())
    summary.global_step = state["progress"]["global_step"].get<int64_t>();
  if (state.contains("progress") && state["progress"].contains("epoch") && state["progress"]["epoch"].is_number_integer())
    summary.epoch = state["progress"]["epoch"].get<int64_t>();
  return summary;
}

}  // namespace fulgur
