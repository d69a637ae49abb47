#include "reading/tar_reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr size_t kTarBlockBytes = size_t{256} << 10;

/// Libarchive also says so of names in UTF-8 if the process has no such locale, and leaves their bytes as they are. Its
/// other warnings are about headers that it skipped.
bool is_about_encoding(const char* warning) {
  return warning != nullptr && std::string_view(warning).find("can't be converted") != std::string_view::npos;
}

}  // namespace

void TarReader::Closer::operator()(struct archive* opened) const { archive_read_free(opened); }

void TarReader::fail(const std::string& what) const {
  throw DataError(cat("[data.tar] the archive '", escape_controls(path_.string()), "' ", what, "."));
}

ssize_t TarReader::read_block(struct archive* opened, void* self, const void** block) {
  auto& reader = *static_cast<TarReader*>(self);
  *block = reader.block_.data();
  while (true) {
    const ssize_t got = ::pread(reader.fd_.get(), reader.block_.data(), reader.block_.size(), reader.position_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      archive_set_error(opened, errno, "%s", std::strerror(errno));
      return ARCHIVE_FATAL;
    }
    reader.position_ += got;
    return got;
  }
}

TarReader::TarReader(std::filesystem::path path, int64_t begin)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)),
      begin_(begin),
      position_(begin),
      block_(kTarBlockBytes, '\0') {
  if (!fd_) fail(cat("cannot be opened: ", std::strerror(errno)));
  struct stat found {};
  if (::fstat(fd_.get(), &found) != 0 || !S_ISREG(found.st_mode)) fail("is not a regular file");
  if (begin < 0 || begin > found.st_size) fail(cat("has no byte ", begin, "; it has ", found.st_size, " bytes"));
  archive_.reset(archive_read_new());
  if (!archive_) fail("cannot be read: out of memory");
  if (archive_read_support_format_tar(archive_.get()) != ARCHIVE_OK ||
      archive_read_support_filter_none(archive_.get()) != ARCHIVE_OK ||
      archive_read_open(archive_.get(), this, nullptr, &TarReader::read_block, nullptr) != ARCHIVE_OK)
    fail(cat("cannot be read as an uncompressed tar archive: ", archive_error_string(archive_.get())));
}

TarReader::~TarReader() = default;

bool TarReader::next() {
  while (true) {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(archive_.get(), &entry);
    if (result == ARCHIVE_EOF) {
      check_end(begin_ + archive_read_header_position(archive_.get()));
      return false;
    }
    const bool is_harmless = result == ARCHIVE_WARN && is_about_encoding(archive_error_string(archive_.get()));
    if (result != ARCHIVE_OK && !is_harmless)
      fail(cat("is damaged, truncated or compressed: ", archive_error_string(archive_.get())));
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr) continue;
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr) fail("has a file whose name cannot be read");
    name_ = name;
    place_ = begin_ + archive_read_header_position(archive_.get());
    return true;
  }
}

/// Libarchive ends at the first block of zeros, and at the end of the file without one: members after that block, or
/// cut off behind a whole member, would be missing silently.
void TarReader::check_end(int64_t begin) const {
  constexpr int64_t kMarkBytes = 512;
  std::string bytes(16384, '\0');
  int64_t position = begin;
  while (true) {
    const ssize_t got = ::pread(fd_.get(), bytes.data(), bytes.size(), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(cat("cannot be read: ", std::strerror(errno)));
    if (got == 0) break;
    const size_t other = std::string_view(bytes).substr(0, static_cast<size_t>(got)).find_first_not_of('\0');
    if (other != std::string_view::npos)
      fail(cat("is damaged: after the zeros that mark its end at byte ", begin, ", it has other bytes at byte ",
               position + static_cast<int64_t>(other), ". Members after that mark cannot be read; write it again"));
    position += got;
  }
  if (position < begin + kMarkBytes)
    fail(cat("is truncated: it ends at byte ", position, " without the zeros that mark the end of an archive"));
}

std::string TarReader::read() {
  std::string bytes;
  char piece[16384];
  while (true) {
    const auto got = archive_read_data(archive_.get(), piece, sizeof piece);
    if (got == 0) return bytes;
    if (got < 0)
      fail(cat("is damaged or truncated in '", escape_controls(name_), "': ", archive_error_string(archive_.get())));
    bytes.append(piece, static_cast<size_t>(got));
    if (static_cast<int64_t>(bytes.size()) > kMostMemberBytes)
      fail(cat("has a file of more than ", kMostMemberBytes, " bytes, '", escape_controls(name_), "'"));
  }
}

}  // namespace fulgur
