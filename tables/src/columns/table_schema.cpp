#include "columns/table_schema.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {
namespace {

StateTree texts_state(const std::vector<std::string>& texts) {
  StateTree::List list;
  for (const std::string& text : texts) list.emplace_back(text);
  return StateTree(std::move(list));
}

std::vector<std::string> texts_of(const StateTree& state) {
  std::vector<std::string> texts;
  for (const StateTree& item : state.as_list()) texts.push_back(item.as_string());
  return texts;
}

[[noreturn]] void bad_schema(const std::string& what) {
  throw CheckpointError(cat("[data.TableDataModule] the checkpoint's columns are damaged: ", what, "."));
}

double finite(const StateTree& state, const char* key) {
  const double value = state.at(key).as_double();
  if (!std::isfinite(value)) bad_schema(cat(key, " is not finite"));
  return value;
}

double positive(const StateTree& state, const char* key) {
  const double value = finite(state, key);
  if (value <= 0) bad_schema(cat(key, " is not above 0"));
  return value;
}

}  // namespace

int64_t TableSchema::num_numbers() const {
  return static_cast<int64_t>(numbers.size()) + std::ranges::count(numbers, true, &NumberFeature::has_indicator);
}

std::vector<std::string> TableSchema::columns(bool with_targets) const {
  std::vector<std::string> names;
  for (const NumberFeature& number : numbers) names.push_back(number.name);
  for (const CategoryFeature& category : categories) names.push_back(category.name);
  if (with_targets)
    for (const TargetColumn& target : targets) names.push_back(target.name);
  return names;
}

StateTree TableSchema::state() const {
  StateTree::List number_list, category_list, target_list;
  for (const NumberFeature& number : numbers)
    number_list.push_back(StateTree::map({{"name", number.name},
                                          {"type", std::string(enum_text(number.type))},
                                          {"mean", number.mean},
                                          {"std", number.std},
                                          {"fill", number.fill},
                                          {"has_indicator", number.has_indicator}}));
  for (const CategoryFeature& category : categories)
    category_list.push_back(StateTree::map({{"name", category.name}, {"values", texts_state(category.values)}}));
  for (const TargetColumn& target : targets)
    target_list.push_back(StateTree::map({{"name", target.name}, {"mean", target.mean}, {"std", target.std}}));
  return StateTree::map({{"task", std::string(enum_text(task))},
                         {"numbers", StateTree(std::move(number_list))},
                         {"categories", StateTree(std::move(category_list))},
                         {"targets", StateTree(std::move(target_list))},
                         {"classes", texts_state(classes)}});
}

TableSchema TableSchema::from(const StateTree& state) {
  TableSchema schema;
  const auto task = enum_from<TableDataModule::Task>(state.at("task").as_string());
  if (!task) bad_schema(cat("there is no task '", escape_controls(state.at("task").as_string()), "'"));
  schema.task = *task;
  for (const StateTree& item : state.at("numbers").as_list()) {
    const auto type = enum_from<ColumnType>(item.at("type").as_string());
    if (type != ColumnType::number && type != ColumnType::datetime) bad_schema("a number has another type");
    schema.numbers.push_back({item.at("name").as_string(), *type, finite(item, "mean"), positive(item, "std"),
                              finite(item, "fill"), item.at("has_indicator").as_bool()});
  }
  for (const StateTree& item : state.at("categories").as_list()) {
    schema.categories.push_back({item.at("name").as_string(), texts_of(item.at("values"))});
    const auto& values = schema.categories.back().values;
    if (std::set<std::string>(values.begin(), values.end()).size() != values.size())
      bad_schema("a category is there twice");
  }
  for (const StateTree& item : state.at("targets").as_list())
    schema.targets.push_back({item.at("name").as_string(), finite(item, "mean"), positive(item, "std")});
  schema.classes = texts_of(state.at("classes"));
  if (schema.targets.empty()) bad_schema("there is no target");
  if (schema.is_classification() &&
      (schema.targets.size() != 1 || schema.classes.size() < 2 ||
       std::set<std::string>(schema.classes.begin(), schema.classes.end()).size() != schema.classes.size()))
    bad_schema("a classification has one target and at least two different classes");
  return schema;
}

bool BlankTexts::contains(std::string_view text) const {
  return std::ranges::any_of(texts_, [text](const std::string& blank) { return blank == text; });
}

int64_t TextNumbers::add(std::string_view text) {
  const int64_t known = find(text);
  if (known >= 0) return known;
  const auto number = static_cast<int64_t>(texts_.size());
  texts_.emplace_back(text);
  numbers_.emplace(texts_.back(), number);
  return number;
}

int64_t TextNumbers::find(std::string_view text) const {
  const auto found = numbers_.find(text);
  return found == numbers_.end() ? -1 : found->second;
}

}  // namespace fulgur::tables
