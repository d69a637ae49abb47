#include "fulgur/checkpoint/new_file.h"

#include <system_error>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

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

}  // namespace fulgur::detail
