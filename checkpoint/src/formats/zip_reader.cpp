#include "fulgur/checkpoint/zip_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "formats/shown_name.h"
#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr uint64_t kMaxEntries = 1u << 20;

/// Deflate makes at most 1032 bytes of one.
constexpr uint64_t kMostInflation = 1032;

// Nothing is written under these names, but a file that contains such a name was not made by torch.save or NumPy.
bool is_plain_name(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.size() > 4096 || !is_utf8(name)) return false;
  if (std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < 32 || c == '\\' || c == 127; }))
    return false;
  return std::ranges::none_of(split_text(name, '/'),
                              [](const std::string& part) { return part == ".." || part == "."; });
}

}  // namespace

void ZipReader::refuse(const std::string& what) const { throw CheckpointError(cat("[", rules_.component, "] ", what)); }

void ZipReader::Closer::operator()(zip* archive) const { zip_discard(archive); }

ZipReader::ZipReader(const std::filesystem::path& path, ZipRules rules) : rules_(rules) {
  detail::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) throw_errno("opening", path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) refuse("it is not a regular file.");
  std::FILE* file = fdopen(fd.get(), "rb");
  if (file == nullptr) throw_errno("opening", path, errno);
  (void)fd.release();
  zip_source_t* source = zip_source_filep_create(file, 0, -1, nullptr);
  if (source == nullptr) {
    std::fclose(file);
    refuse("the archive cannot be opened: out of memory.");
  }
  open(source, static_cast<uint64_t>(info.st_size));
}

ZipReader::ZipReader(std::string_view archive, ZipRules rules) : rules_(rules) {
  zip_source_t* source = zip_source_buffer_create(archive.data(), archive.size(), 0, nullptr);
  if (source == nullptr) refuse("the archive cannot be opened: out of memory.");
  open(source, archive.size());
}

void ZipReader::open(zip_source* source, uint64_t bytes) {
  zip_error_t error;
  zip_error_init(&error);
  archive_.reset(zip_open_from_source(source, ZIP_RDONLY, &error));
  const std::string reason = archive_ ? "" : zip_error_strerror(&error);
  zip_error_fini(&error);
  if (!archive_) {
    zip_source_free(source);
    refuse(cat("damaged or truncated: no zip archive can be read from it (", reason, ")."));
  }
  list(bytes);
}

void ZipReader::list(uint64_t bytes) {
  const auto count = static_cast<uint64_t>(zip_get_num_entries(archive_.get(), 0));
  if (count > kMaxEntries) refuse(cat("it has ", count, " entries; at most ", kMaxEntries, " are allowed."));
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) {
    zip_stat_t about;
    constexpr zip_uint64_t kNeeded =
        ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(archive_.get(), i, ZIP_FL_ENC_RAW, &about) != 0 || (about.valid & kNeeded) != kNeeded)
      refuse(cat("entry ", i, " of the archive cannot be read (", zip_strerror(archive_.get()), ")."));
    const std::string_view name = about.name;
    if (!is_plain_name(name))
      refuse(cat("the archive has an entry named ", shown_name(name), ", which ", rules_.writer, " never writes."));
    if (about.encryption_method != ZIP_EM_NONE) refuse(cat(shown_name(name), " is encrypted."));
    const bool is_stored = about.comp_method == ZIP_CM_STORE && about.comp_size == about.size;
    const bool is_deflated = rules_.may_be_compressed && about.comp_method == ZIP_CM_DEFLATE;
    if (!is_stored && !is_deflated)
      refuse(cat(shown_name(name),
                 rules_.may_be_compressed ? " is compressed by another method than deflate; " : " is compressed; ",
                 rules_.writer, " never does that. Unpack the archive and pack it with `zip -0`, or save it again."));
    // This bounds their size by that of the file, so that a small file cannot request much memory.
    if (about.comp_size > bytes - sum)
      refuse(cat("its entries have more bytes than the file: ", shown_name(name), " claims ", about.comp_size, " of ",
                 bytes, "."));
    if (about.size / kMostInflation > about.comp_size)
      refuse(cat(shown_name(name), " claims ", about.size, " bytes, which cannot be compressed to ", about.comp_size,
                 "."));
    sum += about.comp_size;
    if (!entries_.emplace(std::string(name), Entry{i, about.size}).second)
      refuse(cat("the archive has two entries named ", shown_name(name), "."));
  }
}

void ZipReader::read(const std::string& name, const Entry& entry, void* data) const {
  const std::unique_ptr<zip_file_t, int (*)(zip_file_t*)> file(zip_fopen_index(archive_.get(), entry.index, 0),
                                                               &zip_fclose);
  if (!file) refuse(cat(shown_name(name), " cannot be read (", zip_strerror(archive_.get()), ")."));
  auto* next = static_cast<char*>(data);
  uint64_t left = entry.bytes;
  char surplus = 0;
  // Read one byte more than there is: the checksum is compared at the end.
  while (true) {
    const zip_int64_t got = left > 0 ? zip_fread(file.get(), next, left) : zip_fread(file.get(), &surplus, 1);
    if (got < 0) {
      const bool checksum = zip_error_code_zip(zip_file_get_error(file.get())) == ZIP_ER_CRC;
      refuse(cat(shown_name(name), " is damaged (", zip_file_strerror(file.get()), ").",
                 checksum ? " Files saved with torch.serialization.set_crc32_options(False) have no checksums: save "
                            "it again without this setting."
                          : ""));
    }
    if (got == 0) break;
    if (left == 0) refuse(cat(shown_name(name), " has more bytes than the archive says."));
    next += got;
    left -= static_cast<uint64_t>(got);
  }
  if (left > 0) refuse(cat(shown_name(name), " is truncated: ", left, " of ", entry.bytes, " bytes are missing."));
}

}  // namespace fulgur::detail
