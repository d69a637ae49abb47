#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/inspect.h"
#include "io/manifest.h"

namespace fulgur::detail {

/// The weights or the optimizer states of a checkpoint, of which each tensor is read when it is needed. Tensors whose
/// parts are in several files are put together. Any thread may read.
class StoredTensors : public std::enable_shared_from_this<StoredTensors> {
 public:
  /// Those of `whole_file` and of the files with its parts. Reads the header of `whole_file` only. Throws a
  /// CheckpointError if it does not match the manifest.
  static std::shared_ptr<const StoredTensors> open(const std::filesystem::path& folder, const Manifest& manifest,
                                                   const std::string& whole_file);
  /// Compares the headers of the files with parts with the manifest, too.
  void check_headers() const;

  /// Those that are whole, in the order of their file, and then the divided ones.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Of `whole_file`.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Tensor `index`. Compares its bytes with the manifest. Throws a CheckpointError that names file and tensor.
  Tensor read(size_t index) const;
  /// Its elements `begin` to `begin + count`, in the order of their memory: [count]. Reads and compares the pieces that
  /// have some of them, whole, one after the other, and keeps no more of them.
  Tensor read_range(size_t index, int64_t begin, int64_t count) const;
  /// A tensor for each, which stands for its values (`stored_values.h`).
  NamedTensors stand_ins() const;

 private:
  // Consecutive bytes of a file, and their hash.
  struct Bytes {
    std::string file;
    uint64_t position = 0, bytes = 0, hash = 0;
  };
  // Elements of a tensor, or of a slice of it, from `begin` on, and where they are.
  struct Piece {
    Bytes bytes;
    int64_t begin = 0, count = 0;
    std::optional<PieceSlice> slice = {};
  };
  struct Place {
    std::vector<int64_t> strides;  // empty: row-major
    std::vector<Piece> pieces;
  };

  explicit StoredTensors(const std::filesystem::path& folder) : folder_(folder) {}
  static std::map<std::string_view, Bytes> parts_of(const std::string& file, const FileRecord& record);
  void add_whole(const Manifest& manifest, const std::string& file);
  void add_divided(const Manifest& manifest, const std::string& whole_file);
  void read_bytes(const Bytes& from, const std::string& name, char* data) const;
  /// Calls `use` with one block after the other, and its position; their sizes are multiples of those of elements.
  void read_blocks(const Bytes& from, const std::string& name,
                   const std::function<void(uint64_t position, std::string_view block)>& use) const;
  [[noreturn]] void report_change(const Bytes& from, const std::string& name) const;
  /// Copies what a piece has of the elements `range` to where they are in it.
  void copy_piece(const TensorInfo& info, const Piece& piece, int64_t begin, const Tensor& range) const;

  std::filesystem::path folder_;
  std::vector<TensorInfo> tensors_;
  std::vector<Place> places_;
  std::vector<Bytes> headers_;  // of files with parts
  std::map<std::string, std::string> metadata_;
};

}  // namespace fulgur::detail
