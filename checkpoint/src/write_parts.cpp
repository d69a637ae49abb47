#include <algorithm>
#include <utility>

#include "checked_folder.h"
#include "fulgur/checkpoint/checkpoint_parts.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"
#include "writing/checkpoint_plan.h"
#include "writing/folder_writer.h"

namespace fulgur {
namespace fs = std::filesystem;

namespace {

using detail::DividedTensor;
using detail::Manifest;

void throw_if_damaged(const fs::path& folder, const Manifest& manifest) {
  detail::CheckedFolder written(folder, manifest);
  for (const auto& [name, record] : manifest.files) written.check_contents(name);
  if (!written.problems().empty())
    throw CheckpointError(cat("[checkpoint.write] ", folder,
                              " differs from what was written. Is the disk or the memory faulty?\n",
                              detail::text_of(written.problems())));
}

// The pieces of rank 0 become those of all ranks; it has described every tensor.
void add_pieces(std::vector<DividedTensor>& all, std::vector<DividedTensor> of_rank, size_t rank) {
  std::map<std::string_view, DividedTensor*> by_name;
  for (DividedTensor& tensor : all) by_name.emplace(tensor.name, &tensor);
  for (DividedTensor& tensor : of_rank) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end() || found->second->dtype != tensor.dtype || found->second->shape != tensor.shape ||
        found->second->order != tensor.order)
      throw CheckpointError(cat("[checkpoint.write] rank ", rank, " has a part of '", escape_controls(tensor.name),
                                "', which on rank 0 ", found == by_name.end() ? "is not divided" : "has another form",
                                "."));
    std::ranges::move(tensor.pieces, std::back_inserter(found->second->pieces));
  }
}

Manifest merged(const std::vector<std::string>& descriptions) {
  Manifest all;
  for (size_t rank = 0; rank < descriptions.size(); ++rank) {
    Manifest own = detail::manifest_from_text(descriptions[rank], detail::ManifestScope::part);
    if (rank == 0) {
      all = std::move(own);
      continue;
    }
    all.files.merge(own.files);
    for (auto& [file, tensors] : own.divided) add_pieces(all.divided[file], std::move(tensors), rank);
  }
  for (auto& [file, tensors] : all.divided)
    for (DividedTensor& tensor : tensors) detail::sort_pieces(tensor);
  return all;
}

}  // namespace

fs::path begin_parts(const fs::path& folder) { return detail::create_temporary(folder); }

std::string write_parts(const fs::path& temporary, int64_t rank, int64_t ranks, const CheckpointContent& content) {
  detail::CheckpointPlan plan = detail::plan_checkpoint(content);
  const detail::FileLimitIsAnError limit;
  std::error_code error;
  if (!fs::is_directory(temporary, error))
    throw CheckpointError(cat("[checkpoint.write] rank ", rank, " does not see the folder ", temporary,
                              ", which rank 0 has created. Each rank writes its part of the checkpoint, so "
                              "default_root_dir must be on a file system that all nodes share."));
  const uint64_t free = detail::free_bytes(temporary);
  try {
    detail::write_files(temporary, plan, {rank, ranks});
    detail::sync_folder(temporary);
  } catch (const detail::FileError& failed) {
    throw detail::save_error(failed, plan.bytes, free);
  }
  throw_if_damaged(temporary, plan.manifest);
  // Rank 0 describes each tensor; the others those that they have a part of.
  if (rank > 0)
    for (auto& [file, tensors] : plan.manifest.divided)
      std::erase_if(tensors, [](const DividedTensor& tensor) { return tensor.pieces.empty(); });
  return detail::manifest_to_text(plan.manifest);
}

fs::path commit_parts(const fs::path& temporary, const fs::path& folder, const std::vector<std::string>& descriptions) {
  try {
    const Manifest manifest = merged(descriptions);
    detail::check_divided(manifest.divided, manifest.files, /*complete=*/true);
    detail::CheckedFolder written(temporary, manifest);
    written.check_names_and_sizes();
    if (!written.problems().empty())
      throw CheckpointError(cat("[checkpoint.write] ", temporary, " does not have what the ranks have written:\n",
                                detail::text_of(written.problems()),
                                "\nIs default_root_dir on a file system that all nodes share?"));
    detail::write_manifest(temporary, manifest);
    return detail::publish(temporary, folder);
  } catch (...) {
    drop_parts(temporary);
    throw;
  }
}

void drop_parts(const fs::path& temporary) noexcept {
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
}

}  // namespace fulgur
