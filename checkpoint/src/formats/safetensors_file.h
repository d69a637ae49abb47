#pragma once

#include "formats/safetensors_header.h"
#include "fulgur/checkpoint/safetensors.h"
#include "io/manifest.h"

namespace fulgur::detail {

class InputFile;

/// The part of a safetensors file before its tensors, in its FileRecord. The part of a tensor has the tensor's name.
inline constexpr const char* kHeaderPart = "(header)";

/// Like write_safetensors; returns sizes and hashes of the header and of each tensor. Contiguous CPU tensors are
/// written directly, without any LibTorch operation.
FileRecord write_safetensors_file(const std::filesystem::path& path, const NamedTensors& tensors,
                                  const std::map<std::string, std::string>& metadata);

/// Approximate number of bytes that write_safetensors_file will write, without the header.
uint64_t safetensors_bytes(const NamedTensors& tensors);

/// Like safetensors_dtype; throws a CheckpointError that names `tensor` if the format cannot hold the dtype.
const char* name_of_dtype(at::ScalarType dtype, const std::string& tensor);

/// Everything in a file before its tensors.
std::string make_safetensors_prefix(const SafetensorsHeader& header);

/// The length of the header, from the first 8 bytes of a file.
uint64_t header_length(const unsigned char (&bytes)[8]);

/// Reads the header from the beginning of the file; then the file is positioned at the tensors. Throws a
/// CheckpointError for a file that cannot have one.
SafetensorsHeader read_safetensors_header(InputFile& file);

/// An uninitialised tensor for `entry`.
Tensor empty_tensor(const SafetensorsEntry& entry, at::Device device = at::kCPU);

}  // namespace fulgur::detail
