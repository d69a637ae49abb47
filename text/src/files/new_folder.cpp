#include "files/new_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr size_t kWriteBuffer = size_t{1} << 20;

[[noreturn]] void folder_is_there(const std::filesystem::path& folder) {
  throw ConfigError(cat("[text.tokenize] the output must be a new folder; '", escape_controls(folder.string()),
                        "' exists. Remove it, or name another one with --output."));
}

[[noreturn]] void folder_is_in_use(const std::filesystem::path& folder) {
  throw ConfigError(cat("[text.tokenize] one process may write an output; another one writes '",
                        escape_controls(folder.string()), "'. Wait for it, or name another folder with --output."));
}

bool is_there(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::exists(std::filesystem::symlink_status(path, none));
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

NewFolder::NewFolder(std::filesystem::path folder) : folder_(std::move(folder)) {
  if (!folder_.has_filename()) folder_ = folder_.parent_path();
  if (folder_.empty() || folder_.filename() == "." || folder_.filename() == "..")
    throw ConfigError(
        "[text.tokenize] the output must name a new folder; it is empty or an existing one. Use --output.");
  if (is_there(folder_)) folder_is_there(folder_);
  const std::filesystem::path parent = parent_of(folder_);
  hidden_ = parent / cat(".", folder_.filename().string(), ".tmp");
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) throw_errno("creating a folder", parent, error.value());
  SystemCalls& calls = system_calls();
  if (calls.mkdir(hidden_.c_str(), 0777) != 0 && errno != EEXIST) throw_errno("creating a folder", hidden_, errno);
  UniqueFd lock(::open(hidden_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!lock) throw_errno("opening a folder", hidden_, errno);
  if (calls.flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) folder_is_in_use(folder_);
    // A file system without locks: what is there is not in use as far as can be known.
  }
  // The process that had the lock may have published the folder meanwhile.
  struct stat held {
  }, named{};
  if (::fstat(lock.get(), &held) != 0 || ::lstat(hidden_.c_str(), &named) != 0 || held.st_ino != named.st_ino ||
      held.st_dev != named.st_dev || is_there(folder_))
    folder_is_there(folder_);
  lock_ = std::move(lock);
  for (const auto& left : std::filesystem::directory_iterator(hidden_, error)) {
    std::error_code none;
    std::filesystem::remove_all(left.path(), none);
  }
}

NewFolder::~NewFolder() {
  std::error_code none;
  if (!published_) std::filesystem::remove_all(hidden_, none);
}

void NewFolder::publish() {
  sync_folder(hidden_);
  if (is_there(folder_)) folder_is_there(folder_);
  if (system_calls().rename(hidden_.c_str(), folder_.c_str()) != 0) throw_errno("renaming a folder", folder_, errno);
  published_ = true;
  sync_folder(parent_of(folder_));
}

NewDataFile::NewDataFile(const std::filesystem::path& path) : file_(path) { buffer_.reserve(kWriteBuffer); }

void NewDataFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  buffer_.insert(buffer_.end(), from, from + bytes);
  if (buffer_.size() >= kWriteBuffer) flush();
}

void NewDataFile::flush() {
  checksum_ = static_cast<uint32_t>(
      ::crc32_z(checksum_, reinterpret_cast<const unsigned char*>(buffer_.data()), buffer_.size()));
  file_.write(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void NewDataFile::commit() {
  flush();
  file_.commit();
}

}  // namespace fulgur::detail
