#include "fulgur/checkpoint/new_file.h"

#include <cerrno>
#include <cstdint>
#include <random>
#include <system_error>
#include <utility>

#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"

namespace fulgur::detail {

NewFile::NewFile(const std::filesystem::path& folder, const std::string& name, std::string function)
    : path_(folder / name), hidden_(folder / cat(".", name, ".tmp")), function_(std::move(function)) {
  std::error_code ignored;
  std::filesystem::remove(hidden_, ignored);
}

NewFile::~NewFile() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove(published_ ? path_ : hidden_, ignored);
}

void NewFile::publish() {
  std::error_code error;
  std::filesystem::rename(hidden_, path_, error);
  if (error) throw CheckpointError(cat("[", function_, "] ", path_, " could not be written: ", error.message(), "."));
  published_ = true;
}

std::filesystem::path unused_sibling(const std::filesystem::path& path) {
  // Random, as processes of several containers or machines may have the same id.
  std::random_device random;
  const uint64_t number = (uint64_t{random()} << 32) | random();
  return folder_of(path) / cat(".", path.filename().string(), ".", number, ".tmp");
}

void write_durably(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path hidden = unused_sibling(path);
  try {
    DurableFile file(hidden);
    file.write(text);
    file.commit();
    if (system_calls().rename(hidden.c_str(), path.c_str()) != 0) throw_errno("renaming a file", path, errno);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(hidden, ignored);
    throw;
  }
  sync_folder(folder_of(path));
}

}  // namespace fulgur::detail
