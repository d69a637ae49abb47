#include "fulgur/checkpoint/checkpoint_writer.h"

#include "fulgur/core/contracts/registry.h"

namespace fulgur {

CheckpointWriter::~CheckpointWriter() = default;

std::filesystem::path CheckpointWriter::write(const std::filesystem::path& folder, const CheckpointContent& content) {
  return write_verified_checkpoint(folder, content);
}

[[maybe_unused]] static const bool registered_checkpoint_writer = Registry<CheckpointWriter>::add<CheckpointWriter>(
    "folder", "Writes a folder, and compares it with what was written.");

}  // namespace fulgur
