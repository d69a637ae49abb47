#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/tensor.h"

namespace fulgur {

/// Writes a safetensors file in blocks of rows, so that no tensor must be in memory as a whole.
class FULGUR_API SafetensorsWriter {
 public:
  /// A tensor of the file; its first dimension counts its rows.
  struct Entry {
    std::string name;
    at::ScalarType dtype;
    std::vector<int64_t> shape;
  };

  /// Throws a CheckpointError if the format cannot hold such tensors.
  static void check(const std::vector<Entry>& entries);

  /// Creates the file, which must not exist, with the header for `entries`. Throws a CheckpointError that names path
  /// and reason.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<Entry>& entries);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  /// Writes `rows` (of the CPU, contiguous) as rows of the entry `index` from `first_row` on.
  void write(size_t index, int64_t first_row, const Tensor& rows);
  /// Syncs and closes, once every row was written.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
