#include "fulgur/checkpoint/weights_reader.h"

#include <algorithm>
#include <utility>

#include "checked_folder.h"
#include "formats/safetensors_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/hash.h"
#include "io/input_file.h"

namespace fulgur {
namespace fs = std::filesystem;

namespace {

// Consecutive bytes of a tensor, and where they are.
struct Bytes {
  std::string file;
  uint64_t position = 0, bytes = 0, hash = 0;
};

struct StoredTensor {
  std::vector<int64_t> strides;
  std::vector<Bytes> pieces;
};

bool has_weights(std::string_view file) {
  return file == detail::kModelFile || detail::is_part_file(file, detail::kModelFile);
}

// The position and the hash of each part of a file, by its name.
std::map<std::string_view, Bytes> parts_of(const std::string& file, const detail::FileRecord& record) {
  std::map<std::string_view, Bytes> parts;
  uint64_t position = 0;
  for (const detail::FilePart& part : record.parts) {
    parts.emplace(part.name, Bytes{file, position, part.bytes, part.hash});
    position += part.bytes;
  }
  return parts;
}

}  // namespace

struct WeightsReader::Impl {
  explicit Impl(const fs::path& path, Verify verify) : folder(path) {
    detail::CheckedFolder checked(path);
    if (verify == Verify::whole) {
      checked.check_names_and_sizes();
      for (const auto& [name, record] : checked.manifest().files)
        if (!has_weights(name)) checked.check_contents(name);
    }
    if (!checked.problems().empty())
      throw CheckpointError(cat("[checkpoint.read] ", escape_controls(path.string()), " is damaged:\n",
                                detail::text_of(checked.problems()),
                                "\nUse another checkpoint of the run, or restore this one from a copy."));
    for (const auto& [name, record] : checked.manifest().files)
      if (verify == Verify::whole && has_weights(name))
        read_bytes(parts_of(name, record).at(detail::kHeaderPart), detail::kHeaderPart);
    add_whole(checked.manifest());
    add_divided(checked.manifest());
  }

  void add_whole(const detail::Manifest& manifest) {
    const auto parts = parts_of(detail::kModelFile, manifest.files.at(detail::kModelFile));
    const std::string header_bytes = read_bytes(parts.at(detail::kHeaderPart), detail::kHeaderPart);
    detail::InputFile file(folder / detail::kModelFile);
    const detail::SafetensorsHeader header = detail::read_safetensors_header(file);
    for (const detail::SafetensorsEntry& entry : header.entries) {
      const auto part = parts.find(entry.name);
      if (part == parts.end() || part->second.bytes != entry.end - entry.begin)
        throw CheckpointError(cat("[checkpoint.read] ", escape_controls((folder / detail::kModelFile).string()),
                                  " lists other tensors than the manifest."));
      tensors.push_back({entry.name, entry.dtype, entry.shape, part->second.bytes});
      stored.push_back({.strides = {}, .pieces = {part->second}});
    }
    for (const auto& [key, value] : header.metadata)
      if (key.starts_with("alias:")) aliases.emplace(key.substr(6), value);
  }

  void add_divided(const detail::Manifest& manifest) {
    const auto divided = manifest.divided.find(detail::kModelFile);
    if (divided == manifest.divided.end()) return;
    std::map<std::string, std::map<std::string_view, Bytes>> files;
    for (const auto& [name, record] : manifest.files)
      if (has_weights(name)) files.emplace(name, parts_of(name, record));
    for (const detail::DividedTensor& tensor : divided->second) {
      TensorInfo& info = tensors.emplace_back(TensorInfo{tensor.name, tensor.dtype, tensor.shape, 0});
      StoredTensor& pieces = stored.emplace_back();
      pieces.strides = detail::strides_of(tensor.shape, tensor.order);
      for (const detail::TensorPiece& piece : tensor.pieces) {
        pieces.pieces.push_back(files.at(piece.file).at(tensor.name));
        info.bytes += pieces.pieces.back().bytes;
      }
    }
  }

  void read_bytes(const Bytes& from, const std::string& name, char* data) const {
    detail::InputFile file(folder / from.file);
    file.move_to(from.position);
    file.read(data, from.bytes);
    if (detail::hash_of({data, from.bytes}) != from.hash)
      throw CheckpointError(cat("[checkpoint.read] ", escape_controls((folder / from.file).string()), ": '",
                                escape_controls(name),
                                "' has changed since it was written (its hash differs). Use another checkpoint of the "
                                "run, or restore this one from a copy."));
  }

  std::string read_bytes(const Bytes& from, const std::string& name) const {
    std::string text(from.bytes, '\0');
    read_bytes(from, name, text.data());
    return text;
  }

  fs::path folder;
  std::vector<TensorInfo> tensors;
  std::vector<StoredTensor> stored;
  std::map<std::string, std::string> aliases;
};

WeightsReader::WeightsReader(const fs::path& checkpoint, Verify verify)
    : impl_(std::make_unique<Impl>(checkpoint, verify)) {}
WeightsReader::~WeightsReader() = default;
WeightsReader::WeightsReader(WeightsReader&&) noexcept = default;
WeightsReader& WeightsReader::operator=(WeightsReader&&) noexcept = default;

const std::vector<TensorInfo>& WeightsReader::tensors() const { return impl_->tensors; }
const std::map<std::string, std::string>& WeightsReader::aliases() const { return impl_->aliases; }

Tensor WeightsReader::read(size_t index) const {
  const TensorInfo& info = impl_->tensors.at(index);
  const StoredTensor& stored = impl_->stored[index];
  const Tensor tensor = detail::empty_tensor({.name = info.name, .dtype = info.dtype, .shape = info.shape});
  auto* next = static_cast<char*>(tensor.mutable_data_ptr());
  for (const Bytes& piece : stored.pieces) {
    impl_->read_bytes(piece, info.name, next);
    next += piece.bytes;
  }
  return stored.strides.empty() ? tensor : tensor.as_strided(info.shape, stored.strides);
}

}  // namespace fulgur
