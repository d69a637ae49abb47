#include "io/divided_tensors.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/element_bytes.h"
#include "io/folder_names.h"

namespace fulgur::detail {
namespace {

constexpr std::string_view kExtension = ".safetensors", kOf = "-of-";
constexpr size_t kNumberDigits = 5;

[[noreturn]] void bad_tensor(const DividedTensor& tensor, const std::string& what) {
  throw CheckpointError(cat("[checkpoint.manifest] it is damaged: the divided tensor '",
                            escape_controls(tensor.name.substr(0, 200)), "' ", what, "."));
}

std::string stem_of(std::string_view whole_file) {
  return cat(whole_file.substr(0, whole_file.size() - kExtension.size()), "-part-");
}

bool is_number(std::string_view text) {
  return text.size() >= kNumberDigits && text.size() <= 2 * kNumberDigits &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The number of elements; nullopt if no tensor can have this shape.
std::optional<uint64_t> elements_of(const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxDimensions) return std::nullopt;
  uint64_t product = 1;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(product, static_cast<uint64_t>(size), &product)) return std::nullopt;
  return product > INT64_MAX ? std::nullopt : std::optional(product);
}

void check_form(const DividedTensor& tensor) {
  if (element_bytes(tensor.dtype) == 0) bad_tensor(tensor, "has an unknown dtype");
  if (!elements_of(tensor.shape)) bad_tensor(tensor, "has a shape that no tensor can have");
  std::vector<int64_t> sorted = tensor.order, dimensions(tensor.shape.size());
  std::ranges::sort(sorted);
  std::iota(dimensions.begin(), dimensions.end(), int64_t{0});
  if (!sorted.empty() && sorted != dimensions) bad_tensor(tensor, "has an order that is not one of its dimensions");
  for (const TensorPiece& piece : tensor.pieces) {
    if (!piece.slice) continue;
    if (!tensor.order.empty()) bad_tensor(tensor, "has slices and an order in memory, which do not go together");
    if (const char* const problem = problem_of(*piece.slice, tensor.shape)) bad_tensor(tensor, problem);
  }
}

// The sizes of the pieces of each file.
using PieceBytes = std::map<std::string_view, std::map<std::string_view, uint64_t>>;

PieceBytes bytes_of_pieces(const std::map<std::string, FileRecord>& files, std::string_view whole_file) {
  PieceBytes bytes;
  for (const auto& [name, record] : files)
    if (is_part_file(name, whole_file))
      for (const FilePart& part : record.parts) bytes[name].emplace(part.name, part.bytes);
  return bytes;
}

// The elements of the whole tensor, or of the slice.
int64_t elements_of(const DividedTensor& tensor, const TensorPiece& piece) {
  return piece.slice ? elements_of(*piece.slice, tensor.shape)
                     : static_cast<int64_t>(elements_of(tensor.shape).value_or(0));
}

void check_places(const DividedTensor& tensor, const PieceBytes& bytes) {
  const auto size = static_cast<int64_t>(element_bytes(tensor.dtype));
  std::set<std::string_view> used;
  for (const TensorPiece& piece : tensor.pieces) {
    const auto file = bytes.find(piece.file);
    if (file == bytes.end())
      bad_tensor(tensor,
                 cat("has a piece in the file '", escape_controls(piece.file.substr(0, 200)), "', which has none"));
    const auto found = file->second.find(tensor.name);
    if (piece.begin < 0 || piece.count < 1 || piece.begin > elements_of(tensor, piece) - piece.count)
      bad_tensor(tensor, "has a piece that is outside of it");
    if (found == file->second.end() || piece.count > INT64_MAX / size ||
        found->second != static_cast<uint64_t>(piece.count * size))
      bad_tensor(tensor, cat("has a piece in ", piece.file, " that is not there, or is larger or smaller"));
    if (!used.insert(piece.file).second) bad_tensor(tensor, cat("has two pieces in ", piece.file));
  }
}

// For messages: what `in` elements are of.
std::string text_of(const std::optional<PieceSlice>& slice) {
  if (!slice) return {};
  return cat(" of the indices from ", slice->ranges.front().begin, " on of dimension ", slice->dim);
}

// Each index of the dimension must be in one slice.
void check_slices(const DividedTensor& tensor, const std::vector<const PieceSlice*>& slices) {
  std::vector<PieceSlice::Range> ranges;
  for (const PieceSlice* slice : slices) {
    if (slice->dim != slices.front()->dim) bad_tensor(tensor, "has slices of several dimensions");
    ranges.insert(ranges.end(), slice->ranges.begin(), slice->ranges.end());
  }
  std::ranges::sort(ranges);
  const std::string of = cat(" of dimension ", slices.front()->dim);
  int64_t end = 0;
  for (const PieceSlice::Range& range : ranges) {
    if (range.begin > end) bad_tensor(tensor, cat("lacks the indices ", end, " to ", range.begin - 1, of));
    if (range.begin < end) bad_tensor(tensor, cat("has the index ", range.begin, of, " twice"));
    end = range.begin + range.count;
  }
  if (const int64_t size = tensor.shape[static_cast<size_t>(slices.front()->dim)]; end != size)
    bad_tensor(tensor, cat("lacks the indices ", end, " to ", size - 1, of));
}

// The pieces of one slice after the other, each from its first element to its last.
void check_all_are_there(const DividedTensor& tensor) {
  if (tensor.pieces.empty()) {
    const auto elements = static_cast<int64_t>(elements_of(tensor.shape).value_or(0));
    if (elements > 0) bad_tensor(tensor, cat("lacks the elements 0 to ", elements - 1));
    return;
  }
  std::vector<const PieceSlice*> slices;
  int64_t end = 0;
  const auto end_slice = [&](const TensorPiece& last) {
    if (const int64_t elements = elements_of(tensor, last); end != elements)
      bad_tensor(tensor, cat("lacks the elements ", end, " to ", elements - 1, text_of(last.slice)));
  };
  for (const TensorPiece& piece : tensor.pieces) {
    const TensorPiece* const before = &piece == &tensor.pieces.front() ? nullptr : &piece - 1;
    if (before && before->slice != piece.slice) {
      if (!before->slice || !piece.slice) bad_tensor(tensor, "has parts of itself and parts of slices");
      end_slice(*before);
      end = 0;
    }
    if (piece.slice && (!before || before->slice != piece.slice)) slices.push_back(&*piece.slice);
    if (piece.begin != end)
      bad_tensor(tensor, cat(piece.begin > end ? cat("lacks the elements ", end, " to ", piece.begin - 1)
                                               : cat("has the element ", piece.begin, " twice"),
                             text_of(piece.slice)));
    end = piece.begin + piece.count;
  }
  end_slice(tensor.pieces.back());
  if (!slices.empty()) check_slices(tensor, slices);
}

}  // namespace

std::string part_file(std::string_view whole_file, int64_t rank, int64_t ranks) {
  return cat(stem_of(whole_file), five_digits(rank + 1), kOf, five_digits(ranks), kExtension);
}

bool is_part_file(std::string_view name, std::string_view whole_file) {
  const std::string stem = stem_of(whole_file);
  if (!name.starts_with(stem) || !name.ends_with(kExtension) || name.size() < stem.size() + kExtension.size())
    return false;
  const std::string_view numbers = name.substr(stem.size(), name.size() - stem.size() - kExtension.size());
  const size_t of = numbers.find(kOf);
  return of != std::string_view::npos && is_number(numbers.substr(0, of)) && is_number(numbers.substr(of + kOf.size()));
}

void check_divided(const DividedTensors& divided, const std::map<std::string, FileRecord>& files, bool complete) {
  for (const auto& [whole_file, tensors] : divided) {
    const PieceBytes bytes = bytes_of_pieces(files, whole_file);
    std::set<std::string_view> names;
    // A tensor that is whole has its name in the other file.
    if (const auto whole = files.find(whole_file); whole != files.end())
      for (const FilePart& part : whole->second.parts) names.insert(part.name);
    for (const DividedTensor& tensor : tensors) {
      if (!names.insert(tensor.name).second) bad_tensor(tensor, "is there twice");
      check_form(tensor);
      check_places(tensor, bytes);
      if (complete) check_all_are_there(tensor);
    }
  }
}

void sort_pieces(DividedTensor& tensor) {
  std::ranges::sort(tensor.pieces, [](const TensorPiece& a, const TensorPiece& b) {
    return std::tie(a.slice, a.begin) < std::tie(b.slice, b.begin);
  });
}

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& order) {
  std::vector<int64_t> dimensions = order, strides(shape.size());
  if (dimensions.empty()) {
    dimensions.resize(shape.size());
    std::iota(dimensions.begin(), dimensions.end(), int64_t{0});
  }
  int64_t stride = 1;
  for (size_t i = dimensions.size(); i-- > 0;) {
    const auto dimension = static_cast<size_t>(dimensions[i]);
    strides[dimension] = stride;
    stride *= std::max<int64_t>(shape[dimension], 1);
  }
  return strides;
}

std::vector<int64_t> order_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  std::vector<int64_t> order(shape.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  // The stride of a dimension of size 1 means nothing: it follows the dimension before it.
  std::vector<int64_t> meant = strides;
  for (size_t i = 1; i < shape.size(); ++i)
    if (shape[i] == 1) meant[i] = meant[i - 1];
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return meant[static_cast<size_t>(a)] > meant[static_cast<size_t>(b)]; });
  return std::ranges::is_sorted(order) ? std::vector<int64_t>{} : order;
}

}  // namespace fulgur::detail
