#pragma once

#include <signal.h>

#include <filesystem>

#include "fulgur/core/system/durable_file.h"
#include "writing/checkpoint_plan.h"

namespace fulgur::detail {

/// During its lifetime, a write beyond RLIMIT_FSIZE is an ordinary error instead of a signal that ends the process.
class FileLimitIsAnError {
 public:
  FileLimitIsAnError();
  ~FileLimitIsAnError();
  FileLimitIsAnError(const FileLimitIsAnError&) = delete;
  FileLimitIsAnError& operator=(const FileLimitIsAnError&) = delete;

 private:
  sigset_t signal_, before_;
};

/// The bytes that this process may still write to the file system of a folder.
uint64_t free_bytes(const std::filesystem::path& folder);

/// `error` as the CheckpointError of a save: with what to do if the disk is full. `free` were free before it.
CheckpointError save_error(const FileError& error, uint64_t needed, uint64_t free);

/// Creates the hidden folder in which the checkpoint `folder` is written, and the folders above it. Throws a FileError.
std::filesystem::path create_temporary(const std::filesystem::path& folder);

/// The process that writes: one of `ranks`.
struct Writer {
  int64_t rank = 0, ranks = 1;
};

/// Writes the file of this process's parts, and on rank 0 those of all that is not divided. Adds their records to the
/// plan's manifest.
void write_files(const std::filesystem::path& temporary, CheckpointPlan& plan, Writer writer);

/// Throws a CheckpointError if the manifest is too large.
void write_manifest(const std::filesystem::path& temporary, const Manifest& manifest);

/// Syncs `temporary`, and renames it to the first free name of `folder`, `-v1`, `-v2`, …, which is the result. Undoes
/// the rename if it throws.
std::filesystem::path publish(const std::filesystem::path& temporary, const std::filesystem::path& folder);

}  // namespace fulgur::detail
