#include "formats/zip_writer.h"

#include <fcntl.h>
#include <unistd.h>
#include <zip.h>

#include <cerrno>

#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr uint64_t kAlignment = 64;
// Sizes in the format: a local header without its name, the head of an extra field, the extra field of a large entry.
constexpr uint64_t kLocalHeader = 30, kExtraHead = 4, kLargeExtra = 20;
constexpr uint16_t kPaddingId = 0x4246;     // "FB", as in torch.save
constexpr uint16_t kFirstDay = 1 << 5 | 1;  // 1 January 1980

}  // namespace

void ZipWriter::Closer::operator()(zip* archive) const { zip_discard(archive); }

ZipWriter::ZipWriter(std::filesystem::path path) : path_(std::move(path)) {
  int code = 0;
  archive_.reset(zip_open(path_.c_str(), ZIP_CREATE | ZIP_EXCL, &code));
  if (archive_) return;
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string reason = code == ZIP_ER_EXISTS ? "File exists" : zip_error_strerror(&error);
  zip_error_fini(&error);
  throw CheckpointError(
      cat("[checkpoint] creating a file failed; ", escape_controls(path_.string()), ": ", reason, "."));
}

void ZipWriter::fail(const char* what) const {
  zip_error_t* error = zip_get_error(archive_.get());
  if (zip_error_system_type(error) == ZIP_ET_SYS) throw_errno(what, path_, zip_error_code_system(error));
  throw CheckpointError(
      cat("[checkpoint] ", what, " failed; ", escape_controls(path_.string()), ": ", zip_error_strerror(error), "."));
}

void ZipWriter::add(const std::string& name, const void* data, uint64_t bytes) {
  zip_source_t* source = zip_source_buffer(archive_.get(), bytes > 0 ? data : nullptr, bytes, 0);
  if (source == nullptr) fail("writing");
  const zip_int64_t index = zip_file_add(archive_.get(), name.c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(source);
    fail("writing");
  }
  const auto entry = static_cast<zip_uint64_t>(index);
  const uint64_t large = bytes > UINT32_MAX ? kLargeExtra : 0;
  const uint64_t header = offset_ + kLocalHeader + name.size() + large + kExtraHead;
  const std::vector<zip_uint8_t> padding((kAlignment - header % kAlignment) % kAlignment);
  if (zip_set_file_compression(archive_.get(), entry, ZIP_CM_STORE, 0) != 0 ||
      zip_file_set_dostime(archive_.get(), entry, 0, kFirstDay, 0) != 0 ||
      zip_file_extra_field_set(archive_.get(), entry, kPaddingId, ZIP_EXTRA_FIELD_NEW, padding.data(),
                               static_cast<zip_uint16_t>(padding.size()), ZIP_FL_LOCAL) != 0)
    fail("writing");
  offset_ = header + padding.size() + bytes;
}

void ZipWriter::commit() {
  // libzip writes into a temporary file and renames it.
  if (zip_close(archive_.get()) != 0) fail("writing");
  (void)archive_.release();
  const detail::UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  int error = fd ? 0 : errno;
  while (fd && ::fsync(fd.get()) != 0) {
    error = errno;
    if (error != EINTR) break;
    error = 0;
  }
  if (error == 0) return;
  ::unlink(path_.c_str());
  throw_errno("syncing", path_, error);
}

}  // namespace fulgur::detail
