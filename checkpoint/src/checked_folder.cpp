#include "checked_folder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "formats/safetensors_file.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/system/durable_file.h"
#include "fulgur/core/text/text.h"
#include "io/hash.h"
#include "io/input_file.h"
#include "nearby_checkpoints.h"

namespace fulgur::detail {
namespace fs = std::filesystem;
namespace {

constexpr const char* kChanged = "has changed since it was written (its hash differs)";

void check_is_folder(const fs::path& folder) {
  const std::string shown = escape_controls(folder.string());
  std::error_code error;
  const auto status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found) {
    const bool is_link = fs::is_symlink(fs::symlink_status(folder, error));
    if (shown == "best" || shown == "last")
      throw CheckpointError(cat("[checkpoint.read] here a checkpoint is given by its path, and there is no ", shown,
                                "; the words last and best are for ckpt_path.", nearby_checkpoints(folder),
                                " The checkpoints of a run are in its folder checkpoints, with the links ",
                                run_layout::kLast, " and ", run_layout::kBest, "."));
    const std::string hint = is_link ? "" : did_you_mean(shown, {"best", "last"});
    throw CheckpointError(cat("[checkpoint.read] ", shown,
                              is_link ? " is a link to a path that does not exist" : " does not exist",
                              hint.empty() ? "." : hint, nearby_checkpoints(folder),
                              " Give the path of a checkpoint; ckpt_path may also be last or best."));
  }
  if (status.type() == fs::file_type::none || status.type() == fs::file_type::unknown)
    throw CheckpointError(cat("[checkpoint.read] ", shown, " cannot be read: ", error.message(), "."));
  if (status.type() == fs::file_type::directory) return;
  std::string hint;
  if (status.type() == fs::file_type::regular) hint = InputFile(folder).looks_like();
  if (fs::exists(folder.parent_path() / kManifestFile, error))
    hint += cat(" It belongs to the checkpoint ", escape_controls(folder.parent_path().string()), ".");
  throw CheckpointError(cat("[checkpoint.read] ", shown, " is not a checkpoint: a checkpoint is a folder with ",
                            kManifestFile, " and ", kModelFile, ".", hint));
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  std::error_code ignored;
  if (fs::symlink_status(path, ignored).type() == fs::file_type::not_found) {
    for (const fs::path& last : {folder / run_layout::kLast, folder / run_layout::kCheckpoints / run_layout::kLast})
      if (fs::exists(last, ignored))
        throw CheckpointError(cat("[checkpoint.read] ", escape_controls(folder.string()),
                                  " is a folder of checkpoints, not a checkpoint; its newest is ",
                                  escape_controls(last.string()), "."));
    const bool named_as_one = folder.extension() == run_layout::kExtension;
    throw CheckpointError(cat("[checkpoint.read] ", escape_controls(folder.string()),
                              named_as_one ? " is an incomplete checkpoint: " : " is not a checkpoint: ", kManifestFile,
                              " is missing.", named_as_one ? "" : nearby_checkpoints(folder)));
  }
  const std::string text = read_file(path, kMaxManifestBytes);
  try {
    return manifest_from_text(text);
  } catch (const CheckpointError& error) {
    throw CheckpointError(cat(error.what(), text.starts_with("{") ? "" : InputFile(path).looks_like(), " The file is ",
                              escape_controls(path.string()), "."));
  }
}

}  // namespace

// Reads a file part by part, and reports for each whether it matches the manifest.
class CheckedFolder::PartReader {
 public:
  // Opens the file; if that fails or its size differs, records a problem and reads nothing.
  PartReader(CheckedFolder& folder, const std::string& file)
      : folder_(folder), name_(file), record_(folder.manifest_.files.at(file)) {
    try {
      file_.emplace(folder.folder_ / file);
    } catch (const CheckpointError& error) {
      folder_.add_problem(name_, "", error.what());
      return;
    }
    if (file_->size() == record_.bytes) return;
    const std::string hint = file_->looks_like();
    if (file_->size() < record_.bytes)
      folder_.add_problem(name_, "",
                          cat("is truncated: it has ", file_->size(), " of ", record_.bytes, " bytes.", hint));
    else
      folder_.add_problem(name_, "", cat("has ", file_->size(), " bytes; ", record_.bytes, " were written.", hint));
    file_.reset();
  }

  bool good() const { return file_.has_value(); }
  const FileRecord& record() const { return record_; }

  // Reads the next part into `data`, which must be large enough.
  bool read(const FilePart& part, void* data) {
    auto* next = static_cast<char*>(data);
    for (uint64_t left = part.bytes; left > 0;) {
      const uint64_t block = std::min<uint64_t>(left, kBlockBytes);
      file_->read(next, block);
      hasher_.update(next, block);
      next += block;
      left -= block;
    }
    return compare(part);
  }

  bool skip(const FilePart& part) {
    scratch_.resize(kBlockBytes);
    for (uint64_t left = part.bytes; left > 0;) {
      const uint64_t block = std::min<uint64_t>(left, kBlockBytes);
      file_->read(scratch_.data(), block);
      hasher_.update(scratch_.data(), block);
      left -= block;
    }
    return compare(part);
  }

 private:
  static constexpr uint64_t kBlockBytes = 256u << 10;

  bool compare(const FilePart& part) {
    const bool same = hasher_.digest() == part.hash;
    hasher_.reset();
    if (!same) folder_.add_problem(name_, part.name, kChanged + first_hint());
    return same;
  }

  // A file of the right size may still be something completely different.
  std::string first_hint() const {
    const std::string hint = file_->looks_like();
    return hint.empty() ? "" : "." + hint;
  }

  CheckedFolder& folder_;
  const std::string& name_;
  const FileRecord& record_;
  std::optional<InputFile> file_;
  Hasher hasher_;
  std::vector<char> scratch_;
};

CheckedFolder::CheckedFolder(const fs::path& folder) : folder_(folder) {
  check_is_folder(folder);
  manifest_ = read_manifest(folder);
}

void CheckedFolder::add_problem(std::string file, std::string part, std::string message) {
  problems_.push_back({std::move(file), std::move(part), std::move(message)});
}

void CheckedFolder::check_names_and_sizes() {
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name != kManifestFile && !manifest_.files.contains(name))
      add_problem(name, "", "does not belong to the checkpoint");
  }
  if (error) add_problem("", "", cat("the folder cannot be read: ", error.message()));
  for (const auto& [name, record] : manifest_.files) {
    const fs::path path = folder_ / name;
    if (fs::symlink_status(path, error).type() == fs::file_type::not_found)
      add_problem(name, "", "is missing");
    else
      PartReader(*this, name);
  }
}

void CheckedFolder::check_contents(const std::string& file) {
  PartReader reader(*this, file);
  if (!reader.good()) return;
  for (const FilePart& part : reader.record().parts) reader.skip(part);
}

std::string CheckedFolder::read_text(const std::string& file) {
  PartReader reader(*this, file);
  if (!reader.good()) return {};
  std::string text(reader.record().bytes, '\0');
  char* next = text.data();
  for (const FilePart& part : reader.record().parts) {
    reader.read(part, next);
    next += part.bytes;
  }
  return text;
}

std::map<std::string, std::string> CheckedFolder::read_entries(
    const std::string& file, const std::function<void*(const SafetensorsEntry&)>& place) {
  PartReader reader(*this, file);
  if (!reader.good()) return {};
  const FileRecord& record = reader.record();
  const FilePart& first = record.parts.front();
  SafetensorsHeader header;
  if (first.bytes < 8 || first.bytes > kMaxHeaderBytes + 16) {
    add_problem(file, first.name, "has a size that no header can have");
    return {};
  }
  std::string text(first.bytes, '\0');
  bool usable = reader.read(first, text.data());
  if (usable) {
    unsigned char length[8];
    std::copy_n(text.begin(), 8, length);
    try {
      if (header_length(length) != text.size() - 8)
        throw CheckpointError("[checkpoint.safetensors] damaged header: the stored length does not match.");
      header = parse_safetensors_header(std::string_view(text).substr(8), record.bytes - first.bytes);
      usable = std::equal(header.entries.begin(), header.entries.end(), record.parts.begin() + 1, record.parts.end(),
                          [](const SafetensorsEntry& entry, const FilePart& part) {
                            return entry.name == part.name && entry.end - entry.begin == part.bytes;
                          });
      if (!usable) add_problem(file, first.name, "lists different tensors than the manifest");
    } catch (const CheckpointError& error) {
      usable = false;
      add_problem(file, first.name, error.what());
    }
  }
  for (size_t i = 1; i < record.parts.size(); ++i) {
    // Even without its header a file is searched for further damage.
    void* const data = usable ? place(header.entries[i - 1]) : nullptr;
    if (data)
      reader.read(record.parts[i], data);
    else
      reader.skip(record.parts[i]);
  }
  return std::move(header.metadata);
}

SafetensorsFile CheckedFolder::read_tensors(const std::string& file) {
  SafetensorsFile out;
  out.metadata = read_entries(file, [&](const SafetensorsEntry& entry) {
    return out.tensors.emplace_back(entry.name, empty_tensor(entry)).second.mutable_data_ptr();
  });
  return out;
}

NamedTensors CheckedFolder::read_divided(const std::string& whole_file) {
  NamedTensors tensors;
  const auto divided = manifest_.divided.find(whole_file);
  if (divided == manifest_.divided.end()) return tensors;
  // Of the pieces of each file, by the tensor's name.
  struct Place {
    const DividedTensor* tensor;
    const TensorPiece* piece;
    Tensor values;  // of the tensor, in its memory's order
    Tensor read;    // what the file has, if that is a slice
  };
  std::map<std::string_view, std::map<std::string_view, Place>> places;
  for (const DividedTensor& tensor : divided->second) {
    const Tensor dense = empty_tensor({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    for (const TensorPiece& piece : tensor.pieces)
      places[piece.file].emplace(tensor.name, Place{&tensor, &piece, dense.flatten(), Tensor()});
    tensors.emplace_back(tensor.name, dense.as_strided(tensor.shape, strides_of(tensor.shape, tensor.order)));
  }
  for (auto& [file, of_file] : places) {
    read_entries(std::string(file), [&](const SafetensorsEntry& entry) -> void* {
      const auto found = of_file.find(entry.name);
      if (found == of_file.end()) return nullptr;
      Place& place = found->second;
      if (entry.dtype != place.tensor->dtype) {
        add_problem(std::string(file), entry.name,
                    cat("has dtype ", entry.dtype, "; the manifest says ", place.tensor->dtype));
        return nullptr;
      }
      if (!place.piece->slice)
        return static_cast<char*>(place.values.mutable_data_ptr()) + place.piece->begin * place.values.element_size();
      place.read = at::empty({place.piece->count}, place.values.options());
      return place.read.mutable_data_ptr();
    });
    for (auto& [name, place] : of_file)
      if (const Tensor read = std::exchange(place.read, Tensor()); read.defined())
        for_each_run(place.piece->slice, place.tensor->shape, place.piece->begin, place.piece->count,
                     [&](int64_t in_tensor, int64_t in_slice, int64_t count) {
                       const int64_t size = read.element_size();
                       std::memcpy(
                           static_cast<char*>(place.values.mutable_data_ptr()) + in_tensor * size,
                           static_cast<const char*>(read.const_data_ptr()) + (in_slice - place.piece->begin) * size,
                           static_cast<size_t>(count * size));
                     });
  }
  return tensors;
}

std::map<std::string, std::string> aliases_in(const std::map<std::string, std::string>& metadata) {
  constexpr std::string_view kPrefix = "alias:";
  std::map<std::string, std::string> aliases;
  for (const auto& [key, value] : metadata)
    if (key.starts_with(kPrefix)) aliases.emplace(key.substr(kPrefix.size()), value);
  return aliases;
}

std::string text_of(const std::vector<CheckpointProblem>& problems) {
  constexpr size_t kShown = 20;
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(problems.size(), kShown); ++i) lines.push_back("  " + problems[i].describe());
  if (problems.size() > kShown) lines.push_back(cat("  … and ", problems.size() - kShown, " more"));
  return join(lines, "\n");
}

}  // namespace fulgur::detail
