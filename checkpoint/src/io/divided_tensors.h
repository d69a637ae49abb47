#pragma once

// Independent of LibTorch.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_record.h"
#include "io/tensor_slices.h"

namespace fulgur::detail {

/// Consecutive elements of a divided tensor, or of a slice of it. In `file` they are a vector with the tensor's name.
struct TensorPiece {
  std::string file;
  int64_t begin = 0, count = 0;
  std::optional<PieceSlice> slice = {};  ///< nullopt: of the whole tensor
};

/// A tensor whose elements are in several files.
struct DividedTensor {
  std::string name;
  std::string dtype;  ///< as in safetensors files: `F32`
  std::vector<int64_t> shape;
  /// Of the dimensions in memory, from the slowest to the fastest; empty: row-major, as with slices.
  std::vector<int64_t> order;
  std::vector<TensorPiece> pieces;
};

/// By the file that has the tensors that are whole: `model.safetensors`, `optimizer.safetensors`, `state.safetensors`.
using DividedTensors = std::map<std::string, std::vector<DividedTensor>>;

/// The file in which process `rank` of `ranks` writes its pieces: `model-part-00001-of-00008.safetensors` for rank 0.
std::string part_file(std::string_view whole_file, int64_t rank, int64_t ranks);
/// Whether `name` is such a file of `whole_file`.
bool is_part_file(std::string_view name, std::string_view whole_file);
/// Whether `name` is `whole_file` or one with parts of its tensors.
inline bool belongs_to(std::string_view name, std::string_view whole_file) {
  return name == whole_file || is_part_file(name, whole_file);
}

/// Throws a CheckpointError unless each tensor has a shape and an order that a tensor can have, and each piece is in
/// one of `files`, with the bytes of its elements. With `complete`, the pieces must also be all elements, each once, in
/// their order: one slice after the other.
void check_divided(const DividedTensors& divided, const std::map<std::string, FileRecord>& files, bool complete);
/// Puts pieces into that order.
void sort_pieces(DividedTensor& tensor);

/// The strides of a dense tensor with this shape and order.
std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& order);
/// The order of the dimensions of a dense tensor in its memory; empty if it is row-major.
std::vector<int64_t> order_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

}  // namespace fulgur::detail
