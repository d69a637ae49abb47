#include "stored_tensors.h"

#include <algorithm>
#include <cstring>

#include "formats/safetensors_file.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/element_bytes.h"
#include "io/hash.h"
#include "io/input_file.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

namespace {

// A multiple of the sizes of all elements.
constexpr uint64_t kReadAtOnce = uint64_t{256} << 10;

class TensorInFiles final : public StoredValues {
 public:
  TensorInFiles(std::shared_ptr<const StoredTensors> of, size_t index) : of_(std::move(of)), index_(index) {}
  Tensor read() const override { return of_->read(index_); }
  Tensor read_range(int64_t begin, int64_t count) const override { return of_->read_range(index_, begin, count); }

 private:
  std::shared_ptr<const StoredTensors> of_;
  size_t index_;
};

}  // namespace

std::shared_ptr<const StoredTensors> StoredTensors::open(const fs::path& folder, const Manifest& manifest,
                                                         const std::string& whole_file) {
  // make_shared cannot call the constructor.
  const std::shared_ptr<StoredTensors> tensors(new StoredTensors(folder));
  tensors->add_whole(manifest, whole_file);
  tensors->add_divided(manifest, whole_file);
  return tensors;
}

std::map<std::string_view, StoredTensors::Bytes> StoredTensors::parts_of(const std::string& file,
                                                                         const FileRecord& record) {
  std::map<std::string_view, Bytes> parts;
  uint64_t position = 0;
  for (const FilePart& part : record.parts) {
    parts.emplace(part.name, Bytes{file, position, part.bytes, part.hash});
    position += part.bytes;
  }
  return parts;
}

void StoredTensors::add_whole(const Manifest& manifest, const std::string& file) {
  const auto parts = parts_of(file, manifest.files.at(file));
  const Bytes& header_bytes = parts.at(kHeaderPart);
  std::string unused(header_bytes.bytes, '\0');
  read_bytes(header_bytes, kHeaderPart, unused.data());
  InputFile input(folder_ / file);
  SafetensorsHeader header = read_safetensors_header(input);
  for (const SafetensorsEntry& entry : header.entries) {
    const auto part = parts.find(entry.name);
    if (part == parts.end() || part->second.bytes != entry.end - entry.begin)
      throw CheckpointError(cat("[checkpoint.read] ", escape_controls((folder_ / file).string()),
                                " lists other tensors than the manifest."));
    tensors_.push_back({entry.name, entry.dtype, entry.shape, part->second.bytes});
    const auto size = static_cast<int64_t>(element_bytes(entry.dtype));
    Piece whole{.bytes = part->second, .begin = 0, .count = static_cast<int64_t>(part->second.bytes) / size};
    places_.push_back({.strides = {}, .pieces = {std::move(whole)}});
  }
  metadata_ = std::move(header.metadata);
}

void StoredTensors::add_divided(const Manifest& manifest, const std::string& whole_file) {
  const auto divided = manifest.divided.find(whole_file);
  if (divided == manifest.divided.end()) return;
  std::map<std::string, std::map<std::string_view, Bytes>> files;
  for (const auto& [name, record] : manifest.files) {
    if (!belongs_to(name, whole_file)) continue;
    const auto& parts = files.emplace(name, parts_of(name, record)).first->second;
    if (name != whole_file) headers_.push_back(parts.at(kHeaderPart));
  }
  for (const DividedTensor& tensor : divided->second) {
    TensorInfo& info = tensors_.emplace_back(TensorInfo{tensor.name, tensor.dtype, tensor.shape, 0});
    Place& place = places_.emplace_back();
    place.strides = strides_of(tensor.shape, tensor.order);
    for (const TensorPiece& piece : tensor.pieces) {
      const Bytes& bytes = files.at(piece.file).at(tensor.name);
      place.pieces.push_back({.bytes = bytes, .begin = piece.begin, .count = piece.count, .slice = piece.slice});
      info.bytes += bytes.bytes;
    }
  }
}

void StoredTensors::check_headers() const {
  for (const Bytes& header : headers_) {
    std::string unused(header.bytes, '\0');
    read_bytes(header, kHeaderPart, unused.data());
  }
}

void StoredTensors::report_change(const Bytes& from, const std::string& name) const {
  throw CheckpointError(cat("[checkpoint.read] ", escape_controls((folder_ / from.file).string()), ": '",
                            escape_controls(name),
                            "' has changed since it was written (its hash differs). Use another checkpoint of the "
                            "run, or restore this one from a copy."));
}

void StoredTensors::read_bytes(const Bytes& from, const std::string& name, char* data) const {
  InputFile file(folder_ / from.file);
  file.move_to(from.position);
  file.read(data, from.bytes);
  if (hash_of({data, from.bytes}) != from.hash) report_change(from, name);
}

void StoredTensors::read_blocks(const Bytes& from, const std::string& name,
                                const std::function<void(uint64_t, std::string_view)>& use) const {
  InputFile file(folder_ / from.file);
  file.move_to(from.position);
  Hasher hasher;
  std::vector<char> block(std::min(from.bytes, kReadAtOnce));
  for (uint64_t position = 0; position < from.bytes;) {
    const uint64_t bytes = std::min(from.bytes - position, kReadAtOnce);
    file.read(block.data(), bytes);
    hasher.update(block.data(), bytes);
    use(position, {block.data(), bytes});
    position += bytes;
  }
  if (hasher.digest() != from.hash) report_change(from, name);
}

void StoredTensors::copy_piece(const TensorInfo& info, const Piece& piece, int64_t begin, const Tensor& range) const {
  const int64_t size = range.element_size(), end = begin + range.numel();
  auto* const data = static_cast<char*>(range.mutable_data_ptr());
  if (!piece.slice && piece.begin >= begin && piece.begin + piece.count <= end)
    return read_bytes(piece.bytes, info.name, data + (piece.begin - begin) * size);
  if (piece.count == 0) return;
  // What is before the first element of a slice, and after its last, needs not be read.
  int64_t first_there = INT64_MAX, last_there = 0;
  for (const int64_t at : {piece.begin, piece.begin + piece.count - 1})
    for_each_run(piece.slice, info.shape, at, 1, [&](int64_t in_tensor, int64_t, int64_t) {
      first_there = std::min(first_there, in_tensor);
      last_there = std::max(last_there, in_tensor);
    });
  if (last_there < begin || first_there >= end) return;
  read_blocks(piece.bytes, info.name, [&](uint64_t position, std::string_view block) {
    const int64_t from = piece.begin + static_cast<int64_t>(position) / size;
    for_each_run(piece.slice, info.shape, from, static_cast<int64_t>(block.size()) / size,
                 [&](int64_t in_tensor, int64_t in_slice, int64_t count) {
                   const int64_t first = std::max(in_tensor, begin), last = std::min(in_tensor + count, end);
                   if (first < last)
                     std::memcpy(data + (first - begin) * size,
                                 block.data() + (in_slice - from + first - in_tensor) * size,
                                 static_cast<size_t>((last - first) * size));
                 });
  });
}

Tensor StoredTensors::read(size_t index) const {
  const TensorInfo& info = tensors_.at(index);
  const Place& place = places_[index];
  const Tensor tensor = empty_tensor({.name = info.name, .dtype = info.dtype, .shape = info.shape});
  for (const Piece& piece : place.pieces) copy_piece(info, piece, 0, tensor);
  return place.strides.empty() ? tensor : tensor.as_strided(info.shape, place.strides);
}

Tensor StoredTensors::read_range(size_t index, int64_t begin, int64_t count) const {
  const TensorInfo& info = tensors_.at(index);
  const Tensor range = empty_tensor({.name = info.name, .dtype = info.dtype, .shape = {count}});
  if (count > 0)
    for (const Piece& piece : places_[index].pieces) copy_piece(info, piece, begin, range);
  return range;
}

NamedTensors StoredTensors::stand_ins() const {
  NamedTensors tensors;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& info = tensors_[i];
    const SafetensorsEntry like{.name = info.name, .dtype = info.dtype, .shape = info.shape};
    Tensor whole = empty_tensor(like, at::kMeta);
    if (!places_[i].strides.empty()) whole = whole.as_strided(info.shape, places_[i].strides);
    tensors.emplace_back(info.name, stand_in(whole, c10::make_intrusive<TensorInFiles>(shared_from_this(), i)));
  }
  return tensors;
}

}  // namespace fulgur::detail
