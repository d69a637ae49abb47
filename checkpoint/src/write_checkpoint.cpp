#include <signal.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <future>

#include "formats/safetensors_file.h"
#include "formats/state_json.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/no_signals.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"
#include "io/hashed_file.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

using detail::FileRecord;
using detail::Manifest;

// Everything to be written, except the tensors themselves.
struct Plan {
  Manifest manifest;
  std::map<std::string, std::string> metadata;
  detail::StateTensors optimizer_tensors, state_tensors;
  std::vector<std::pair<std::string, std::string>> state_parts;  // name, text
  uint64_t bytes = 0;
};

int64_t progress_number(const StateTree& state, std::string_view name) {
  if (!state.contains("progress") || !state.at("progress").contains(name)) return 0;
  const StateTree& value = state.at("progress").at(name);
  return value.holds<int64_t>() ? value.as_int() : 0;
}

// Counted as in the names of checkpoints: the current epoch, or else the last completed one.
int64_t epoch_of(const StateTree& state) {
  const int64_t epoch = progress_number(state, "epoch");
  if (!state.contains("progress") || !state.at("progress").contains("batches")) return epoch;
  const StateTree& batches = state.at("progress").at("batches");
  const bool between = batches.is_map() && batches.contains("completed") && batches.at("completed").holds<int64_t>() &&
                       batches.at("completed").as_int() == 0;
  return between ? std::max<int64_t>(epoch - 1, 0) : epoch;
}

Plan make_plan(const CheckpointContent& content) {
  Plan plan;
  plan.manifest.origin = content.origin;
  plan.manifest.epoch = epoch_of(content.state);
  plan.manifest.global_step = progress_number(content.state, "global_step");
  plan.manifest.weights_only = content.optimizers.is_null();
  plan.metadata.emplace("format", "pt");
  for (const auto& [alias, name] : content.aliases) plan.metadata["alias:" + alias] = name;
  // One line per field, so that each has its own hash.
  plan.state_parts.emplace_back(
      "optimizers",
      cat("{\n\"optimizers\": ", detail::encode_state(content.optimizers, "", plan.optimizer_tensors), ",\n"));
  if (content.state.is_map() && !detail::looks_like_a_word(content.state.as_map())) {
    std::string start = "\"state\": {\n";
    for (const auto& [key, value] : content.state.as_map()) {
      const std::string name = detail::encode_state(key, key, plan.state_tensors);
      plan.state_parts.emplace_back("state." + key,
                                    cat(start, name, ": ", detail::encode_state(value, key, plan.state_tensors)));
      start = ",\n";
    }
    plan.state_parts.emplace_back("end", start == ",\n" ? "\n}\n}\n" : start + "}\n}\n");
  } else {
    plan.state_parts.emplace_back(
        "state", cat("\"state\": ", detail::encode_state(content.state, "state", plan.state_tensors), "\n}\n"));
  }
  plan.bytes = detail::safetensors_bytes(content.module) + detail::safetensors_bytes(plan.optimizer_tensors.tensors()) +
               detail::safetensors_bytes(plan.state_tensors.tensors());
  uint64_t state_bytes = 0;
  for (const auto& [name, text] : plan.state_parts) state_bytes += text.size();
  if (state_bytes > detail::kMaxStateBytes)
    throw CheckpointError(cat("[checkpoint.write] the state without its tensors has ", state_bytes, " bytes; at most ",
                              detail::kMaxStateBytes,
                              " are allowed. Keep large data of callbacks and modules in tensors."));
  plan.bytes += state_bytes;
  return plan;
}

FileRecord write_state(const fs::path& path, const Plan& plan) {
  uint64_t bytes = 0;
  for (const auto& [name, text] : plan.state_parts) bytes += text.size();
  detail::HashedFile file(path, bytes);
  for (const auto& [name, text] : plan.state_parts) {
    file.begin_part(name);
    file.write(text);
  }
  return file.commit();
}

// From this size on, the model and the optimizer are written in parallel: the kernel's copy of a write uses only one
// core.
constexpr uint64_t kWriteInParallelBytes = uint64_t{64} << 20;

void write_files(const fs::path& folder, const CheckpointContent& content, Plan& plan) {
  auto& files = plan.manifest.files;
  const auto write_model = [&] {
    return detail::write_safetensors_file(folder / detail::kModelFile, content.module, plan.metadata);
  };
  const auto write_optimizer = [&] {
    return detail::write_safetensors_file(folder / detail::kOptimizerFile, plan.optimizer_tensors.tensors(), {});
  };
  if (plan.bytes < kWriteInParallelBytes) {
    files[detail::kModelFile] = write_model();
    files[detail::kOptimizerFile] = write_optimizer();
  } else {
    // The future's destructor waits, so that nothing writes into the folder when an error removes it.
    std::future<FileRecord> model = [&] {
      const NoSignals no_signals;
      return std::async(std::launch::async, write_model);
    }();
    files[detail::kOptimizerFile] = write_optimizer();
    files[detail::kModelFile] = model.get();
  }
  if (!plan.state_tensors.tensors().empty())
    files[detail::kStateTensorsFile] =
        detail::write_safetensors_file(folder / detail::kStateTensorsFile, plan.state_tensors.tensors(), {});
  files[detail::kStateFile] = write_state(folder / detail::kStateFile, plan);
  const std::string text = detail::manifest_to_text(plan.manifest);
  if (text.size() > detail::kMaxManifestBytes)
    throw CheckpointError(cat("[checkpoint.write] the manifest would have ", text.size(), " bytes; at most ",
                              detail::kMaxManifestBytes, " are allowed."));
  detail::DurableFile file(folder / detail::kManifestFile);
  file.write(text);
  file.commit();
}

// Renames `temporary` to the first free name of `folder`, `-v1`, `-v2`, ….
fs::path publish(const fs::path& temporary, const fs::path& folder) {
  fs::path path = folder;
  for (int version = 1;; ++version) {
    // rename() onto a folder that has files fails, so a name is never reused.
    std::error_code unknown;
    if (!fs::exists(fs::symlink_status(path, unknown))) {
      if (detail::system_calls().rename(temporary.c_str(), path.c_str()) == 0) return path;
      if (errno != ENOTEMPTY && errno != EEXIST) detail::throw_errno("publishing", path, errno);
    }
    path = folder.parent_path() / cat(folder.stem(), "-v", version, run_layout::kExtension);
  }
}

// During its lifetime, a write beyond RLIMIT_FSIZE is an ordinary error instead of a signal that ends the process.
class FileLimitIsAnError {
 public:
  FileLimitIsAnError() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileLimitIsAnError() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    const timespec none{};
    while (sigtimedwait(&signal_, nullptr, &none) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileLimitIsAnError(const FileLimitIsAnError&) = delete;
  FileLimitIsAnError& operator=(const FileLimitIsAnError&) = delete;

 private:
  sigset_t signal_, before_;
};

uint64_t free_bytes(const fs::path& folder) {
  struct statvfs space {};
  return statvfs(folder.c_str(), &space) == 0 ? static_cast<uint64_t>(space.f_bavail) * space.f_frsize : 0;
}

}  // namespace

fs::path write_checkpoint(const fs::path& folder, const CheckpointContent& content) {
  Plan plan = make_plan(content);
  const FileLimitIsAnError limit;
  const fs::path parent = detail::folder_of(folder);
  detail::make_folders(parent);
  const uint64_t free = free_bytes(parent);
  const fs::path temporary = detail::temporary_sibling(folder);
  if (detail::system_calls().mkdir(temporary.c_str(), 0755) != 0)
    detail::throw_errno("creating the folder", temporary, errno);
  std::error_code ignored;
  fs::path published;
  try {
    write_files(temporary, content, plan);
    detail::sync_folder(temporary);
    published = publish(temporary, folder);
    detail::sync_folder(parent);
  } catch (const detail::FileError& error) {
    if (!published.empty()) fs::rename(published, temporary, ignored);
    fs::remove_all(temporary, ignored);
    if (error.reason() != ENOSPC && error.reason() != EDQUOT && error.reason() != EFBIG) throw;
    throw CheckpointError(cat(error.what(), " The checkpoint needs ", plan.bytes, " bytes; ", free,
                              " bytes were free. Free disk space or raise the limit, keep fewer checkpoints, or set "
                              "another default_root_dir."));
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  return published;
}

fs::path write_verified_checkpoint(const fs::path& folder, const CheckpointContent& content) {
  const fs::path path = write_checkpoint(folder, content);
  const VerifyReport report = verify_checkpoint(path);
  if (report.ok()) return path;
  remove_checkpoint(path);
  throw CheckpointError(cat("[checkpoint.write] ", path,
                            " differs from what was written, and was removed. Is the disk or the memory faulty?\n",
                            report.describe()));
}

}  // namespace fulgur
