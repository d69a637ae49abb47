#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace detail {
namespace {

constexpr const char* kTemporaryMark = ".ckpt.tmp-";

}  // namespace

fs::path temporary_sibling(const fs::path& path) {
  static std::atomic<uint64_t> counter{0};
  return path.parent_path() / cat(".", path.stem(), kTemporaryMark, static_cast<int64_t>(getpid()), "-", ++counter);
}

bool is_temporary(std::string_view name) {
  return name.starts_with(".") && name.find(kTemporaryMark) != std::string_view::npos;
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void refuse_existing(const fs::path& path) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::not_found)
    throw CheckpointError(cat("[checkpoint.export] the output ", escape_controls(path.string()),
                              " exists already. Name another one, or replace it with --force."));
}

void write_output_file(const fs::path& path, bool replace, const std::function<void(const fs::path&)>& write) {
  std::error_code ignored;
  if (path.filename().empty() || fs::is_directory(path, ignored))
    throw CheckpointError(
        cat("[checkpoint.export] the output must be a file; ", escape_controls(path.string()), " is a folder."));
  if (!replace) refuse_existing(path);
  make_folders(folder_of(path));
  const fs::path temporary = temporary_sibling(path);
  try {
    write(temporary);
    if (!replace) refuse_existing(path);
    rename_or_throw(temporary, path);
  } catch (...) {
    fs::remove(temporary, ignored);
    throw;
  }
  sync_folder(folder_of(path));
}

void rename_or_throw(const fs::path& from, const fs::path& to) {
  if (system_calls().rename(from.c_str(), to.c_str()) != 0) throw_errno("publishing", to, errno);
}

std::string five_digits(int64_t number) {
  const std::string digits = cat(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_errno("creating the folder", folder, error.value());
}

}  // namespace detail

std::optional<fs::path> link_target(const fs::path& link) {
  std::error_code error;
  if (!fs::is_symlink(link, error)) return std::nullopt;
  const fs::path target = fs::read_symlink(link, error);
  if (error) return std::nullopt;
  return target.is_absolute() ? target : link.parent_path() / target;
}

void link_checkpoint(const fs::path& link, const fs::path& target) {
  const fs::path folder = detail::folder_of(link);
  detail::make_folders(folder);
  const fs::path temporary = detail::temporary_sibling(link);
  std::error_code different;
  const fs::path relative =
      fs::equivalent(detail::folder_of(target), folder, different) ? target.filename() : fs::absolute(target);
  detail::SystemCalls& calls = detail::system_calls();
  if (calls.symlink(relative.c_str(), temporary.c_str()) != 0) detail::throw_errno("linking", temporary, errno);
  if (calls.rename(temporary.c_str(), link.c_str()) != 0) {
    const int reason = errno;
    unlink(temporary.c_str());
    detail::throw_errno("linking", link, reason);
  }
  detail::sync_folder(folder);
}

void remove_checkpoint(const fs::path& folder) {
  const fs::path temporary = detail::temporary_sibling(folder);
  if (detail::system_calls().rename(folder.c_str(), temporary.c_str()) != 0) {
    if (errno == ENOENT) return;
    detail::throw_errno("removing", folder, errno);
  }
  std::error_code error;
  fs::remove_all(temporary, error);
  if (error) detail::throw_errno("removing", temporary, error.value());
}

void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (detail::is_temporary(entry->path().filename().string())) leftovers.push_back(entry->path());
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

}  // namespace fulgur
