#include "fulgur/checkpoint/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "formats/safetensors_file.h"
#include "fulgur/core/text/text.h"
#include "io/hashed_file.h"
#include "io/input_file.h"

namespace fulgur {
namespace detail {
namespace {

constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {{at::kBool, "BOOL"},
                                                              {at::kByte, "U8"},
                                                              {at::kChar, "I8"},
                                                              {at::kShort, "I16"},
                                                              {at::kUInt16, "U16"},
                                                              {at::kHalf, "F16"},
                                                              {at::kBFloat16, "BF16"},
                                                              {at::kInt, "I32"},
                                                              {at::kUInt32, "U32"},
                                                              {at::kFloat, "F32"},
                                                              {at::kLong, "I64"},
                                                              {at::kUInt64, "U64"},
                                                              {at::kDouble, "F64"},
                                                              {at::kFloat8_e5m2, "F8_E5M2"},
                                                              {at::kFloat8_e4m3fn, "F8_E4M3"}};

void check_can_be_written(const std::string& name, const Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided)
    throw CheckpointError(cat("[checkpoint.safetensors] '", escape_controls(name), "' is ",
                              tensor.defined() ? "a sparse tensor" : "undefined", ", which the format cannot hold."));
}

bool is_plain(const Tensor& tensor) { return tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_neg(); }

Tensor plain(const Tensor& tensor) {
  if (is_plain(tensor)) return tensor;
  at::NoGradGuard no_grad;
  return tensor.detach().to(at::kCPU).resolve_neg().contiguous();
}

}  // namespace

const char* name_of_dtype(at::ScalarType dtype, const std::string& tensor) {
  if (const char* text = safetensors_dtype(dtype)) return text;
  throw CheckpointError(cat("[checkpoint.safetensors] '", escape_controls(tensor), "' has dtype ", c10::toString(dtype),
                            ", which the format cannot hold."));
}

std::string make_safetensors_prefix(const SafetensorsHeader& header) {
  const std::string text = make_safetensors_header(header);
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  return prefix + text;
}

uint64_t safetensors_bytes(const NamedTensors& tensors) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    check_can_be_written(name, tensor);
    bytes += tensor.nbytes();
  }
  return bytes;
}

FileRecord write_safetensors_file(const std::filesystem::path& path, const NamedTensors& tensors,
                                  const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    check_can_be_written(name, tensor);
    const auto bytes = static_cast<uint64_t>(tensor.nbytes());
    header.entries.push_back(
        {name, name_of_dtype(tensor.scalar_type(), name), tensor.sizes().vec(), offset, offset + bytes});
    offset += bytes;
  }
  const std::string prefix = make_safetensors_prefix(header);
  HashedFile file(path, prefix.size() + offset);
  file.begin_part(kHeaderPart);
  file.write(prefix);
  for (const auto& [name, tensor] : tensors) {
    file.begin_part(name);
    const Tensor on_host = plain(tensor);
    file.write(on_host.const_data_ptr(), on_host.nbytes());
  }
  return file.commit();
}

uint64_t header_length(const unsigned char (&bytes)[8]) {
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return length;
}

SafetensorsHeader read_safetensors_header(InputFile& file) {
  const std::string hint = file.looks_like();
  if (file.size() < 8) throw CheckpointError(cat("truncated: it has ", file.size(), " of at least 8 bytes.", hint));
  unsigned char length[8];
  file.read(length, sizeof length);
  const uint64_t header_bytes = header_length(length);
  if (header_bytes > kMaxHeaderBytes)
    throw CheckpointError(
        cat("the header claims ", header_bytes, " bytes; at most ", kMaxHeaderBytes, " are allowed.", hint));
  if (header_bytes > file.size() - 8)
    throw CheckpointError(cat("truncated: it has ", file.size(), " of at least ", header_bytes + 8, " bytes.", hint));
  std::string text(header_bytes, '\0');
  file.read(text.data(), text.size());
  return parse_safetensors_header(text, file.size() - 8 - header_bytes);
}

Tensor empty_tensor(const SafetensorsEntry& entry, at::Device device) {
  for (const auto& [type, text] : kDtypes)
    if (entry.dtype == text) return at::empty(entry.shape, at::TensorOptions().dtype(type).device(device));
  throw CheckpointError(cat("[checkpoint.safetensors] unknown dtype '", escape_controls(entry.dtype), "'."));
}

}  // namespace detail

const char* safetensors_dtype(at::ScalarType dtype) {
  for (const auto& [type, text] : detail::kDtypes)
    if (type == dtype) return text;
  return nullptr;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  detail::write_safetensors_file(path, tensors, metadata);
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  detail::InputFile file(path);
  try {
    const detail::SafetensorsHeader header = detail::read_safetensors_header(file);
    SafetensorsFile out;
    out.metadata = header.metadata;
    for (const auto& entry : header.entries) {
      Tensor tensor = detail::empty_tensor(entry);
      file.read(tensor.mutable_data_ptr(), entry.end - entry.begin);
      out.tensors.emplace_back(entry.name, std::move(tensor));
    }
    return out;
  } catch (const CheckpointError& error) {
    throw CheckpointError(cat(escape_controls(path.string()), ": ", error.what()));
  }
}

}  // namespace fulgur
