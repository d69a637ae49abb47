#include "columns/table_survey.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>

#include "columns/cell_text.h"
#include "columns/read_cell.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::tables {
namespace {

/// In numeric order if all texts are numbers, otherwise in the order of the texts.
std::vector<std::string> sorted_classes(std::vector<std::string> texts, const std::string& column) {
  std::ranges::sort(texts);
  const auto number = [](const std::string& text) { return *parse_number(text); };
  if (!std::ranges::all_of(texts, [](const std::string& text) { return parse_number(text).has_value(); })) return texts;
  std::ranges::stable_sort(texts, {}, number);
  // Larger whole numbers may differ although their doubles are equal.
  constexpr double kExact = 9007199254740992;
  const auto same = std::ranges::adjacent_find(texts, [&](const std::string& one, const std::string& next) {
    return number(one) == number(next) && std::abs(number(one)) < kExact;
  });
  if (same != texts.end())
    throw DataError(cat("[data.TableDataModule] numbers that are classes must be written in one way; column '",
                        escape_controls(column), "' has '", escape_controls(*same), "' and '",
                        escape_controls(*std::next(same)), "', which would be two classes. Correct the files."));
  return texts;
}

// The usual mistake: the target is a number, of which most rows have another value.
void warn_many_numbers(const TableSurvey& survey, const std::string& column) {
  constexpr size_t kFewClasses = 20;
  const auto is_fraction = [](const std::string& text) {
    const auto number = parse_number(text);
    return number && *number != std::trunc(*number);
  };
  const bool many =
      survey.classes.size() > kFewClasses && (static_cast<int64_t>(survey.classes.size()) * 2 > survey.rows ||
                                              std::ranges::any_of(survey.classes, is_fraction));
  if (!many || !parse_number(survey.classes.back())) return;
  log::warn("tables.numbers_as_classes",
            cat("task is classification, and the ", survey.classes.size(), " different numbers of column '",
                escape_controls(column), "' in ", survey.rows,
                " rows are its classes; to predict a number, set data.init_args.task: regression"));
}

/// What the cells of a column have that are not blank; its type is not given.
struct CellKinds {
  int64_t numbers = 0, texts = 0;
  std::string first_text, place_of_text;
  bool is_mixed() const { return texts > 0 && numbers >= 9 * texts; }
};

size_t first_mixed(const std::vector<CellKinds>& kinds) {
  return static_cast<size_t>(std::ranges::find_if(kinds, &CellKinds::is_mixed) - kinds.begin());
}

// The usual mistake: a text such as `?` stands for an unknown number. One warning for all columns.
void warn_mixed_columns(const TableSurvey& survey, const std::vector<size_t>& places,
                        const std::vector<CellKinds>& kinds) {
  constexpr size_t kMostShown = 5;
  std::vector<std::string> mixed;
  for (size_t i = 0; i < kinds.size(); ++i)
    if (kinds[i].is_mixed())
      mixed.push_back(cat("'", escape_controls(survey.features[places[i]].first), "' has ", kinds[i].numbers,
                          " numbers and ", kinds[i].texts,
                          kinds[i].texts == 1 ? " other text, " : " other texts, first ", kinds[i].first_text, " in ",
                          kinds[i].place_of_text));
  if (mixed.empty()) return;
  log::warn("tables.mixed_column",
            cat(mixed.size() == 1 ? "a column of numbers with other texts becomes a category: "
                                  : "columns of numbers with other texts become categories: ",
                join_some(mixed, kMostShown),
                ". Add a text that stands for a blank to data.init_args.blank_values, correct the files, or, if a "
                "category is right, say so: data.init_args.types: {",
                escape_controls(survey.features[places[first_mixed(kinds)]].first), ": category}"));
}

void check_names(const TableDataModule::Options& options, const CsvFile& file) {
  for (const std::string& name : options.target) (void)file.column(name);
  for (const auto& [name, type] : options.types) (void)file.column(name);
}

/// Mean and deviation (Welford 1962).
struct Moments {
  int64_t count = 0;
  double mean = 0, squares = 0;
  void add(double value) {
    const double before = value - mean;
    mean += before / static_cast<double>(++count);
    squares += before * (value - mean);
  }
  /// Of the population, as scikit-learn's StandardScaler; 1 for a constant.
  double deviation() const {
    const double value = std::sqrt(squares / static_cast<double>(count));
    return value > 0 && std::isfinite(value) ? value : 1.0;
  }
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const double below = *std::max_element(values.begin(), middle);
  return below + (*middle - below) / 2;
}

}  // namespace

TableSurvey survey_table(const TableDataModule::Options& options, bool with_labels) {
  const bool classifies = options.task == TableDataModule::Task::classification;
  constexpr int64_t kTextsOfCategory = 1000;
  const BlankTexts blanks(options.blank_values);
  TableSurvey survey;
  std::vector<std::string> columns;  // those whose type is not known, then the target of a classification
  std::vector<size_t> unknown;       // their places in survey.features
  {
    const CsvFile first(options.paths.front(), options.delimiter.front());
    check_names(options, first);
    const std::set<std::string> targets(options.target.begin(), options.target.end());
    for (const std::string& name : first.header()) {
      if (targets.contains(name)) continue;
      const auto given = options.types.find(name);
      if (given != options.types.end() && given->second == ColumnType::ignore) continue;
      if (given == options.types.end()) {
        unknown.push_back(survey.features.size());
        columns.push_back(name);
      }
      survey.features.emplace_back(name, given == options.types.end() ? ColumnType::number : given->second);
    }
  }
  if (survey.features.empty())
    throw DataError(cat("[data.TableDataModule] a table must have a column beside its targets that is not ignored; '",
                        escape_controls(options.paths.front().string()), "' has none."));
  if (classifies) columns.push_back(options.target.front());
  TableRows rows(options.paths, options.delimiter.front(), columns);
  std::vector<CellKinds> kinds(unknown.size());
  TextNumbers classes;
  while (rows.next()) {
    ++survey.rows;
    for (size_t i = 0; i < unknown.size(); ++i) {
      CellKinds& found = kinds[i];
      // A column that begins with so many texts is a category, and its other cells need no look.
      if (found.numbers == 0 && found.texts > kTextsOfCategory) continue;
      const std::string_view text = trimmed(rows.cell(i));
      if (blanks.contains(text)) continue;
      if (parse_number(text)) {
        ++found.numbers;
      } else if (++found.texts == 1) {
        found.first_text = shown_cell(text);
        found.place_of_text = rows.line_text();
        survey.features[unknown[i]].second = ColumnType::category;
      }
    }
    if (!classifies) continue;
    const std::string_view text = read_class(rows, unknown.size(), blanks);
    const int64_t label = classes.add(text);
    if (classes.texts().size() > kMostCategories)
      rows.fail(unknown.size(),
                cat("a classification has at most ", kMostCategories, " classes. Use task: regression."));
    if (with_labels) survey.labels.push_back(label);
  }
  if (survey.rows == 0)
    throw DataError(cat("[data.TableDataModule] a table must have rows; '",
                        escape_controls(options.paths.front().string()), "' has only a header."));
  for (size_t i = 0; i < unknown.size(); ++i)
    if (kinds[i].numbers + kinds[i].texts == 0)
      throw DataError(cat("[data.TableDataModule] a column must have a value; '",
                          escape_controls(survey.features[unknown[i]].first),
                          "' is blank in all rows. Set its type to ignore in data.init_args.types."));
  warn_mixed_columns(survey, unknown, kinds);
  if (!classifies) return survey;
  if (classes.texts().size() < 2)
    throw DataError(cat("[data.TableDataModule] a classification must have two classes; column '",
                        escape_controls(options.target.front()), "' has only '",
                        escape_controls(classes.texts().front()), "'."));
  survey.classes = sorted_classes(classes.texts(), options.target.front());
  warn_many_numbers(survey, options.target.front());
  std::vector<int64_t> number_of(classes.texts().size());
  for (size_t i = 0; i < survey.classes.size(); ++i)
    number_of[static_cast<size_t>(classes.find(survey.classes[i]))] = static_cast<int64_t>(i);
  for (int64_t& label : survey.labels) label = number_of[static_cast<size_t>(label)];
  return survey;
}

int64_t count_rows(const std::vector<std::filesystem::path>& paths, char delimiter) {
  TableRows rows(paths, delimiter, {});
  int64_t count = 0;
  while (rows.next()) ++count;
  return count;
}

TableSchema fit_schema(const TableDataModule::Options& options, const TableSurvey& survey,
                       const std::function<bool(int64_t)>& is_training) {
  const BlankTexts blanks(options.blank_values);
  TableSchema schema;
  schema.task = options.task;
  schema.classes = survey.classes;
  for (const auto& [name, type] : survey.features) {
    if (type == ColumnType::category)
      schema.categories.push_back({name, {}});
    else
      schema.numbers.push_back({.name = name, .type = type});
  }
  for (const std::string& name : options.target) schema.targets.push_back({.name = name});

  const bool wants_median = options.blank_numbers == TableDataModule::Blanks::median && !options.stream;
  const size_t first_category = schema.numbers.size(), first_target = first_category + schema.categories.size();
  std::vector<Moments> moments(schema.numbers.size()), target_moments(schema.targets.size());
  std::vector<std::vector<double>> values(wants_median ? schema.numbers.size() : 0);
  std::vector<bool> has_blank(schema.numbers.size(), false);
  std::vector<TextNumbers> categories(schema.categories.size());
  TableRows rows(options.paths, options.delimiter.front(), schema.columns(/*with_targets=*/true));
  int64_t used = 0;
  for (int64_t row = 0; rows.next(); ++row) {
    if (!is_training(row)) continue;
    ++used;
    for (size_t i = 0; i < schema.numbers.size(); ++i) {
      const std::optional<double> value = read_number(rows, i, schema.numbers[i].type, blanks);
      if (!value) {
        if (options.blank_numbers == TableDataModule::Blanks::error) fail_blank(rows, i);
        has_blank[i] = true;
        continue;
      }
      moments[i].add(*value);
      if (wants_median) values[i].push_back(*value);
    }
    for (size_t i = 0; i < categories.size(); ++i) {
      categories[i].add(read_category(rows, first_category + i, blanks));
      if (categories[i].texts().size() > kMostCategories)
        rows.fail(first_category + i,
                  cat("a category has at most ", kMostCategories,
                      " different values. Set the column's type to ignore in data.init_args.types."));
    }
    if (schema.is_classification()) continue;
    for (size_t i = 0; i < schema.targets.size(); ++i)
      target_moments[i].add(read_target(rows, first_target + i, blanks));
  }
  if (used == 0)
    throw DataError(
        "[data.TableDataModule] the training part must have rows; it has none. Use more data, or other "
        "fractions.");
  for (size_t i = 0; i < schema.numbers.size(); ++i) {
    NumberFeature& number = schema.numbers[i];
    if (moments[i].count == 0)
      throw DataError(cat("[data.TableDataModule] a column must have a value in the training part; '",
                          escape_controls(number.name),
                          "' is blank there. Set its type to ignore in data.init_args.types."));
    number.fill = wants_median ? median_of(std::move(values[i])) : moments[i].mean;
    number.has_indicator = options.blank_numbers == TableDataModule::Blanks::indicator && has_blank[i];
    if (!options.standardize) continue;
    number.mean = moments[i].mean;
    number.std = moments[i].deviation();
  }
  for (size_t i = 0; i < categories.size(); ++i) {
    schema.categories[i].values = categories[i].texts();
    std::ranges::sort(schema.categories[i].values);
  }
  if (!schema.is_classification() && options.standardize_target)
    for (size_t i = 0; i < schema.targets.size(); ++i) {
      schema.targets[i].mean = target_moments[i].mean;
      schema.targets[i].std = target_moments[i].deviation();
    }
  return schema;
}

}  // namespace fulgur::tables
