#include "writing/checkpoint_plan.h"

#include <algorithm>
#include <unordered_map>

#include "formats/safetensors_file.h"
#include "formats/state_json.h"
#include "fulgur/core/state/tensor_slice.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

int64_t progress_number(const StateTree& state, std::string_view name) {
  if (!state.contains("progress") || !state.at("progress").contains(name)) return 0;
  const StateTree& value = state.at("progress").at(name);
  return value.holds<int64_t>() ? value.as_int() : 0;
}

// Counted as in the names of checkpoints: the current epoch, or else the last completed one.
int64_t epoch_of(const StateTree& state) {
  const int64_t epoch = progress_number(state, "epoch");
  if (!state.contains("progress") || !state.at("progress").contains("batches")) return epoch;
  const StateTree& batches = state.at("progress").at("batches");
  const bool between = batches.is_map() && batches.contains("completed") && batches.at("completed").holds<int64_t>() &&
                       batches.at("completed").as_int() == 0;
  return between ? std::max<int64_t>(epoch - 1, 0) : epoch;
}

std::optional<PieceSlice> slice_in_manifest(const Tensor& whole) {
  const TensorSlice* const slice = slice_of(whole);
  if (!slice) return std::nullopt;
  PieceSlice written{.dim = slice->dim};
  for (const auto& [begin, count] : slice->ranges) written.ranges.push_back({begin, count});
  return written;
}

// Takes the divided tensors out of `tensors`, and plans this process's parts of them.
void take_divided(CheckpointPlan& plan, const char* file, NamedTensors& tensors,
                  std::unordered_map<const void*, const TensorPart*>& parts) {
  std::vector<DividedTensor> divided;
  NamedTensors whole, own;
  for (auto& [name, tensor] : tensors) {
    if (!tensor.defined() || !tensor.is_meta()) {
      whole.emplace_back(std::move(name), std::move(tensor));
      continue;
    }
    DividedTensor& entry =
        divided.emplace_back(DividedTensor{.name = name,
                                           .dtype = name_of_dtype(tensor.scalar_type(), name),
                                           .shape = tensor.sizes().vec(),
                                           .order = order_of(tensor.sizes().vec(), tensor.strides().vec()),
                                           .pieces = {}});
    const auto part = parts.find(tensor.unsafeGetTensorImpl());
    if (part == parts.end()) continue;
    entry.pieces.push_back({.file = {},
                            .begin = part->second->begin,
                            .count = part->second->values.numel(),
                            .slice = slice_in_manifest(tensor)});
    own.emplace_back(name, part->second->values);
    parts.erase(part);
  }
  tensors = std::move(whole);
  if (!divided.empty()) plan.manifest.divided[file] = std::move(divided);
  if (!own.empty()) plan.parts[file] = std::move(own);
}

void divide(CheckpointPlan& plan, const std::vector<TensorPart>& parts) {
  std::unordered_map<const void*, const TensorPart*> left;
  for (const TensorPart& part : parts)
    if (part.values.numel() > 0) left.emplace(part.whole.unsafeGetTensorImpl(), &part);
  take_divided(plan, kModelFile, plan.module, left);
  take_divided(plan, kOptimizerFile, plan.optimizers, left);
  take_divided(plan, kStateTensorsFile, plan.state, left);
}

}  // namespace

CheckpointPlan plan_checkpoint(const CheckpointContent& content) {
  CheckpointPlan plan;
  plan.manifest.origin = content.origin;
  plan.manifest.epoch = epoch_of(content.state);
  plan.manifest.global_step = progress_number(content.state, "global_step");
  plan.manifest.weights_only = content.optimizers.is_null();
  plan.metadata.emplace("format", "pt");
  for (const auto& [alias, name] : content.aliases) plan.metadata["alias:" + alias] = name;
  StateTensors optimizer_tensors, state_tensors;
  // One line per field, so that each has its own hash.
  plan.state_parts.emplace_back(
      "optimizers", cat("{\n\"optimizers\": ", encode_state(content.optimizers, "", optimizer_tensors), ",\n"));
  if (content.state.is_map() && !looks_like_a_word(content.state.as_map())) {
    std::string start = "\"state\": {\n";
    for (const auto& [key, value] : content.state.as_map()) {
      const std::string name = encode_state(key, key, state_tensors);
      plan.state_parts.emplace_back("state." + key, cat(start, name, ": ", encode_state(value, key, state_tensors)));
      start = ",\n";
    }
    plan.state_parts.emplace_back("end", start == ",\n" ? "\n}\n}\n" : start + "}\n}\n");
  } else {
    plan.state_parts.emplace_back("state",
                                  cat("\"state\": ", encode_state(content.state, "state", state_tensors), "\n}\n"));
  }
  plan.module = content.module;
  plan.optimizers = optimizer_tensors.tensors();
  plan.state = state_tensors.tensors();
  divide(plan, content.parts);
  for (const NamedTensors* tensors : {&plan.module, &plan.optimizers, &plan.state})
    plan.bytes += safetensors_bytes(*tensors);
  for (const auto& [file, tensors] : plan.parts) plan.bytes += safetensors_bytes(tensors);
  uint64_t state_bytes = 0;
  for (const auto& [name, text] : plan.state_parts) state_bytes += text.size();
  if (state_bytes > kMaxStateBytes)
    throw CheckpointError(cat("[checkpoint.write] the state without its tensors has ", state_bytes, " bytes; at most ",
                              kMaxStateBytes, " are allowed. Keep large data of callbacks and modules in tensors."));
  plan.bytes += state_bytes;
  return plan;
}

}  // namespace fulgur::detail
