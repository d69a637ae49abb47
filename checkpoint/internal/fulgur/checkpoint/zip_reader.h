#pragma once

// Independent of LibTorch.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

struct zip;
struct zip_source;

namespace fulgur::detail {

/// Which archives are read, and how messages name them.
struct ZipRules {
  const char* component = "checkpoint.pytorch";
  const char* writer = "torch.save";
  bool may_be_compressed = false;  ///< by deflate
};

/// A zip archive, by default of uncompressed entries as written by torch.save. Encrypted entries, duplicate names or
/// names that lead out of the archive, and overlapping entries are refused with CheckpointErrors, and so are compressed
/// ones that the rules do not allow or that claim to be larger than deflate can make them.
class ZipReader {
 public:
  struct Entry {
    uint64_t index = 0, bytes = 0;
  };

  /// Opens a regular file.
  explicit ZipReader(const std::filesystem::path& path, ZipRules rules = {});
  /// An archive in memory, which must outlive the reader.
  explicit ZipReader(std::string_view archive, ZipRules rules = {});

  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  /// Reads the bytes of `entry` into `data`, which must be large enough, and checks their CRC-32.
  void read(const std::string& name, const Entry& entry, void* data) const;

 private:
  struct Closer {
    void operator()(zip* archive) const;
  };
  void open(zip_source* source, uint64_t bytes);
  void list(uint64_t bytes);
  [[noreturn]] void refuse(const std::string& what) const;
  ZipRules rules_;
  std::unique_ptr<zip, Closer> archive_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace fulgur::detail
