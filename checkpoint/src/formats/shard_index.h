#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace fulgur::detail {

/// The file that a path of weights means: of a folder of Hugging Face's, `model.safetensors.index.json`,
/// `model.safetensors`, `pytorch_model.bin.index.json` or `pytorch_model.bin`, in this order; otherwise the path
/// itself. Throws a CheckpointError for a folder without any of them.
std::filesystem::path weights_file_of(const std::filesystem::path& path);

/// Whether the path is named as an index of shards: `….index.json`.
bool is_shard_index(const std::filesystem::path& path);

/// The shard of each tensor, from the text of an index as Hugging Face writes it: `{"weight_map": {NAME: FILE}}`.
/// Throws a CheckpointError if it has no such map, or if a shard is no plain name of a file of weights.
std::map<std::string, std::string> parse_shard_index(const std::string& text, const std::string& shown_path);

}  // namespace fulgur::detail
