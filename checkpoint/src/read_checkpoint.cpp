#include <algorithm>
#include <exception>

#include "checked_folder.h"
#include "formats/state_json.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "stored_tensors.h"

namespace fulgur {
namespace fs = std::filesystem;
namespace {

using detail::CheckedFolder;

bool is_of_optimizers(std::string_view file) { return detail::belongs_to(file, detail::kOptimizerFile); }

detail::TensorMap by_name(NamedTensors tensors) {
  detail::TensorMap map;
  for (auto& [name, tensor] : tensors) map.emplace(std::move(name), std::move(tensor));
  return map;
}

void decode_into(CheckpointContent& content, const fs::path& path, const std::string& state, CheckpointParts parts,
                 const detail::TensorMap& optimizer_tensors, const detail::TensorMap& state_tensors) {
  try {
    detail::DecodedState decoded = detail::decode_state(state, parts, optimizer_tensors, state_tensors);
    content.state = std::move(decoded.state);
    content.optimizers = std::move(decoded.optimizers);
  } catch (const CheckpointError& error) {
    throw CheckpointError(
        cat(error.what(), " The file is ", escape_controls((path / detail::kStateFile).string()), "."));
  }
}

void throw_problems(const fs::path& path, const CheckedFolder& folder, CheckpointParts parts) {
  if (folder.problems().empty()) return;
  const bool unneeded =
      parts != CheckpointParts::all &&
      std::ranges::all_of(folder.problems(), [](const auto& problem) { return is_of_optimizers(problem.file); });
  throw CheckpointError(
      cat("[checkpoint.read] ", escape_controls(path.string()), " is damaged:\n", detail::text_of(folder.problems()),
          "\nUse another checkpoint of the run, or restore this one from a copy.",
          unneeded ? cat(" With --verify needed (load.verify), fit, validate, test and predict do not read ",
                         detail::kOptimizerFile, " if they do not need it.")
                   : ""));
}

// Those that are whole, and the divided ones.
detail::TensorMap tensors_of(CheckedFolder& folder, const char* file) {
  detail::TensorMap tensors;
  if (!folder.manifest().files.contains(file)) return tensors;
  tensors = by_name(folder.read_tensors(file).tensors);
  tensors.merge(by_name(folder.read_divided(file)));
  return tensors;
}

// Those that are whole, and what stands for the divided ones.
detail::TensorMap state_tensors_of(CheckedFolder& folder, const fs::path& path) {
  detail::TensorMap tensors;
  if (!folder.manifest().files.contains(detail::kStateTensorsFile)) return tensors;
  tensors = by_name(folder.read_tensors(detail::kStateTensorsFile).tensors);
  if (folder.problems().empty() && folder.manifest().divided.contains(detail::kStateTensorsFile))
    tensors.merge(
        by_name(detail::StoredTensors::open(path, folder.manifest(), detail::kStateTensorsFile)->stand_ins()));
  return tensors;
}

// The state, and what stands for weights and optimizer states.
CheckpointContent open_checkpoint(const fs::path& path, CheckpointParts parts, Verify verify) {
  CheckedFolder folder(path);
  if (verify == Verify::whole) folder.check_names_and_sizes();
  throw_problems(path, folder, parts);
  CheckpointContent content;
  content.origin = folder.manifest().origin;
  const std::string state = folder.read_text(detail::kStateFile);
  const detail::TensorMap state_tensors = state_tensors_of(folder, path);
  if (verify == Verify::whole)
    for (const auto& [name, record] : folder.manifest().files)
      if (name != detail::kStateFile && name != detail::kStateTensorsFile) folder.check_contents(name);
  throw_problems(path, folder, parts);
  const auto weights = detail::StoredTensors::open(path, folder.manifest(), detail::kModelFile);
  content.module = weights->stand_ins();
  content.aliases = detail::aliases_in(weights->metadata());
  detail::TensorMap optimizer_tensors;
  if (parts == CheckpointParts::all)
    optimizer_tensors =
        by_name(detail::StoredTensors::open(path, folder.manifest(), detail::kOptimizerFile)->stand_ins());
  decode_into(content, path, state, parts, optimizer_tensors, state_tensors);
  return content;
}

}  // namespace

CheckpointContent read_checkpoint(const fs::path& path, CheckpointParts parts, Verify verify, ReadTensors when) {
  if (when == ReadTensors::when_needed) return open_checkpoint(path, parts, verify);
  CheckedFolder folder(path);
  if (verify == Verify::whole) folder.check_names_and_sizes();
  throw_problems(path, folder, parts);
  CheckpointContent content;
  content.origin = folder.manifest().origin;
  const bool with_optimizers = parts == CheckpointParts::all;
  SafetensorsFile weights = folder.read_tensors(detail::kModelFile);
  const std::string state = folder.read_text(detail::kStateFile);
  const detail::TensorMap state_tensors = tensors_of(folder, detail::kStateTensorsFile);
  NamedTensors divided = folder.read_divided(detail::kModelFile);
  detail::TensorMap optimizer_tensors;
  if (with_optimizers) {
    optimizer_tensors = tensors_of(folder, detail::kOptimizerFile);
  } else if (verify == Verify::whole) {
    for (const auto& [name, record] : folder.manifest().files)
      if (is_of_optimizers(name)) folder.check_contents(name);
  }
  throw_problems(path, folder, parts);
  content.module = std::move(weights.tensors);
  std::ranges::move(divided, std::back_inserter(content.module));
  content.aliases = detail::aliases_in(weights.metadata);
  decode_into(content, path, state, parts, optimizer_tensors, state_tensors);
  return content;
}

StateTree read_checkpoint_state(const fs::path& path) {
  CheckedFolder folder(path);
  const detail::TensorMap tensors = state_tensors_of(folder, path);
  const std::string text = folder.read_text(detail::kStateFile);
  throw_problems(path, folder, CheckpointParts::all);
  return detail::decode_state(text, CheckpointParts::weights_and_state, {}, tensors).state;
}

std::string CheckpointProblem::describe() const {
  std::string text = file;
  if (!part.empty()) text += cat(": '", part, "'");
  if (!text.empty()) text += " ";
  return escape_controls(text + message);
}

std::string VerifyReport::describe() const { return detail::text_of(problems); }

VerifyReport verify_checkpoint(const fs::path& path, Verify verify) {
  VerifyReport report;
  try {
    CheckedFolder folder(path);
    if (verify == Verify::whole) folder.check_names_and_sizes();
    if (folder.problems().empty())
      for (const auto& [name, record] : folder.manifest().files)
        if (verify == Verify::whole || !is_of_optimizers(name)) folder.check_contents(name);
    report.problems = folder.problems();
  } catch (const std::exception& error) {
    report.problems.push_back({"", "", error.what()});
  }
  return report;
}

}  // namespace fulgur
