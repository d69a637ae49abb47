#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fulgur/core/state/state_tree.h"
#include "fulgur/tables/table_data_module.h"

namespace fulgur::tables {

struct NumberFeature {
  std::string name;
  ColumnType type = ColumnType::number;  ///< or datetime
  double mean = 0, std = 1;
  double fill = 0;             ///< in place of a blank
  bool has_indicator = false;  ///< a further column that is 1 for a blank, 0 otherwise
};

struct CategoryFeature {
  std::string name;
  std::vector<std::string> values;  ///< of the training part, sorted; the first one has number 1
};

struct TargetColumn {
  std::string name;
  double mean = 0, std = 1;
};

/// What is known of a table after its training part was read.
struct TableSchema {
  TableDataModule::Task task = TableDataModule::Task::regression;
  std::vector<NumberFeature> numbers;
  std::vector<CategoryFeature> categories;
  std::vector<TargetColumn> targets;
  std::vector<std::string> classes;

  bool is_classification() const { return task == TableDataModule::Task::classification; }
  /// With the indicators, which follow the numbers.
  int64_t num_numbers() const;
  /// Names of the columns: numbers, categories and, if asked for, targets.
  std::vector<std::string> columns(bool with_targets) const;
  StateTree state() const;
  /// Throws a CheckpointError for a state that is not one of these.
  static TableSchema from(const StateTree& state);
};

/// Texts that stand for a blank cell.
class BlankTexts {
 public:
  explicit BlankTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}
  bool contains(std::string_view text) const;

 private:
  std::vector<std::string> texts_;
};

/// Numbers of texts, in the order in which they came.
class TextNumbers {
 public:
  /// The number of `text`, which is added if it is new.
  int64_t add(std::string_view text);
  /// -1 for an unknown text.
  int64_t find(std::string_view text) const;
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> numbers_;
  std::vector<std::string> texts_;
};

}  // namespace fulgur::tables
