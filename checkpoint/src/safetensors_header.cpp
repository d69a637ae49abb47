#include "safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"

namespace fulgur::detail {
namespace {

[[noreturn]] void bad(const std::string& what) { throw CheckpointError("[checkpoint.safetensors] damaged header: " + what + "."); }

bool multiply(uint64_t a, uint64_t b, uint64_t& out) { return !__builtin_mul_overflow(a, b, &out); }

uint64_t as_offset(const nlohmann::json& value, const std::string& name) {
  if (!value.is_number_unsigned()) bad(cat("an offset of '", escape_controls(name), "' is no whole number"));
  return value.get<uint64_t>();
}

// nlohmann keeps the last of two equal keys; here two tensors of one name are damage.
nlohmann::json parse_unique(std::string_view json) {
  std::vector<std::set<std::string>> open;
  bool duplicate = false;
  int depth = 0;
  const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) {
      open.emplace_back();
      if (++depth > 8) bad("nested too deeply");
    } else if (event == Event::array_start) {
      if (++depth > 8) bad("nested too deeply");
    } else if (event == Event::array_end) {
      --depth;
    } else if (event == Event::object_end) {
      open.pop_back();
      --depth;
    } else if (event == Event::key && !open.back().insert(parsed.get<std::string>()).second) {
      duplicate = true;
    }
    return true;
  };
  nlohmann::json parsed = nlohmann::json::parse(json.begin(), json.end(), watch, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) bad("it is not JSON");
  if (duplicate) bad("a name stands in it twice");
  return parsed;
}

}  // namespace

uint64_t safetensors_dtype_size(std::string_view dtype) {
  static const std::map<std::string_view, uint64_t> kSizes{{"BOOL", 1}, {"U8", 1}, {"I8", 1},   {"I16", 2}, {"U16", 2},
                                                           {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},
                                                           {"I64", 8},  {"U64", 8}, {"F64", 8}};
  const auto found = kSizes.find(dtype);
  return found == kSizes.end() ? 0 : found->second;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') bad("it does not start with '{'");
  const nlohmann::json parsed = parse_unique(json);
  if (!parsed.is_object()) bad("it is no JSON object");
  SafetensorsHeader header;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) bad("__metadata__ is no object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) bad("__metadata__ may hold strings only");
        header.metadata.emplace(key, text.get<std::string>());
      }
      continue;
    }
    const std::string shown = escape_controls(name.substr(0, 200));
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets"))
      bad(cat("'", shown, "' must have exactly dtype, shape and data_offsets"));
    SafetensorsEntry entry;
    entry.name = name;
    if (!value["dtype"].is_string()) bad(cat("dtype of '", shown, "' is no string"));
    entry.dtype = value["dtype"].get<std::string>();
    uint64_t bytes = safetensors_dtype_size(entry.dtype);
    if (bytes == 0) bad(cat("'", shown, "' has the unknown dtype '", escape_controls(entry.dtype.substr(0, 40)), "'"));
    if (!value["shape"].is_array() || value["shape"].size() > 64) bad(cat("shape of '", shown, "' is no list of sizes"));
    for (const auto& size : value["shape"]) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) bad(cat("shape of '", shown, "' has a size that is no whole number"));
      entry.shape.push_back(size.get<int64_t>());
      if (!multiply(bytes, size.get<uint64_t>(), bytes)) bad(cat("shape of '", shown, "' overflows"));
    }
    const auto& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) bad(cat("data_offsets of '", shown, "' are not two numbers"));
    entry.begin = as_offset(offsets[0], name);
    entry.end = as_offset(offsets[1], name);
    if (entry.end < entry.begin || entry.end > data_bytes)
      bad(cat("'", shown, "' ends at byte ", entry.end, " of ", data_bytes));
    if (entry.end - entry.begin != bytes) bad(cat("'", shown, "' has ", entry.end - entry.begin, " bytes, its shape needs ", bytes));
    header.entries.push_back(std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t expected = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != expected) bad(cat("'", escape_controls(entry.name.substr(0, 200)), "' begins at byte ", entry.begin, " instead of ", expected));
    expected = entry.end;
  }
  if (expected != data_bytes) bad(cat("the tensors end at byte ", expected, ", the file has ", data_bytes));
  return header;
}

std::string make_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const SafetensorsEntry& entry : header.entries)
    json[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("[checkpoint.safetensors] a name or metadata text is not UTF-8.");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace fulgur::detail
