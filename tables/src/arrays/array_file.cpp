#include "arrays/array_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "arrays/npy_header.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/checkpoint/zip_reader.h"
#include "fulgur/core/system/unique_fd.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {
namespace {

[[noreturn]] void bad_array(const std::filesystem::path& path, const std::string& what) {
  throw DataError(cat("[tables.arrays] '", escape_controls(path.string()), "' ", what));
}

std::string_view text_of(const Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

/// The bytes of a file (count), uint8.
Tensor read_bytes(const std::filesystem::path& path, bool memory_map) {
  const detail::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) bad_array(path, cat("cannot be opened: ", std::strerror(errno), ". Check the path."));
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode)) bad_array(path, "is not a regular file.");
  const auto size = static_cast<size_t>(found.st_size);
  if (memory_map && size > 0) {
    // Private: a step that writes into a batch does not change the file.
    void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
    if (memory == MAP_FAILED)
      bad_array(path, cat("cannot be mapped: ", std::strerror(errno), ". Set memory_map to false."));
    return at::from_blob(
        memory, {found.st_size}, [size](void* mapped) { ::munmap(mapped, size); }, at::kByte);
  }
  Tensor bytes = at::empty({found.st_size}, at::kByte);
  auto* to = static_cast<char*>(bytes.mutable_data_ptr());
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd.get(), to + done, size - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) bad_array(path, cat("cannot be read: ", std::strerror(errno), "."));
    if (got == 0) bad_array(path, "became shorter while it was read.");
    done += static_cast<size_t>(got);
  }
  return bytes;
}

at::ScalarType stored_dtype(const NpyHeader& header) {
  if (header.kind == 'b') return at::kByte;
  if (header.kind == 'f') return header.item_bytes == 2 ? at::kHalf : header.item_bytes == 4 ? at::kFloat : at::kDouble;
  if (header.item_bytes == 1) return header.kind == 'u' ? at::kByte : at::kChar;
  // Integers without a sign are read as those with one, and corrected.
  return header.item_bytes == 2 ? at::kShort : header.item_bytes == 4 ? at::kInt : at::kLong;
}

/// The array whose .npy file is `bytes`; shares their memory if it can.
Tensor from_npy(const Tensor& bytes, const std::string& name) {
  const NpyHeader header = read_npy_header(text_of(bytes), name);
  const auto begin = static_cast<int64_t>(header.data_begin);
  Tensor values = bytes.narrow(0, begin, bytes.numel() - begin);
  if (header.count() == 0) return at::empty(header.shape, header.kind == 'b' ? at::kBool : stored_dtype(header));
  const auto address = reinterpret_cast<uintptr_t>(values.const_data_ptr());
  if (address % static_cast<uintptr_t>(header.item_bytes) != 0 || begin % header.item_bytes != 0)
    values = values.clone();
  values = values.view(stored_dtype(header));
  if (header.kind == 'b') values = values.ne(0);
  if (header.kind == 'u' && header.item_bytes == 2) values = values.to(at::kInt).bitwise_and_(0xFFFF);
  if (header.kind == 'u' && header.item_bytes == 4) values = values.to(at::kLong).bitwise_and_(0xFFFFFFFFLL);
  if (header.kind == 'u' && header.item_bytes == 8 && values.min().item<int64_t>() < 0)
    throw DataError(cat("[tables.npy] ", name, " has a value of 2^63 or more, which int64 cannot hold."));
  if (!header.fortran_order) return values.view(header.shape);
  const std::vector<int64_t> reversed(header.shape.rbegin(), header.shape.rend());
  std::vector<int64_t> order(header.shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  return values.view(reversed).permute(order).contiguous();
}

std::string shown_source(const ArraySource& source) {
  return cat("'", escape_controls(source.path.string()), source.name.empty() ? "" : ":", escape_controls(source.name),
             "'");
}

Tensor from_npz(const ArraySource& source) {
  // NumPy adds the ending to the names.
  const std::string entry = source.name + ".npy";
  Tensor bytes;
  try {
    const detail::ZipReader zip(source.path,
                                {.component = "tables.npz", .writer = "numpy.savez", .may_be_compressed = true});
    const auto found = zip.entries().find(entry);
    if (found == zip.entries().end()) {
      std::vector<std::string> names;
      for (const auto& [name, about] : zip.entries())
        if (name.ends_with(".npy")) names.push_back(name.substr(0, name.size() - 4));
      bad_array(source.path,
                cat("has no array '", escape_controls(source.name), "'", as_sentence(did_you_mean(source.name, names)),
                    "It has ", escape_controls(join_some(names, 20)), "."));
    }
    bytes = at::empty({static_cast<int64_t>(found->second.bytes)}, at::kByte);
    zip.read(entry, found->second, bytes.mutable_data_ptr());
  } catch (const CheckpointError& error) {
    bad_array(source.path, cat("cannot be read: ", error.what()));
  }
  return from_npy(bytes, shown_source(source));
}

Tensor from_safetensors(const ArraySource& source) {
  try {
    SafetensorsFile file = read_safetensors(source.path);
    std::vector<std::string> names;
    for (auto& [name, tensor] : file.tensors) {
      if (name == source.name) return tensor.contiguous();
      names.push_back(name);
    }
    bad_array(source.path,
              cat("has no tensor '", escape_controls(source.name), "'", as_sentence(did_you_mean(source.name, names)),
                  "It has ", escape_controls(join_some(names, 20)), "."));
  } catch (const CheckpointError& error) {
    throw DataError(error.what());
  }
}

}  // namespace

ArraySource ArraySource::from(const std::string& text) {
  if (text.ends_with(".npy")) return {text, ""};
  for (const std::string_view ending : {".npz:", ".safetensors:"}) {
    const size_t found = text.rfind(ending);
    if (found == std::string::npos || found + ending.size() == text.size()) continue;
    return {text.substr(0, found + ending.size() - 1), text.substr(found + ending.size())};
  }
  throw ConfigError(
      cat("[data.ArrayDataModule] an array must be FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME; got '",
          escape_controls(text), "'."));
}

Tensor read_array(const ArraySource& source, bool memory_map) {
  if (source.path.extension() == ".npz") return from_npz(source);
  if (source.path.extension() == ".safetensors") return from_safetensors(source);
  return from_npy(read_bytes(source.path, memory_map), shown_source(source));
}

}  // namespace fulgur::tables
