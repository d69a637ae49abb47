#include "writing/folder_writer.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <ctime>
#include <future>

#include "formats/safetensors_file.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/system/no_signals.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"
#include "io/hashed_file.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

FileRecord write_state(const fs::path& path, const CheckpointPlan& plan) {
  uint64_t bytes = 0;
  for (const auto& [name, text] : plan.state_parts) bytes += text.size();
  HashedFile file(path, bytes);
  for (const auto& [name, text] : plan.state_parts) {
    file.begin_part(name);
    file.write(text);
  }
  return file.commit();
}

struct TensorFile {
  std::string name;
  const NamedTensors* tensors;
  std::map<std::string, std::string> metadata;
};

// From this size on, files are written in parallel: the kernel's copy of a write uses only one core.
constexpr uint64_t kWriteInParallelBytes = uint64_t{64} << 20;

void write_tensor_files(const fs::path& folder, const std::vector<TensorFile>& tensor_files, CheckpointPlan& plan) {
  const auto write = [&](const TensorFile& file) {
    return write_safetensors_file(folder / file.name, *file.tensors, file.metadata);
  };
  const bool in_parallel = plan.bytes >= kWriteInParallelBytes;
  // The destructors of the futures wait, so that nothing writes into the folder when an error removes it.
  std::vector<std::future<FileRecord>> records;
  {
    const NoSignals no_signals;
    for (const TensorFile& file : tensor_files)
      records.push_back(
          std::async(in_parallel && &file != &tensor_files.back() ? std::launch::async : std::launch::deferred,
                     [&] { return write(file); }));
  }
  // The last is written by this thread, while the others are.
  for (size_t i = records.size(); i-- > 0;) plan.manifest.files[tensor_files[i].name] = records[i].get();
}

// Renames `temporary` to the first free name of `folder`, `-v1`, `-v2`, ….
fs::path rename_to_free_name(const fs::path& temporary, const fs::path& folder) {
  fs::path path = folder;
  for (int version = 1;; ++version) {
    // rename() onto a folder that has files fails, so a name is never reused.
    std::error_code unknown;
    if (!fs::exists(fs::symlink_status(path, unknown))) {
      if (system_calls().rename(temporary.c_str(), path.c_str()) == 0) return path;
      if (errno != ENOTEMPTY && errno != EEXIST) throw_errno("publishing", path, errno);
    }
    path = folder.parent_path() / cat(folder.stem(), "-v", version, run_layout::kExtension);
  }
}

}  // namespace

FileLimitIsAnError::FileLimitIsAnError() {
  sigemptyset(&signal_);
  sigaddset(&signal_, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &signal_, &before_);
}

FileLimitIsAnError::~FileLimitIsAnError() {
  if (sigismember(&before_, SIGXFSZ) == 1) return;
  const timespec none{};
  while (sigtimedwait(&signal_, nullptr, &none) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

uint64_t free_bytes(const fs::path& folder) {
  struct statvfs space {};
  return statvfs(folder.c_str(), &space) == 0 ? static_cast<uint64_t>(space.f_bavail) * space.f_frsize : 0;
}

CheckpointError save_error(const FileError& error, uint64_t needed, uint64_t free) {
  if (error.reason() != ENOSPC && error.reason() != EDQUOT && error.reason() != EFBIG)
    return CheckpointError(error.what());
  return CheckpointError(cat(error.what(), " The checkpoint needs ", needed, " bytes; ", free,
                             " bytes were free. Free disk space or raise the limit, keep fewer checkpoints, or set "
                             "another default_root_dir."));
}

fs::path create_temporary(const fs::path& folder) {
  make_folders(folder_of(folder));
  fs::path temporary = temporary_sibling(folder);
  if (system_calls().mkdir(temporary.c_str(), 0755) != 0) throw_errno("creating the folder", temporary, errno);
  return temporary;
}

void write_files(const fs::path& folder, CheckpointPlan& plan, Writer writer) {
  auto& files = plan.manifest.files;
  std::vector<TensorFile> tensor_files;
  for (auto& [whole_file, tensors] : plan.parts) {
    const std::string name = part_file(whole_file, writer.rank, writer.ranks);
    for (DividedTensor& divided : plan.manifest.divided.at(whole_file))
      for (TensorPiece& piece : divided.pieces) piece.file = name;
    tensor_files.push_back({name, &tensors, {}});
  }
  if (writer.rank == 0) {
    tensor_files.push_back({kModelFile, &plan.module, plan.metadata});
    tensor_files.push_back({kOptimizerFile, &plan.optimizers, {}});
    if (!plan.state.empty() || plan.manifest.divided.contains(kStateTensorsFile))
      tensor_files.push_back({kStateTensorsFile, &plan.state, {}});
  }
  write_tensor_files(folder, tensor_files, plan);
  if (writer.rank == 0) files[kStateFile] = write_state(folder / kStateFile, plan);
}

void write_manifest(const fs::path& folder, const Manifest& manifest) {
  const std::string text = manifest_to_text(manifest);
  if (text.size() > kMaxManifestBytes)
    throw CheckpointError(cat("[checkpoint.write] the manifest would have ", text.size(), " bytes; at most ",
                              kMaxManifestBytes, " are allowed."));
  DurableFile file(folder / kManifestFile);
  file.write(text);
  file.commit();
}

fs::path publish(const fs::path& temporary, const fs::path& folder) {
  sync_folder(temporary);
  fs::path published = rename_to_free_name(temporary, folder);
  try {
    sync_folder(folder_of(folder));
  } catch (...) {
    std::error_code ignored;
    fs::rename(published, temporary, ignored);
    throw;
  }
  return published;
}

}  // namespace fulgur::detail
