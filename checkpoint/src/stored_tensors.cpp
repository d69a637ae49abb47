#include "stored_tensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "formats/safetensors_file.h"
#include "fulgur/core/state/stored_values.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/hash.h"
#include "io/input_file.h"

namespace fulgur::detail {
namespace fs = std::filesystem;

namespace {

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
    places_.push_back({.strides = {}, .pieces = {part->second}});
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
      place.pieces.push_back(files.at(piece.file).at(tensor.name));
      info.bytes += place.pieces.back().bytes;
    }
  }
}

void StoredTensors::check_headers() const {
  for (const Bytes& header : headers_) {
    std::string unused(header.bytes, '\0');
    read_bytes(header, kHeaderPart, unused.data());
  }
}

void StoredTensors::read_bytes(const Bytes& from, const std::string& name, char* data) const {
  InputFile file(folder_ / from.file);
  file.move_to(from.position);
  file.read(data, from.bytes);
  if (hash_of({data, from.bytes}) != from.hash)
    throw CheckpointError(cat("[checkpoint.read] ", escape_controls((folder_ / from.file).string()), ": '",
                              escape_controls(name),
                              "' has changed since it was written (its hash differs). Use another checkpoint of the "
                              "run, or restore this one from a copy."));
}

Tensor StoredTensors::read(size_t index) const {
  const TensorInfo& info = tensors_.at(index);
  const Place& place = places_[index];
  const Tensor tensor = empty_tensor({.name = info.name, .dtype = info.dtype, .shape = info.shape});
  auto* next = static_cast<char*>(tensor.mutable_data_ptr());
  for (const Bytes& piece : place.pieces) {
    read_bytes(piece, info.name, next);
    next += piece.bytes;
  }
  return place.strides.empty() ? tensor : tensor.as_strided(info.shape, place.strides);
}

Tensor StoredTensors::read_range(size_t index, int64_t begin, int64_t count) const {
  const TensorInfo& info = tensors_.at(index);
  const Tensor range = empty_tensor({.name = info.name, .dtype = info.dtype, .shape = {count}});
  const auto bytes = static_cast<uint64_t>(range.element_size());
  const uint64_t from = static_cast<uint64_t>(begin) * bytes, to = from + range.nbytes();
  uint64_t position = 0;  // of the piece, in the tensor
  for (const Bytes& piece : places_[index].pieces) {
    const uint64_t first = std::max(from, position), last = std::min(to, position + piece.bytes);
    if (first < last) {
      auto* const target = static_cast<char*>(range.mutable_data_ptr()) + (first - from);
      if (last - first == piece.bytes) {
        read_bytes(piece, info.name, target);
      } else {
        // The hash is that of the whole piece.
        const Tensor whole = at::empty({static_cast<int64_t>(piece.bytes)}, at::kByte);
        auto* const data = static_cast<char*>(whole.mutable_data_ptr());
        read_bytes(piece, info.name, data);
        std::memcpy(target, data + (first - position), last - first);
      }
    }
    position += piece.bytes;
  }
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
