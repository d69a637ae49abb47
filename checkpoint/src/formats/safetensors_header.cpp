#include "formats/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/shown_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

[[noreturn]] void bad_header(const std::string& what) {
  throw CheckpointError("[checkpoint.safetensors] damaged header: " + what + ".");
}

// Validates the header while parsing, without building a tree: a hostile one costs little more than its own text.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::outside:
        place_ = Place::top;
        return true;
      case Place::tensor_name:
        if (header_.entries.size() >= kMaxTensors) bad_header(cat("more than ", kMaxTensors, " tensors"));
        header_.entries.emplace_back().name = key_;
        has_ = {};
        place_ = Place::tensor;
        return true;
      case Place::metadata_name:
        if (has_metadata_) bad_header("__metadata__ occurs twice");
        has_metadata_ = true;
        place_ = Place::metadata;
        return true;
      default:
        wrong_kind();
    }
  }
  bool end_object() override {
    if (place_ == Place::tensor && !(has_.dtype && has_.shape && has_.offsets)) wrong_kind();
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }
  bool key(std::string& name) override {
    if (name.size() > kMaxNameBytes)
      bad_header(cat("a name has ", name.size(), " bytes; at most ", kMaxNameBytes, " are allowed"));
    if (place_ == Place::top) {
      place_ = name == "__metadata__" ? Place::metadata_name : Place::tensor_name;
      key_ = std::move(name);
    } else if (place_ == Place::metadata) {
      key_ = std::move(name);
      if (header_.metadata.contains(key_)) bad_header(cat(shown_name(key_), " occurs twice in __metadata__"));
    } else if (name == "dtype" && !has_.dtype) {
      place_ = Place::dtype;
    } else if (name == "shape" && !has_.shape) {
      place_ = Place::shape_name;
    } else if (name == "data_offsets" && !has_.offsets) {
      place_ = Place::offsets_name;
    } else {
      wrong_kind();
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::shape_name)
      place_ = Place::shape;
    else if (place_ == Place::offsets_name)
      place_ = Place::offsets;
    else
      wrong_kind();
    return true;
  }
  bool end_array() override {
    if (place_ == Place::shape)
      has_.shape = true;
    else if (offsets_ == 2)
      has_.offsets = true;
    else
      bad_header(cat("data_offsets of ", shown_name(entry().name), " are not two numbers"));
    offsets_ = 0;
    place_ = Place::tensor;
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) wrong_number();
      if (entry().shape.size() >= kMaxDimensions)
        bad_header(cat("shape of ", shown_name(entry().name), " has more than ", kMaxDimensions, " dimensions"));
      entry().shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::offsets) {
      if (++offsets_ > 2) bad_header(cat("data_offsets of ", shown_name(entry().name), " are not two numbers"));
      (offsets_ == 1 ? entry().begin : entry().end) = value;
    } else {
      wrong_kind();
    }
    return true;
  }
  bool string(std::string& value) override {
    if (place_ == Place::dtype) {
      entry().dtype = std::move(value);
      has_.dtype = true;
      place_ = Place::tensor;
    } else if (place_ == Place::metadata) {
      header_.metadata.emplace(std::move(key_), std::move(value));
    } else {
      wrong_kind();
    }
    return true;
  }
  bool number_integer(std::int64_t) override { wrong_number(); }
  bool number_float(double, const std::string&) override { wrong_number(); }
  bool null() override { wrong_kind(); }
  bool boolean(bool) override { wrong_kind(); }
  bool binary(nlohmann::json::binary_t&) override { wrong_kind(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    bad_header(cat("it is not JSON in UTF-8, at byte ", position));
  }

 private:
  enum class Place {
    outside,
    top,
    metadata_name,
    metadata,
    tensor_name,
    tensor,
    dtype,
    shape_name,
    shape,
    offsets_name,
    offsets
  };
  struct Has {
    bool dtype = false, shape = false, offsets = false;
  };

  SafetensorsEntry& entry() { return header_.entries.back(); }
  [[noreturn]] void wrong_number() {
    if (place_ == Place::shape)
      bad_header(cat("shape of ", shown_name(entry().name), " has a size that is not a whole number"));
    if (place_ == Place::offsets) bad_header(cat("an offset of ", shown_name(entry().name), " is not a whole number"));
    wrong_kind();
  }
  [[noreturn]] void wrong_kind() {
    if (place_ == Place::metadata || place_ == Place::metadata_name) bad_header("__metadata__ may hold strings only");
    if (place_ == Place::outside || place_ == Place::top) bad_header("it is not a JSON object");
    bad_header(cat(shown_name(place_ == Place::tensor_name ? key_ : entry().name),
                   " must have exactly dtype, shape and data_offsets"));
  }

  SafetensorsHeader& header_;
  Place place_ = Place::outside;
  std::string key_;
  Has has_;
  bool has_metadata_ = false;
  int offsets_ = 0;
};

void check_size(const SafetensorsEntry& entry, uint64_t data_bytes) {
  uint64_t bytes = element_bytes(entry.dtype);
  if (bytes == 0)
    bad_header(cat(shown_name(entry.name), " has the unknown dtype ",
                   shown_name(std::string_view(entry.dtype).substr(0, 40))));
  // Strides are products too, in which a size of 0 counts as 1.
  int64_t stride = 8;
  for (const int64_t size : entry.shape)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) ||
        __builtin_mul_overflow(stride, std::max<int64_t>(size, 1), &stride))
      bad_header(cat("shape of ", shown_name(entry.name), " overflows"));
  if (entry.end < entry.begin || entry.end > data_bytes)
    bad_header(cat(shown_name(entry.name), " ends at byte ", entry.end, " of ", data_bytes));
  if (entry.end - entry.begin != bytes)
    bad_header(cat(shown_name(entry.name), " has ", entry.end - entry.begin, " bytes, but its shape needs ", bytes));
}

// A name shared by more than one tensor.
std::optional<std::string> repeated_name(const SafetensorsHeader& header) {
  std::vector<std::string_view> names;
  names.reserve(header.entries.size());
  for (const SafetensorsEntry& entry : header.entries) names.push_back(entry.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return std::nullopt;
  return std::string(*twice);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') bad_header("it does not start with '{'");
  SafetensorsHeader header;
  HeaderReader reader(header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  for (const SafetensorsEntry& entry : header.entries) check_size(entry, data_bytes);
  if (const auto name = repeated_name(header)) bad_header(cat(shown_name(*name), " occurs twice"));
  std::ranges::sort(header.entries,
                    [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t expected = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != expected)
      bad_header(cat(shown_name(entry.name), " begins at byte ", entry.begin, " instead of ", expected));
    expected = entry.end;
  }
  if (expected != data_bytes) bad_header(cat("the tensors end at byte ", expected, ", but the file has ", data_bytes));
  return header;
}

std::string make_safetensors_header(const SafetensorsHeader& header) {
  const auto refuse = [](const std::string& what) { throw CheckpointError("[checkpoint.safetensors] " + what + "."); };
  if (header.entries.size() > kMaxTensors)
    refuse(cat("a file may hold ", kMaxTensors, " tensors; got ", header.entries.size()));
  if (const auto name = repeated_name(header)) refuse(cat("two tensors have the name ", shown_name(*name)));
  std::string text = "{";
  try {
    if (!header.metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(header.metadata).dump() + ",";
    for (const SafetensorsEntry& entry : header.entries) {
      if (entry.name == "__metadata__" || entry.name.size() > kMaxNameBytes || entry.shape.size() > kMaxDimensions)
        refuse(cat("the format cannot hold a tensor with the name ", shown_name(entry.name), " and ",
                   entry.shape.size(), " dimensions"));
      const nlohmann::ordered_json value{
          {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
      text += nlohmann::json(entry.name).dump() + ":" + value.dump() + ",";
    }
  } catch (const nlohmann::json::exception&) {
    refuse("a name or metadata text is not UTF-8");
  }
  if (text.size() > 1)
    text.back() = '}';
  else
    text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes)
    refuse(cat("the header would have ", text.size(), " bytes; at most ", kMaxHeaderBytes, " are allowed"));
  return text;
}

}  // namespace fulgur::detail
