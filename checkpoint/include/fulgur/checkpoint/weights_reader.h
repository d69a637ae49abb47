#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/inspect.h"

namespace fulgur {

/// The weights of a checkpoint, one after the other, so that memory is needed for one of them only. Tensors whose parts
/// are in several files are put together.
class FULGUR_API WeightsReader {
 public:
  /// With `Verify::whole`, compares all files that have no weights with the manifest. Throws a CheckpointError that
  /// names each wrong file.
  explicit WeightsReader(const std::filesystem::path& checkpoint, Verify verify = Verify::whole);
  ~WeightsReader();
  WeightsReader(WeightsReader&&) noexcept;
  WeightsReader& operator=(WeightsReader&&) noexcept;

  /// Those that are whole, in the order of their file, and then the divided ones.
  const std::vector<TensorInfo>& tensors() const;
  /// Tied parameter → name it is stored under.
  const std::map<std::string, std::string>& aliases() const;
  /// Reads tensor `index`, and compares its bytes with the manifest. Throws a CheckpointError that names file and
  /// tensor.
  Tensor read(size_t index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
