#include "io/manifest.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "io/hash.h"

namespace fulgur::detail {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kHashField = "\n\"manifest_xxh3_64\": \"";
constexpr std::string_view kEnd = "\"\n}\n";
constexpr size_t kTailBytes = 16 + kEnd.size();

[[noreturn]] void bad_manifest(const std::string& what) { throw CheckpointError("[checkpoint.manifest] " + what); }

// One part per line.
std::string to_text(const FileRecord& record) {
  std::string text = cat("{\"bytes\": ", record.bytes, ", \"xxh3_64\": \"", hash_text(record.hash), "\", \"parts\": [");
  const char* separator = "\n";
  for (const FilePart& part : record.parts) {
    text += cat(separator, "{\"name\": ", Json(part.name).dump(), ", \"bytes\": ", part.bytes, ", \"xxh3_64\": \"",
                hash_text(part.hash), "\"}");
    separator = ",\n";
  }
  return text + "\n]}";
}

uint64_t read_hash(const Json& json) {
  const auto hash = hash_from_text(json.at("xxh3_64").get<std::string>());
  if (!hash) bad_manifest("it is damaged: a hash is not 16 hexadecimal digits.");
  return *hash;
}

uint64_t read_size(const Json& json) {
  if (!json.at("bytes").is_number_unsigned()) bad_manifest("it is damaged: a size is not a whole number.");
  return json.at("bytes").get<uint64_t>();
}

FileRecord read_record(const std::string& name, const Json& json) {
  FileRecord record{read_size(json), read_hash(json), {}};
  uint64_t end = 0;
  for (const Json& item : json.at("parts")) {
    FilePart part{item.at("name").get<std::string>(), read_size(item), read_hash(item)};
    if (__builtin_add_overflow(end, part.bytes, &end) || end > record.bytes)
      bad_manifest(cat("it is damaged: the parts of ", name, " are larger than the file."));
    record.parts.push_back(std::move(part));
  }
  if (end != record.bytes || record.parts.empty())
    bad_manifest(cat("it is damaged: the parts of ", name, " are not the whole file."));
  return record;
}

// One tensor per line.
std::string to_text(const DividedTensor& tensor) {
  nlohmann::ordered_json json{{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}};
  if (!tensor.order.empty()) json["order"] = tensor.order;
  auto pieces = nlohmann::ordered_json::array();
  for (const TensorPiece& piece : tensor.pieces) {
    auto item = nlohmann::ordered_json::array({piece.file, piece.begin, piece.count});
    if (piece.slice) {
      auto ranges = nlohmann::ordered_json::array();
      for (const PieceSlice::Range& range : piece.slice->ranges)
        ranges.push_back(nlohmann::ordered_json::array({range.begin, range.count}));
      item.push_back(piece.slice->dim);
      item.push_back(std::move(ranges));
    }
    pieces.push_back(std::move(item));
  }
  json["pieces"] = std::move(pieces);
  return json.dump();
}

std::string to_text(const DividedTensors& divided) {
  std::string text = "\n\"divided\": {";
  const char* separator = "\n";
  for (const auto& [file, tensors] : divided) {
    text += cat(separator, Json(file).dump(), ": [");
    const char* of_tensor = "\n";
    for (const DividedTensor& tensor : tensors) {
      text += of_tensor + to_text(tensor);
      of_tensor = ",\n";
    }
    text += "\n]";
    separator = ",\n";
  }
  return text + "\n},";
}

TensorPiece read_piece(const Json& json) {
  TensorPiece piece{json.at(0).get<std::string>(), json.at(1).get<int64_t>(), json.at(2).get<int64_t>()};
  if (json.size() == 3) return piece;
  piece.slice = PieceSlice{.dim = json.at(3).get<int64_t>()};
  for (const Json& range : json.at(4))
    piece.slice->ranges.push_back({range.at(0).get<int64_t>(), range.at(1).get<int64_t>()});
  return piece;
}

// Older programs read older formats only.
int64_t format_of(const Manifest& manifest) {
  if (manifest.divided.contains(kStateTensorsFile)) return 3;
  for (const auto& [file, tensors] : manifest.divided)
    for (const DividedTensor& tensor : tensors)
      if (std::ranges::any_of(tensor.pieces, [](const TensorPiece& piece) { return piece.slice.has_value(); }))
        return 3;
  return manifest.divided.empty() ? 1 : 2;
}

DividedTensor read_divided_tensor(const Json& json) {
  DividedTensor tensor{.name = json.at("name").get<std::string>(),
                       .dtype = json.at("dtype").get<std::string>(),
                       .shape = json.at("shape").get<std::vector<int64_t>>(),
                       .order = {},
                       .pieces = {}};
  if (json.contains("order")) tensor.order = json.at("order").get<std::vector<int64_t>>();
  for (const Json& item : json.at("pieces")) tensor.pieces.push_back(read_piece(item));
  return tensor;
}

DividedTensors read_divided(const Json& json) {
  DividedTensors divided;
  if (!json.contains("divided")) return divided;
  for (const auto& [file, tensors] : json.at("divided").items()) {
    if (file != kModelFile && file != kOptimizerFile && file != kStateTensorsFile)
      bad_manifest(cat("it names divided tensors of '", escape_controls(file.substr(0, 200)), "', which has none."));
    for (const Json& tensor : tensors) divided[file].push_back(read_divided_tensor(tensor));
  }
  return divided;
}

bool is_file_of_checkpoint(std::string_view name) {
  return name == kModelFile || name == kOptimizerFile || name == kStateFile || name == kStateTensorsFile ||
         is_part_file(name, kModelFile) || is_part_file(name, kOptimizerFile) || is_part_file(name, kStateTensorsFile);
}

Manifest read_fields(const Json& json, ManifestScope scope) {
  Manifest manifest;
  const Json& origin = json.at("origin");
  manifest.origin.config_hash = origin.at("config_hash").get<std::string>();
  manifest.origin.world_size = origin.at("world_size").get<int64_t>();
  manifest.origin.device = origin.at("device").get<std::string>();
  manifest.origin.threads = origin.at("threads").get<int64_t>();
  manifest.origin.deterministic = origin.at("deterministic").get<bool>();
  manifest.origin.save_counter = origin.at("save_counter").get<int64_t>();
  manifest.origin.run = origin.value("run", "");  // earlier versions wrote none
  manifest.origin.fulgur = origin.at("fulgur").get<std::string>();
  manifest.origin.libtorch = origin.at("libtorch").get<std::string>();
  manifest.epoch = json.at("epoch").get<int64_t>();
  manifest.global_step = json.at("global_step").get<int64_t>();
  manifest.weights_only = json.at("weights_only").get<bool>();
  for (const auto& [name, record] : json.at("files").items()) {
    // Other names could point outside the folder.
    if (!is_file_of_checkpoint(name))
      bad_manifest(cat("it names the file '", escape_controls(name.substr(0, 200)), "', which no checkpoint has."));
    manifest.files.emplace(name, read_record(name, record));
  }
  for (const char* name : {kModelFile, kOptimizerFile, kStateFile})
    if (scope == ManifestScope::whole && !manifest.files.contains(name))
      bad_manifest(cat("it is damaged: it does not name ", name, "."));
  manifest.divided = read_divided(json);
  check_divided(manifest.divided, manifest.files, /*complete=*/scope == ManifestScope::whole);
  return manifest;
}

// The version that a text claims, even if damaged; 0 if unknown.
int64_t claimed_version(const Json& json) {
  if (!json.is_object() || !json.contains("format_version") || !json["format_version"].is_number_integer()) return 0;
  return json["format_version"].get<int64_t>();
}

std::string claimed_writer(const Json& json) {
  if (!json.contains("origin") || !json["origin"].is_object() || !json["origin"].contains("fulgur") ||
      !json["origin"]["fulgur"].is_string())
    return "an unknown version of Fulgur";
  return "Fulgur " + escape_controls(json["origin"]["fulgur"].get<std::string>().substr(0, 100));
}

// Deep nesting is rejected while parsing.
Json parse(std::string_view text) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) {
    if (depth > 16) bad_manifest("it is damaged: nested too deeply.");
    return true;
  };
  return Json::parse(text.begin(), text.end(), shallow, /*allow_exceptions=*/false);
}

}  // namespace

std::string manifest_to_text(const Manifest& manifest) {
  const CheckpointOrigin& origin = manifest.origin;
  std::string text;
  try {
    const nlohmann::ordered_json described{{"fulgur", origin.fulgur},
                                           {"libtorch", origin.libtorch},
                                           {"config_hash", origin.config_hash},
                                           {"world_size", origin.world_size},
                                           {"device", origin.device},
                                           {"threads", origin.threads},
                                           {"deterministic", origin.deterministic},
                                           {"save_counter", origin.save_counter},
                                           {"run", origin.run}};
    text = cat("{\n\"format\": \"fulgur-checkpoint\",\n\"format_version\": ", format_of(manifest),
               ",\n\"origin\": ", described.dump(), ",\n\"epoch\": ", manifest.epoch,
               ",\n\"global_step\": ", manifest.global_step, ",\n\"weights_only\": ", manifest.weights_only,
               ",\n\"files\": {");
    const char* separator = "\n";
    for (const auto& [name, record] : manifest.files) {
      text += cat(separator, Json(name).dump(), ": ", to_text(record));
      separator = ",\n";
    }
    text += "\n},";
    if (!manifest.divided.empty()) text += to_text(manifest.divided);
  } catch (const Json::exception&) {
    bad_manifest("a text of the origin, or the name of a tensor, is not UTF-8.");
  }
  text += kHashField;
  const std::string hash = hash_text(hash_of(text));
  return cat(text, hash, kEnd);
}

Manifest manifest_from_text(std::string_view text, ManifestScope scope) {
  const Json json = parse(text);
  const int64_t version = claimed_version(json);
  // Check this first: a newer format may use another hash.
  if (version > kCheckpointFormat)
    bad_manifest(cat("it has format version ", version, ", written by ", claimed_writer(json),
                     "; this program (Fulgur ", fulgur_version(), ") reads format versions <= ", kCheckpointFormat,
                     ". Use a newer version of Fulgur, or another checkpoint if this one is damaged."));
  if (text.size() < kTailBytes || !text.ends_with(kEnd) ||
      !text.substr(0, text.size() - kTailBytes).ends_with(kHashField))
    bad_manifest(cat("it is damaged: it does not end with its hash", json.is_discarded() ? ", and is not JSON." : "."));
  const auto hash = hash_from_text(text.substr(text.size() - kTailBytes, 16));
  if (!hash || *hash != hash_of(text.substr(0, text.size() - kTailBytes)))
    bad_manifest("it is damaged: it has changed since it was written (its hash differs).");
  try {
    if (json.is_discarded() || json.at("format") != "fulgur-checkpoint" || version < 1)
      bad_manifest("it is not the manifest of a checkpoint.");
    return read_fields(json, scope);
  } catch (const Json::exception&) {
    bad_manifest("it is damaged: a field is missing or has the wrong type.");
  }
}

}  // namespace fulgur::detail
