#include "fulgur/checkpoint/weights_file.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include "formats/pytorch_archive.h"
#include "formats/shard_index.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/pytorch_file.h"
#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"
#include "io/input_file.h"
#include "io/manifest.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

constexpr const char* kAliasMark = "alias:";

WeightsFormat format_of(const fs::path& path) {
  detail::InputFile file(path);
  char start[9] = {};
  file.read(start, std::min<uint64_t>(file.size(), sizeof start));
  // The length of a safetensors header is followed by its JSON. The length may look like the start of a pickle.
  uint64_t header = 0;
  for (size_t i = 8; i-- > 0;) header = header << 8 | static_cast<unsigned char>(start[i]);
  if (start[8] == '{' && header <= file.size() - 8) return WeightsFormat::safetensors;
  const std::string hint = file.looks_like();
  // A pickle outside an archive is also handled there, for its error message.
  if (detail::looks_like_zip({start, sizeof start}) || hint.find("pickle") != std::string::npos)
    return WeightsFormat::pytorch;
  throw CheckpointError(cat("[checkpoint.import] ", escape_controls(path.string()),
                            " must be a safetensors file or a file written by torch.save; it is neither.", hint));
}

WeightsFile read_one_file(const fs::path& path) {
  WeightsFile out;
  out.format = format_of(path);
  if (out.format == WeightsFormat::pytorch) {
    PytorchFile file = read_pytorch_file(path);
    out.tensors = std::move(file.tensors);
    out.left_out = std::move(file.left_out);
    return out;
  }
  SafetensorsFile file = read_safetensors(path);
  out.tensors = std::move(file.tensors);
  for (const auto& [key, value] : file.metadata)
    if (key.starts_with(kAliasMark)) out.aliases.emplace(key.substr(std::string_view(kAliasMark).size()), value);
  return out;
}

constexpr uint64_t kMostIndexBytes = uint64_t{64} << 20;

// Every tensor of the index, and no other, must be in the shard that the index names.
WeightsFile read_shards(const fs::path& index) {
  const std::string shown_path = escape_controls(index.string());
  const auto shards = detail::parse_shard_index(detail::read_file(index, kMostIndexBytes), shown_path);
  std::set<std::string> files;
  for (const auto& [name, file] : shards) files.insert(file);
  WeightsFile out;
  std::set<std::string> found;
  for (const std::string& file : files) {
    WeightsFile shard = read_one_file(index.parent_path() / file);
    out.format = shard.format;
    for (auto& [name, tensor] : shard.tensors) {
      const auto place = shards.find(name);
      if (place == shards.end() || place->second != file)
        throw CheckpointError(cat("[checkpoint.shards] ", escape_controls(file), " has the tensor '",
                                  escape_controls(name), "', which ", shown_path, " ",
                                  place == shards.end() ? "does not name" : cat("expects in ", place->second),
                                  ". The files belong to different sets: copy all of them again."));
      found.insert(name);
      out.tensors.emplace_back(std::move(name), std::move(tensor));
    }
    out.aliases.merge(shard.aliases);
    out.left_out.insert(out.left_out.end(), shard.left_out.begin(), shard.left_out.end());
  }
  for (const auto& [name, file] : shards)
    if (!found.contains(name) && !out.aliases.contains(name))
      throw CheckpointError(cat("[checkpoint.shards] ", escape_controls(file), " lacks the tensor '",
                                escape_controls(name), "' that ", shown_path,
                                " expects in it. The files belong to different sets: copy all of them again."));
  return out;
}

// Whether a folder is a checkpoint whose tensors are divided among files: its `model.safetensors` lacks them.
bool is_sharded_checkpoint(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (detail::is_part_file(entry->path().filename().string(), detail::kModelFile)) return true;
  return false;
}

WeightsFile weights_of_checkpoint(const fs::path& folder) {
  CheckpointContent content = read_checkpoint(folder, CheckpointParts::weights_and_state, Verify::needed);
  return {.format = WeightsFormat::safetensors,
          .tensors = std::move(content.module),
          .aliases = std::move(content.aliases),
          .left_out = {}};
}

}  // namespace

WeightsFile read_weights_file(const fs::path& path) {
  if (is_sharded_checkpoint(path)) return weights_of_checkpoint(path);
  const fs::path file = detail::weights_file_of(path);
  return detail::is_shard_index(file) ? read_shards(file) : read_one_file(file);
}

void write_weights_file(const fs::path& path, const WeightsFile& weights, bool replace) {
  detail::write_output_file(path, replace, [&](const fs::path& hidden) {
    if (weights.format == WeightsFormat::pytorch) return write_pytorch_file(hidden, weights.tensors, weights.aliases);
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    for (const auto& [alias, name] : weights.aliases) metadata[kAliasMark + alias] = name;
    write_safetensors(hidden, weights.tensors, metadata);
  });
}

}  // namespace fulgur
