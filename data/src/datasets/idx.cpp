#include "datasets/idx.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& rule_and_finding, const char* advice) {
  throw DataError(cat("[data.read_idx] ", rule_and_finding, "; file ", escape_controls(path.string()), ". ", advice));
}

constexpr const char* kFetchAgain = "The file is damaged or not what its name says; fetch it again.";

std::string hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : bytes) {
    if (!out.empty()) out += ' ';
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

/// Plain and gzip files alike: zlib passes through data without a gzip header.
class Stream {
 public:
  explicit Stream(const std::filesystem::path& path) : path_(path), file_(gzopen(path.c_str(), "rbe")) {
    if (file_ == nullptr)
      fail(path, cat("the file must be readable; ", std::strerror(errno)), "Check its permissions.");
    gzbuffer(file_, 1 << 17);
  }
  ~Stream() { gzclose_r(file_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool is_gzip() { return gzdirect(file_) == 0; }

  /// Bytes read; fewer than requested only at the end.
  size_t read(uint8_t* to, size_t count) {
    size_t done = 0;
    while (done < count) {
      // gzread counts in int.
      const auto part = static_cast<unsigned>(std::min<size_t>(count - done, size_t{1} << 30));
      const int got = gzread(file_, to + done, part);
      int code = Z_OK;
      const char* reason = gzerror(file_, &code);
      if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
        if (code == Z_BUF_ERROR)
          fail(path_,
               cat("the gzip data must be complete; it ends too early, ", done + static_cast<size_t>(std::max(got, 0)),
                   " bytes into the expected data"),
               kFetchAgain);
        fail(path_,
             cat("the file must be readable; ", code == Z_ERRNO ? std::strerror(errno) : escape_controls(reason)),
             kFetchAgain);
      }
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

 private:
  const std::filesystem::path& path_;
  gzFile file_;
};

}  // namespace

std::vector<int64_t> parse_idx_header(std::span<const uint8_t> header, size_t dims, uint64_t memory_limit,
                                      const std::filesystem::path& path) {
  if (header.size() < 4) fail(path, cat("an idx file begins with 4 bytes; got ", header.size()), kFetchAgain);
  if (header[0] != 0 || header[1] != 0)
    fail(path, cat("an idx file begins with 00 00 08 0", dims, "; got ", hex(header.first(4))), kFetchAgain);
  if (header[2] != 0x08)
    fail(path, cat("only idx files of unsigned bytes (type 08) can be read; got type ", hex(header.subspan(2, 1))),
         "Convert it, or fetch the right file.");
  if (header[3] != dims)
    fail(path, cat("the idx file must have ", dims, " dimensions; got ", static_cast<int>(header[3])),
         "Images have 3 dimensions, labels 1: are the files mixed up?");
  if (header.size() < 4 + 4 * dims)
    fail(path, cat("the header must have ", 4 + 4 * dims, " bytes; got ", header.size()), kFetchAgain);
  std::vector<int64_t> sizes;
  uint64_t product = 1;
  for (size_t i = 0; i < dims; ++i) {
    const uint8_t* b = header.data() + 4 + 4 * i;
    const uint64_t size = uint64_t{b[0]} << 24 | uint64_t{b[1]} << 16 | uint64_t{b[2]} << 8 | b[3];
    if (size == 0)
      fail(path, cat("every dimension must be at least 1; dimension ", i, " is 0"),
           "The file holds no samples; fetch it again.");
    // At most 2^63 here: the product so far is at most 2^31 (the limit), the size below 2^32.
    product *= size;
    if (product > memory_limit)
      fail(path,
           cat("the data must fit into ", memory_limit, " bytes; the header's first ", i + 1, " dimensions require ",
               product),
           kFetchAgain);
    sizes.push_back(static_cast<int64_t>(size));
  }
  return sizes;
}

namespace {

constexpr size_t header_bytes(size_t dims) { return 4 + 4 * dims; }

/// The file positioned after its header, and the sizes from the header.
struct OpenIdx {
  OpenIdx(const std::filesystem::path& path, size_t dims, uint64_t memory_limit)
      : file_size(size_of(path, dims)), stream(path) {
    std::array<uint8_t, header_bytes(kIdxMaxDims)> header{};
    const size_t got = stream.read(header.data(), header_bytes(dims));
    sizes = parse_idx_header(std::span<const uint8_t>(header).first(got), dims, std::min(memory_limit, kIdxMemoryLimit),
                             path);
  }
  /// First, what can be checked without reading the file.
  static uint64_t size_of(const std::filesystem::path& path, size_t dims) {
    if (dims < 1 || dims > kIdxMaxDims)
      fail(path, cat("1 to ", kIdxMaxDims, " dimensions can be read; got ", dims), "");
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) fail(path, "the file must exist; it does not", "Check the data folder.");
    if (!std::filesystem::is_regular_file(status))
      fail(path, "an idx file must be a regular file; this is not one", "Check the data folder.");
    const uint64_t size = std::filesystem::file_size(path, error);
    if (error) fail(path, cat("the file's size must be readable; ", error.message()), "Check its permissions.");
    if (size == 0) fail(path, "the file must not be empty; got 0 bytes", kFetchAgain);
    return size;
  }
  uint64_t file_size;
  Stream stream;
  std::vector<int64_t> sizes;
};

}  // namespace

std::vector<int64_t> read_idx_sizes(const std::filesystem::path& path, size_t dims) {
  return OpenIdx(path, dims, kIdxMemoryLimit).sizes;
}

IdxArray read_idx(const std::filesystem::path& path, size_t dims, uint64_t memory_limit) {
  OpenIdx file(path, dims, memory_limit);
  IdxArray array;
  array.dims = file.sizes;
  array.size = 1;
  for (const int64_t size : array.dims) array.size *= static_cast<size_t>(size);

  // Before allocating: reject sizes that the file cannot contain (deflate's best ratio is 1032).
  const bool gzip = file.stream.is_gzip();
  constexpr uint64_t kDeflateRatio = 1032;
  if (!gzip && file.file_size != header_bytes(dims) + array.size)
    fail(path,
         cat("the header requires ", header_bytes(dims) + array.size, " bytes, including itself; the file has ",
             file.file_size),
         kFetchAgain);
  if (gzip && array.size / kDeflateRatio > file.file_size)
    fail(path,
         cat("the header requires ", array.size, " bytes of data; ", file.file_size,
             " compressed bytes cannot hold them"),
         kFetchAgain);

  array.values = std::make_unique_for_overwrite<uint8_t[]>(array.size);
  const size_t data = file.stream.read(array.values.get(), array.size);
  if (data < array.size)
    fail(path, cat("the header requires ", array.size, " bytes of data; the file holds ", data), kFetchAgain);
  uint8_t extra = 0;
  if (file.stream.read(&extra, 1) != 0)
    fail(path, cat("the header requires ", array.size, " bytes of data; the file holds more"), kFetchAgain);
  return array;
}

}  // namespace fulgur
