#include "inspect_verb.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/inspect.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/core/options/config_node.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "json_text.h"
#include "print.h"

namespace fulgur::cli {
namespace fs = std::filesystem;
namespace keys = detail::checkpoint_keys;

namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<TextRow>;

std::string bytes_text(uint64_t bytes) {
  if (bytes < 1000) return cat(bytes, " B");
  if (bytes < 1'000'000) return format_fixed(static_cast<double>(bytes) / 1e3, 1) + " kB";
  if (bytes < 1'000'000'000) return format_fixed(static_cast<double>(bytes) / 1e6, 1) + " MB";
  return format_fixed(static_cast<double>(bytes) / 1e9, 2) + " GB";
}

std::string columns(const Rows& rows) {
  const std::vector<int64_t> widths = column_widths(rows);
  std::string text;
  for (const TextRow& row : rows) text += cat("  ", aligned(row, widths), "\n");
  return text;
}

std::vector<std::string> row_of(const TensorInfo& tensor) {
  return {escape_controls(tensor.name), tensor.dtype, shape_text(tensor.shape), bytes_text(tensor.bytes)};
}

Json json_of(const std::vector<TensorInfo>& tensors) {
  Json out = Json::array();
  for (const TensorInfo& tensor : tensors)
    out.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
  return out;
}

std::map<std::string, double> metrics_of(const StateTree& state) {
  std::map<std::string, double> metrics;
  if (!state.contains(keys::kMetrics) || !state.at(keys::kMetrics).is_map()) return metrics;
  for (const auto& [name, value] : state.at(keys::kMetrics).as_map())
    if (value.holds<double>() || value.holds<int64_t>()) metrics.emplace(name, value.as_double());
  return metrics;
}

/// What the data module keeps in checkpoints, such as the means and deviations of its inputs; null if nothing.
const StateTree& data_state_of(const CheckpointInspection& found) {
  static const StateTree none;
  return found.state.contains(keys::kData) ? found.state.at(keys::kData) : none;
}

/// What a loop passed to `Fabric::save`; nullptr if a Trainer wrote the checkpoint.
const StateTree* loop_state_of(const CheckpointInspection& found) {
  return found.state.contains(keys::kFabric) ? &found.state.at(keys::kFabricLoop) : nullptr;
}

/// One line for a value, a list of values, or a map of them.
std::string state_text(const StateTree& value) {
  constexpr size_t kMostValues = 8;
  std::vector<std::string> parts;
  if (value.is_list()) {
    for (const StateTree& item : value.as_list()) parts.push_back(state_text(item));
    return cat("[", join_some(std::move(parts), kMostValues), "]");
  }
  if (value.is_map()) {
    for (const auto& [name, item] : value.as_map()) parts.push_back(cat(escape_controls(name), " ", state_text(item)));
    return join(parts);
  }
  if (value.is_tensor()) return cat("tensor ", shape_text(value.tensor().sizes()));
  if (value.holds<bool>()) return value.as_bool() ? "true" : "false";
  if (value.holds<uint64_t>()) return cat(value.as_uint());
  if (value.holds<int64_t>()) return cat(value.as_int());
  if (value.holds<double>()) return cat(value.as_double());
  return value.holds<std::string>() ? escape_controls(value.as_string()) : value.type_name();
}

/// A row for each value of nested maps, and for each map in a list.
void add_state_rows(Rows& rows, const std::string& place, const StateTree& value) {
  if (value.is_map()) {
    for (const auto& [name, item] : value.as_map()) add_state_rows(rows, join_path(place, escape_controls(name)), item);
  } else if (value.is_list() && !value.as_list().empty() && value.as_list().front().is_map()) {
    for (size_t i = 0; i < value.as_list().size(); ++i)
      rows.push_back({join_path(place, std::to_string(i)), state_text(value.as_list()[i])});
  } else {
    rows.push_back({place, state_text(value)});
  }
}

Json state_json(const StateTree& value) {
  if (value.is_map()) {
    Json map = Json::object();
    for (const auto& [name, item] : value.as_map()) map[name] = state_json(item);
    return map;
  }
  if (value.is_list()) {
    Json list = Json::array();
    for (const StateTree& item : value.as_list()) list.push_back(state_json(item));
    return list;
  }
  if (value.holds<bool>()) return value.as_bool();
  if (value.holds<uint64_t>()) return value.as_uint();
  if (value.holds<int64_t>()) return value.as_int();
  if (value.holds<double>() && std::isfinite(value.as_double())) return value.as_double();
  // JSON escapes texts itself.
  if (value.holds<std::string>()) return value.as_string();
  return value.is_null() ? Json(nullptr) : Json(state_text(value));
}

uint64_t values_of(const CheckpointInspection::File& file) {
  uint64_t count = 0;
  for (const TensorInfo& tensor : file.tensors) {
    uint64_t values = 1;
    for (const int64_t size : tensor.shape) values *= static_cast<uint64_t>(size);
    count += values;
  }
  return count;
}

std::string text_of(const CheckpointInspection& found) {
  const CheckpointOrigin& origin = found.summary.origin;
  const StateTree* const loop = loop_state_of(found);
  std::string text = cat(
      "checkpoint    ", escape_controls(found.summary.path.string()), "\n", loop ? "loop          " : "epoch         ",
      loop ? state_text(*loop) : cat(found.summary.epoch), "\n", "global step   ", found.summary.global_step, "\n");
  if (found.state.contains(keys::kImported))
    text += cat("imported from ", escape_controls(found.state.at(keys::kImported).as_string()), "\n");
  text += cat("holds         ",
              found.summary.weights_only ? "weights only"
              : loop                     ? "weights, optimizers and Fabric's state"
                                         : "weights, optimizers and the run's state",
              "\n");
  text += cat("origin        Fulgur ", escape_controls(origin.fulgur), ", LibTorch ", escape_controls(origin.libtorch),
              ", ", origin.device.empty() ? "device unknown" : escape_controls(origin.device), ", world size ",
              origin.world_size, "\n");
  for (const auto& [name, value] : metrics_of(found.state))
    text += cat("metric        ", escape_controls(name), " ", value, "\n");
  Rows files;
  for (const auto& file : found.files) {
    files.push_back({escape_controls(file.name), bytes_text(file.bytes)});
    if (!file.tensors.empty())
      files.back().push_back(
          cat(file.tensors.size(), " tensors, ", format_count(static_cast<int64_t>(values_of(file))), " values"));
  }
  text += "files\n" + columns(files);
  Rows weights;
  for (const TensorInfo& tensor : found.weights) weights.push_back(row_of(tensor));
  for (const auto& [alias, name] : found.aliases)
    weights.push_back({escape_controls(alias), "is " + escape_controls(name)});
  text += "weights\n" + columns(weights);
  Rows data;
  if (data_state_of(found).is_map()) add_state_rows(data, "", data_state_of(found));
  if (!data.empty()) text += "state of the data module\n" + columns(data);
  return text + (found.report.ok() ? "verified      all bytes match the manifest\n"
                                   : cat("damaged\n", found.report.describe(), "\n"));
}

Json json_of(const CheckpointInspection& found) {
  const CheckpointOrigin& origin = found.summary.origin;
  Json metrics = Json::object(), files = Json::array(), problems = Json::array();
  for (const auto& [name, value] : metrics_of(found.state)) {
    if (std::isfinite(value))
      metrics[name] = value;
    else
      metrics[name] = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  }
  for (const auto& file : found.files) {
    Json one{{"name", file.name}, {"bytes", file.bytes}};
    if (file.name.ends_with(".safetensors")) one["tensors"] = json_of(file.tensors);
    files.push_back(std::move(one));
  }
  for (const CheckpointProblem& problem : found.report.problems)
    problems.push_back({{"file", problem.file}, {"part", problem.part}, {"message", problem.message}});
  const StateTree* const loop = loop_state_of(found);
  return {{"path", found.summary.path.string()},
          {"epoch", loop ? Json(nullptr) : Json(found.summary.epoch)},
          {"loop", loop ? state_json(*loop) : Json(nullptr)},
          {"global_step", found.summary.global_step},
          {"weights_only", found.summary.weights_only},
          {"weights", json_of(found.weights)},
          {"imported_from",
           found.state.contains(keys::kImported) ? Json(found.state.at(keys::kImported).as_string()) : Json(nullptr)},
          {"origin",
           {{"fulgur", origin.fulgur},
            {"libtorch", origin.libtorch},
            {"device", origin.device},
            {"threads", origin.threads},
            {"deterministic", origin.deterministic},
            {"world_size", origin.world_size},
            {"config_hash", origin.config_hash},
            {"save_counter", origin.save_counter},
            {"run", origin.run}}},
          {"metrics", std::move(metrics)},
          {"data", state_json(data_state_of(found))},
          {"files", std::move(files)},
          {"aliases", found.aliases},
          {"verified", found.report.ok()},
          {"problems", std::move(problems)}};
}

/// With safetensors names, so that files and checkpoints look alike; complex numbers exist only in `.pt`.
std::string dtype_text(at::ScalarType dtype) {
  const char* text = safetensors_dtype(dtype);
  return text ? text : c10::toString(dtype);
}

/// A file that `import` would read.
ExitCode inspect_file(const fs::path& path, bool as_json) {
  const WeightsFile file = read_weights_file(path);
  std::vector<TensorInfo> tensors;
  for (const auto& [name, tensor] : file.tensors)
    tensors.push_back({name, dtype_text(tensor.scalar_type()), tensor.sizes().vec(), tensor.nbytes()});
  const std::string format = file.format == WeightsFormat::pytorch ? "pt" : "safetensors";
  if (as_json) {
    print(json_text(Json{{"path", path.string()},
                         {"format", format},
                         {"tensors", json_of(tensors)},
                         {"aliases", file.aliases},
                         {"left_out", file.left_out}}));
    return ExitCode::ok;
  }
  Rows rows;
  for (const TensorInfo& tensor : tensors) rows.push_back(row_of(tensor));
  std::string text =
      cat("file          ", escape_controls(path.string()), "\nformat        ", format, "\nweights\n", columns(rows));
  if (!file.left_out.empty()) text += cat("left out      ", join(file.left_out), "\n");
  print(text);
  return ExitCode::ok;
}

/// A folder of Hugging Face's, as `pretrained` reads it; a checkpoint has its own files beside its weights.
bool is_weights_folder(const fs::path& path) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::exists(path / name, ignored); };
  if (has("manifest.json") || has("state.json") || path.extension() == run_layout::kExtension) return false;
  return has("model.safetensors") || has("model.safetensors.index.json") || has("pytorch_model.bin") ||
         has("pytorch_model.bin.index.json");
}

}  // namespace

ExitCode inspect(const CommandLine& command) {
  const fs::path path = *command.argument;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored) || is_weights_folder(path)) return inspect_file(path, command.json);
  const CheckpointInspection found = inspect_checkpoint(path);
  print(command.json ? json_text(json_of(found)) : text_of(found));
  return found.report.ok() ? ExitCode::ok : ExitCode::checkpoint;
}

}  // namespace fulgur::cli
