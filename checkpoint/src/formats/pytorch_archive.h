#pragma once

// Free of LibTorch, so that it can be fuzzed on its own.
#include "formats/state_dict_pickle.h"
#include "formats/zip_reader.h"

namespace fulgur::detail {

/// What torch.save wrote for a state dict: the zip archive with its pickle, read and checked; the storages that tensors
/// need are there, with the sizes that the pickle says. Throws a CheckpointError without a path.
class PytorchArchive {
 public:
  explicit PytorchArchive(ZipReader zip);

  const PickledStateDict& content() const { return content_; }
  /// The bytes of storage number `storage`, which a tensor uses, into `data`.
  void read_storage(size_t storage, void* data) const;

 private:
  std::string name_of(const PickledStorage& storage) const;
  ZipReader zip_;
  std::string root_;  // folder of the archive that all entries lie in, with its slash
  PickledStateDict content_;
};

/// True where `start`, the first bytes of a file, are those of a zip archive.
bool looks_like_zip(std::string_view start);

}  // namespace fulgur::detail
