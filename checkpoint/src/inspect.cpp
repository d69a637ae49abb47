#include "fulgur/checkpoint/inspect.h"

#include "checked_folder.h"
#include "formats/safetensors_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/divided_tensors.h"
#include "io/element_bytes.h"
#include "io/input_file.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

bool is_safetensors(std::string_view name) { return name.ends_with(".safetensors"); }

}  // namespace

CheckpointInspection inspect_checkpoint(const fs::path& path) {
  CheckpointInspection out;
  const detail::CheckedFolder folder(path);
  const detail::Manifest& manifest = folder.manifest();
  out.summary = {path, manifest.epoch, manifest.global_step, manifest.weights_only, manifest.origin, std::nullopt};
  out.report = verify_checkpoint(path);
  for (const auto& [name, record] : manifest.files) {
    CheckpointInspection::File& file = out.files.emplace_back();
    file.name = name;
    file.bytes = record.bytes;
    if (!is_safetensors(name)) continue;
    try {
      detail::InputFile opened(path / name);
      const detail::SafetensorsHeader header = detail::read_safetensors_header(opened);
      for (const detail::SafetensorsEntry& entry : header.entries)
        file.tensors.push_back({entry.name, entry.dtype, entry.shape, entry.end - entry.begin});
      if (name != detail::kModelFile) continue;
      out.weights = file.tensors;
      for (const auto& [key, value] : header.metadata)
        if (key.starts_with("alias:")) out.aliases.emplace(key.substr(6), value);
    } catch (const CheckpointError&) {
      // The report contains it.
    }
  }
  if (const auto divided = manifest.divided.find(detail::kModelFile); divided != manifest.divided.end())
    for (const detail::DividedTensor& tensor : divided->second) {
      uint64_t bytes = detail::element_bytes(tensor.dtype);
      for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
      out.weights.push_back({tensor.name, tensor.dtype, tensor.shape, bytes});
    }
  if (!out.report.ok()) return out;
  try {
    out.state = read_checkpoint_state(path);
  } catch (const CheckpointError& error) {
    out.report.problems.push_back({detail::kStateFile, "", error.what()});
  }
  return out;
}

}  // namespace fulgur
