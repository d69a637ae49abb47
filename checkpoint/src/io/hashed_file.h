#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fulgur/core/system/durable_file.h"
#include "io/hash.h"
#include "io/manifest.h"

namespace fulgur::detail {

/// A DurableFile that hashes what is written, as a whole and by part.
class HashedFile {
 public:
  /// `bytes` bytes must be written in total.
  HashedFile(const std::filesystem::path& path, uint64_t bytes) : file_(path) { file_.reserve(bytes); }
  /// What is written from now on belongs to the part `name`.
  void begin_part(std::string name);
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Syncs and closes; returns sizes and hashes of what was written.
  FileRecord commit();

 private:
  void end_part();
  DurableFile file_;
  Hasher whole_, part_;
  FileRecord record_;
};

}  // namespace fulgur::detail
