#include "files/new_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr size_t kWriteBuffer = size_t{1} << 20;

[[noreturn]] void write_failed(const std::filesystem::path& path, std::string_view what, int reason) {
  throw Error(cat("[text.tokenize] ", what, " must succeed; '", escape_controls(path.string()), "': ",
                  std::strerror(reason), ". Nothing was kept; free space or name another folder with --output."));
}

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

void sync_path(const std::filesystem::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) write_failed(folder, "syncing a folder", errno);
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
  if (error) write_failed(parent, "creating a folder", error.value());
  if (::mkdir(hidden_.c_str(), 0777) != 0 && errno != EEXIST) write_failed(hidden_, "creating a folder", errno);
  UniqueFd lock(::open(hidden_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!lock) write_failed(hidden_, "opening a folder", errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
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
  sync_path(hidden_);
  if (is_there(folder_)) folder_is_there(folder_);
  if (::rename(hidden_.c_str(), folder_.c_str()) != 0) write_failed(folder_, "renaming a folder", errno);
  published_ = true;
  sync_path(parent_of(folder_));
}

NewDataFile::NewDataFile(std::filesystem::path path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!fd_) write_failed(path_, "creating a file", errno);
  buffer_.reserve(kWriteBuffer);
}

void NewDataFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  buffer_.insert(buffer_.end(), from, from + bytes);
  if (buffer_.size() >= kWriteBuffer) flush();
}

void NewDataFile::flush() {
  checksum_ = static_cast<uint32_t>(
      ::crc32_z(checksum_, reinterpret_cast<const unsigned char*>(buffer_.data()), buffer_.size()));
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t wrote = ::write(fd_.get(), buffer_.data() + done, buffer_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) write_failed(path_, "writing a file", errno);
    done += static_cast<size_t>(wrote);
  }
  bytes_ += buffer_.size();
  buffer_.clear();
}

void NewDataFile::commit() {
  flush();
  if (::fsync(fd_.get()) != 0) write_failed(path_, "syncing a file", errno);
  if (::close(fd_.release()) != 0) write_failed(path_, "closing a file", errno);
}

}  // namespace fulgur::detail
