#pragma once

// Independent of LibTorch, so that it can be fuzzed on its own.
#include "formats/state_dict_pickle.h"
#include "fulgur/checkpoint/zip_reader.h"

namespace fulgur::detail {

/// A state dict written by torch.save: the zip archive and its pickle, read and checked; the storages that tensors need
/// exist, with the sizes in the pickle. Throws a CheckpointError without a path.
class PytorchArchive {
 public:
  explicit PytorchArchive(ZipReader zip);

  const PickledStateDict& content() const { return content_; }
  /// Reads storage number `storage`, used by a tensor, into `data`.
  void read_storage(size_t storage, void* data) const;

 private:
  std::string name_of(const PickledStorage& storage) const;
  ZipReader zip_;
  std::string root_;  // folder of the archive that contains all entries, with its slash
  PickledStateDict content_;
};

/// True if `start`, the first bytes of a file, are those of a zip archive.
bool looks_like_zip(std::string_view start);

}  // namespace fulgur::detail
