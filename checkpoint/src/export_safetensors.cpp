#include "fulgur/checkpoint/export_safetensors.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "formats/safetensors_file.h"
#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"

namespace fulgur {
namespace fs = std::filesystem;

namespace {

// The tensors `first` to `last` - 1 of a source.
struct Shard {
  size_t first = 0, last = 0;
};

std::map<std::string, std::string> metadata_of(const TensorSource& source, const Shard& shard) {
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const auto& [alias, name] : source.aliases) {
    const auto begin = source.tensors.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(shard.last);
    if (std::find_if(begin + static_cast<std::ptrdiff_t>(shard.first), end,
                     [&](const TensorInfo& tensor) { return tensor.name == name; }) != end)
      metadata["alias:" + alias] = name;
  }
  return metadata;
}

void write_file(const fs::path& path, const TensorSource& source, const Shard& shard) {
  detail::SafetensorsHeader header;
  header.metadata = metadata_of(source, shard);
  uint64_t offset = 0;
  for (size_t i = shard.first; i < shard.last; ++i) {
    const TensorInfo& tensor = source.tensors[i];
    header.entries.push_back({tensor.name, tensor.dtype, tensor.shape, offset, offset + tensor.bytes});
    offset += tensor.bytes;
  }
  const std::string prefix = detail::make_safetensors_prefix(header);
  detail::DurableFile file(path);
  file.reserve(prefix.size() + offset);
  file.write(prefix);
  for (size_t i = shard.first; i < shard.last; ++i) {
    const Tensor tensor = source.read(i).contiguous();
    file.write(tensor.const_data_ptr(), tensor.nbytes());
  }
  file.commit();
}

std::vector<Shard> shards_of(const TensorSource& source, uint64_t max_bytes) {
  std::vector<Shard> shards;
  uint64_t bytes = 0;
  for (size_t i = 0; i < source.tensors.size(); ++i) {
    const uint64_t more = source.tensors[i].bytes;
    if (shards.empty() || (bytes > 0 && bytes + more > max_bytes)) {
      shards.push_back({i, i});
      bytes = 0;
    }
    bytes += more;
    shards.back().last = i + 1;
  }
  if (shards.empty()) shards.push_back({0, 0});
  return shards;
}

// `folder` becomes `complete`, and what it was is removed.
void exchange(const fs::path& complete, const fs::path& folder) {
  if (renameat2(AT_FDCWD, complete.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(complete);
    return;
  }
  // Some network file systems cannot exchange names.
  const fs::path old = detail::temporary_sibling(folder);
  detail::rename_or_throw(folder, old);
  detail::rename_or_throw(complete, folder);
  fs::remove_all(old);
}

bool is_ours(const std::string& name) {
  return name == "model.safetensors" || name == "model.safetensors.index.json" ||
         (name.starts_with("model-") && name.find("-of-") != std::string::npos && name.ends_with(".safetensors"));
}

// What an earlier export has written may be replaced, and nothing else removed.
void refuse_other_files(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); !is_ours(name))
      throw CheckpointError(cat("[checkpoint.export] ", escape_controls(folder.string()), " has ",
                                escape_controls(name),
                                ", which no export has written, and would lose it. Name another folder."));
}

void write_shards(const fs::path& folder, const TensorSource& source, const std::vector<Shard>& shards) {
  if (shards.size() == 1) return write_file(folder / "model.safetensors", source, shards.front());
  nlohmann::ordered_json names = nlohmann::ordered_json::object();
  uint64_t bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = cat("model-", detail::five_digits(static_cast<int64_t>(i) + 1), "-of-",
                                 detail::five_digits(static_cast<int64_t>(shards.size())), ".safetensors");
    write_file(folder / name, source, shards[i]);
    for (size_t tensor = shards[i].first; tensor < shards[i].last; ++tensor) {
      names[source.tensors[tensor].name] = name;
      bytes += source.tensors[tensor].bytes;
    }
  }
  const nlohmann::ordered_json index{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(names)}};
  detail::DurableFile file(folder / "model.safetensors.index.json");
  file.write(index.dump(2) + "\n");
  file.commit();
}

}  // namespace

void write_safetensors_from(const fs::path& path, const TensorSource& source, bool replace) {
  detail::write_output_file(path, replace, [&](const fs::path& hidden) {
    write_file(hidden, source, {0, source.tensors.size()});
  });
}

void write_safetensors_shards(const fs::path& given, const TensorSource& source, uint64_t max_shard_bytes,
                              bool replace) {
  const fs::path folder = given.filename().empty() ? given.parent_path() : given;
  std::error_code ignored;
  if (!replace) detail::refuse_existing(folder);
  const bool exists = fs::exists(fs::symlink_status(folder, ignored));
  if (exists && !fs::is_directory(folder, ignored))
    throw CheckpointError(
        cat("[checkpoint.export] the output must be a folder; ", escape_controls(folder.string()), " is a file."));
  if (exists) refuse_other_files(folder);
  detail::make_folders(detail::folder_of(folder));
  const fs::path temporary = detail::temporary_sibling(folder);
  if (detail::system_calls().mkdir(temporary.c_str(), 0755) != 0)
    detail::throw_errno("creating the folder", temporary, errno);
  try {
    write_shards(temporary, source, shards_of(source, max_shard_bytes));
    detail::sync_folder(temporary);
    if (exists)
      exchange(temporary, folder);
    else
      detail::rename_or_throw(temporary, folder);
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  detail::sync_folder(detail::folder_of(folder));
}

}  // namespace fulgur
