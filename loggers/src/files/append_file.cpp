#include "files/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

/// Bytes written; fewer than requested on an error, which is then in errno.
size_t write_all(int file, std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = ::write(file, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  return done;
}

/// If this fails, opening the file reports the error.
void make_folder_of(const std::filesystem::path& path) noexcept {
  try {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
  } catch (...) {
  }
}

}  // namespace

AppendFile::~AppendFile() { close(); }

void AppendFile::open(std::filesystem::path path, FileMark mark) {
  close();
  rows_lost_ += std::exchange(rows_waiting_, 0);
  report_lost();
  waiting_.clear();
  path_ = std::move(path);
  make_folder_of(path_);
  mark_ = mark;
  held_ = false;
}

void AppendFile::replaced(FileMark mark) {
  held_ = false;
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  mark_ = mark;
}

void AppendFile::require_open(std::string_view function) const {
  if (path_.empty()) throw Error(cat("[loggers.", component_, "] start must be called before ", function, "."));
}

void AppendFile::write_beside(const char* name, const std::string& text) const {
  const std::string error = replace_file(path_.parent_path() / name, [&](const auto& put) { put(text); });
  if (!error.empty()) warn(error);
}

void AppendFile::warn_of_reserved_name() const {
  log::warn("logger.reserved_name",
            cat("[loggers.", component_,
                "] 'step' is reserved for the step; the metric with that name is left out. Rename it."));
}

void AppendFile::add(std::string_view row) {
  if (!waiting_.empty() && waiting_.size() + row.size() > most_waiting_) {
    ++rows_lost_;
    return;
  }
  waiting_ += row;
  ++rows_waiting_;
}

bool AppendFile::is_filling() const { return waiting_.size() > most_waiting_ / 2; }

void AppendFile::warn(const std::string& what) const {
  log::warn(warning_, cat("[loggers.", component_, "] metrics are currently not written; ", what,
                          what.ends_with('.') ? "" : ".", " The run continues; free space or fix the permissions."));
}

void AppendFile::warn_of_cut_by_step(int64_t step) const {
  log::warn("logger.cut_by_step", cat("[loggers.", component_, "] ", path_,
                                      " has changed since the checkpoint was made. Rows of steps after ", step,
                                      " are removed instead; rows of that step may be missing or duplicated"));
}

void AppendFile::report_lost() {
  if (const int64_t lost = std::exchange(rows_lost_, 0); lost > 0)
    log::error(cat("[loggers.", component_, "] ", counted(lost, "row"), " of metrics could not be written to ", path_,
                   " and ", lost == 1 ? "is" : "are", " lost."));
}

bool AppendFile::fail(const char* action) noexcept {
  const int code = errno;
  try {
    error_ = cat("cannot ", action, " ", path_, ": ", std::strerror(code));
  } catch (...) {
  }
  return false;
}

bool AppendFile::flush() {
  if (write_waiting()) {
    report_lost();
    return true;
  }
  warn(error_);
  return false;
}

bool AppendFile::write_waiting() noexcept {
  if (waiting_.empty()) return true;
  if (held_) return false;
  if (file_ < 0) {
    make_folder_of(path_);
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (file_ < 0) return fail("open");
    struct stat status {};
    if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
      errno = EINVAL;
      fail("append to something that is not a regular file,");
      ::close(std::exchange(file_, -1));
      return false;
    }
    good_size_ = status.st_size;
  }
  const size_t wrote = write_all(file_, waiting_);
  if (wrote < waiting_.size()) {
    fail("write");
    // A torn row would corrupt the file for readers. If even this fails, the next start of a logger repairs it.
    [[maybe_unused]] const int cut = ::ftruncate(file_, good_size_);
    return false;
  }
  good_size_ += static_cast<int64_t>(wrote);
  mark_.add(waiting_);
  waiting_.clear();
  rows_waiting_ = 0;
  return true;
}

void AppendFile::close() noexcept {
  write_waiting();
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

void AppendFile::finish(const std::function<void()>& last) noexcept {
  try {
    if (last) last();
    flush();
    rows_lost_ += std::exchange(rows_waiting_, 0);
    report_lost();
  } catch (...) {
    // If the warning cannot be shown, the run still ends normally.
  }
  waiting_.clear();
  close();
}

std::string replace_file(const std::filesystem::path& path,
                         const std::function<void(const std::function<void(std::string_view)>&)>& write) {
  try {
    check_replaceable(path);
  } catch (const Error& error) {
    return error.what();
  }
  make_folder_of(path);
  const std::string temporary = path.string() + ".tmp";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file < 0) return cat("cannot open ", temporary, ": ", std::strerror(errno));
  int code = 0;
  std::string block;
  const auto put = [&] {
    if (code == 0 && write_all(file, block) < block.size()) code = errno;
    block.clear();
  };
  write([&](std::string_view part) {
    block += part;
    if (block.size() > (1 << 16)) put();
  });
  put();
  if (::close(file) != 0 && code == 0) code = errno;
  if (code == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) code = errno;
  if (code == 0) return {};
  ::unlink(temporary.c_str());
  return cat("cannot replace ", path, ": ", std::strerror(code));
}

}  // namespace fulgur
