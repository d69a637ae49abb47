#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/export.h"
#include "fulgur/core/state/tensor.h"

namespace fulgur {

/// Writes a safetensors file in blocks of rows, so that no tensor needs to be in memory as a whole.
class FULGUR_API SafetensorsWriter {
 public:
  /// A tensor of the file; its first dimension is the number of rows.
  struct Entry {
    std::string name;
    at::ScalarType dtype;
    std::vector<int64_t> shape;
  };

  /// Throws a CheckpointError if the format cannot hold these tensors.
  static void check(const std::vector<Entry>& entries);

  /// Creates the file, which must not exist, with the header for `entries`. Throws a CheckpointError that names path
  /// and reason.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<Entry>& entries);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  /// Writes `rows` (on the CPU, contiguous) as rows of the entry `index`, starting at `first_row`.
  void write(size_t index, int64_t first_row, const Tensor& rows);
  /// Syncs and closes, after all rows were written.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
