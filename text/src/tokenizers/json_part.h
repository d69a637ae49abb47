#pragma once

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "tokenizers/tokenizer_parts.h"

namespace fulgur::detail {

using TokenizerJson = nlohmann::json;

/// A value of a tokenizer.json and its place there. What is damaged or not supported throws a DataError.
class JsonPart {
 public:
  JsonPart(const TokenizerJson& value, std::string place, const std::string& file)
      : value_(&value), place_(std::move(place)), file_(&file) {}

  const TokenizerJson& value() const { return *value_; }
  bool is_null() const { return value_->is_null(); }

  [[noreturn]] void refuse(std::string_view rule, std::string_view got, std::string_view advice = "") const {
    throw DataError(cat("[text.read_tokenizer] ", *file_, ": ", place_.empty() ? "the file" : place_, " ", rule, "; ",
                        got, ".", advice.empty() ? "" : " ", advice));
  }
  // Nested values are not written: that would take as much of the stack as they are deep.
  std::string shown() const {
    if (value_->is_structured()) return cat("got a JSON ", value_->type_name(), " of ", value_->size());
    std::string text = value_->dump(-1, ' ', false, TokenizerJson::error_handler_t::replace);
    if (text.size() > 80) text = text.substr(0, 80) + "…";
    return "got " + escape_controls(text);
  }

  // An object that has only the entries named.
  const JsonPart& with_keys(std::initializer_list<std::string_view> known) const {
    if (!value_->is_object()) refuse("must be an object", shown());
    for (const auto& [key, entry] : value_->items())
      if (std::ranges::find(known, key) == known.end())
        refuse("has a part that is not supported", cat("'", escape_controls(key), "': ", at(key).shown()),
               "Remove it if the tokenizer does not need it.");
    return *this;
  }
  bool has(const char* key) const { return value_->contains(key) && !(*value_)[key].is_null(); }
  JsonPart at(const std::string& key) const {
    const auto found = value_->find(key);
    if (found == value_->end()) refuse(cat("must have '", key, "'"), "it is absent");
    return JsonPart(*found, place_.empty() ? key : cat(place_, ".", key), *file_);
  }
  JsonPart item(size_t index) const { return JsonPart((*value_)[index], cat(place_, "[", index, "]"), *file_); }
  size_t items() const {
    if (!value_->is_array()) refuse("must be a list", shown());
    return value_->size();
  }

  std::string text() const {
    if (!value_->is_string()) refuse("must be a text", shown());
    return value_->get<std::string>();
  }
  bool boolean() const {
    if (!value_->is_boolean()) refuse("must be true or false", shown());
    return value_->get<bool>();
  }
  bool boolean_or(const char* key, bool otherwise) const { return has(key) ? at(key).boolean() : otherwise; }
  int64_t whole() const {
    if (!value_->is_number_integer() && !value_->is_number_unsigned()) refuse("must be a whole number", shown());
    if (value_->is_number_unsigned() && value_->get<uint64_t>() > (uint64_t{1} << 62)) refuse("is too large", shown());
    return value_->get<int64_t>();
  }
  int32_t id() const {
    const int64_t number = whole();
    if (number < 0 || number >= kMostTokenIds) refuse(cat("must be in [0, ", kMostTokenIds, ")"), shown());
    return static_cast<int32_t>(number);
  }
  // A part that must not be there, or be `allowed`.
  void only(const char* key, const TokenizerJson& allowed) const {
    if (has(key) && (*value_)[key] != allowed)
      at(key).refuse("is not supported with this value", at(key).shown(), cat("Only ", allowed.dump(), " is."));
  }

 private:
  const TokenizerJson* value_;
  std::string place_;
  const std::string* file_;
};

/// The `type` of a part.
inline std::string type_of(const JsonPart& part) {
  if (!part.value().is_object()) part.refuse("must be an object", part.shown());
  return part.at("type").text();
}

}  // namespace fulgur::detail
