#include "fulgur/tables/table_data_module.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <optional>
#include <set>

#include "columns/row_encoder.h"
#include "columns/table_stream.h"
#include "columns/table_survey.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/iterable_loader.h"
#include "fulgur/data/tensor_dataset.h"
#include "option_bounds.h"

namespace fulgur {

using tables::RowEncoder;
using tables::StreamPart;
using tables::TableSchema;
using tables::TableStream;
using tables::TableSurvey;

/// Groups of files; `main`: paths.
enum TableFiles : size_t { kMainFiles, kValFiles, kTestFiles, kPredictFiles };
using TableFilesSet = std::array<bool, 4>;

struct TableDataModule::Impl {
  Options options;
  std::optional<TableSchema> schema;
  bool schema_is_loaded = false;  ///< from a checkpoint
  bool is_set_up = false;
  TableFilesSet have{};  ///< which files have been read, or with `stream` surveyed
  int64_t rows_of_paths = 0;
  std::shared_ptr<const RowEncoder> encoder, predict_encoder;
  // Not with `stream`: the tensors of the files, and which rows are for training, validation and test.
  Batch main, val, test, predict;
  std::array<std::vector<int64_t>, 3> parts;
  std::array<int64_t, 3> part_rows{};  ///< with `stream`: how many rows these parts have

  bool classifies() const { return options.task == Task::classification; }
  bool stratifies() const { return options.stratify.value.value_or(classifies() && !options.stream); }
  bool splits(RunningStage stage) const {
    return (stage == RunningStage::validate ? options.val_paths : options.test_paths).empty();
  }

  /// Fractions of parts that have files of their own are not taken from the training files.
  SplitOptions split() const {
    SplitOptions split = options.split;
    if (!options.val_paths.empty()) {
      split.val_fraction = 0;
      split.fold.clear();
    }
    if (!options.test_paths.empty()) split.test_fraction = 0;
    return split;
  }

  const std::vector<std::filesystem::path>& paths_of(TableFiles files) const {
    return files == kMainFiles   ? options.paths
           : files == kValFiles  ? options.val_paths
           : files == kTestFiles ? options.test_paths
                                 : options.predict_paths;
  }
  TableFilesSet files_for(TrainerFn fn) const;
  void read(const TableFilesSet& wanted);
  void read_main();
  Batch read_set(TableFiles files) const;
  bool has_row_of(int part) const;
  void check_loaded(const TableSchema& loaded) const;
  std::shared_ptr<Dataset> dataset(RunningStage stage) const;
  std::optional<StreamPart> stream_part(RunningStage stage) const;
  std::shared_ptr<Loader> stream_loader(RunningStage stage, const DataLoaderOptions& how, StreamPart part) const;
};

void TableDataModule::Options::fields(Fields& f) {
  f(paths, "paths", "CSV files with a header, for training and all parts that have no files of their own.")
      .required()
      .min_items(1);
  f(val_paths, "val_paths", "CSV files for validation, in place of val_fraction.");
  f(test_paths, "test_paths", "CSV files for test and predict, in place of test_fraction.");
  f(predict_paths, "predict_paths", "CSV files for predict, without targets; by default those for test.");
  f(target, "target", "The columns to predict; one for a classification.").required().min_items(1);
  f(task, "task", "What is predicted; regression: numbers; classification: one of the texts of the target column.");
  f(types, "types",
    "Types of columns by name: number, category, datetime or ignore. Others are decided by their cells.");
  f(delimiter, "delimiter", "The character between cells.");
  f(blank_values, "blank_values", "Texts that stand for a blank cell.");
  f(blank_numbers, "blank_numbers",
    "What replaces a blank number; mean, median: that of the training part; indicator: the mean, and a further column "
    "says which cells were blank; error: the run ends.");
  f(standardize, "standardize", "Whether numbers get the mean 0 and the deviation 1 of the training part.");
  f(standardize_target, "standardize_target",
    "Whether the model standardises the targets of a regression, by target_mean and target_std.");
  split.fields(f);
  f(stratify, "stratify", "Whether all parts have the same share of each class; auto: for a classification in memory.");
  f(batch_size, "batch_size", "Rows in a training batch.").range(1, tables::kMostRows);
  f(eval_batch_size, "eval_batch_size", "Rows in a batch of validation, test and predict; auto: batch_size.")
      .range(1, tables::kMostRows);
  f(drop_last, "drop_last", "Whether a last training batch that is not full is left out.");
  f(stream, "stream", "Whether files are read again in each epoch instead of kept in memory.");
  f(shuffle_buffer, "shuffle_buffer", "Rows that are shuffled with each other, with stream; 1: the order of the files.")
      .range(1, tables::kMostBufferRows);
  loading.fields(f);
}

TableDataModule::TableDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = detail::checked_options(options, "data.TableDataModule");
  const auto refuse = [](const auto&... what) { throw ConfigError(cat("[data.TableDataModule] ", what...)); };
  options.split.check("data.TableDataModule");
  if (options.task == Task::classification && options.target.size() != 1)
    refuse("a classification must have one target column; got ", join(options.target), ".");
  if (std::set<std::string>(options.target.begin(), options.target.end()).size() != options.target.size())
    refuse("each target must be there once; got ", join(options.target), ".");
  for (const std::string& name : options.target)
    if (options.types.contains(name))
      refuse("types must not name a target, whose type follows from the task; it names '", escape_controls(name), "'.");
  if (options.delimiter.size() != 1 ||
      std::string_view("\"\r\n\0", 4).find(options.delimiter[0]) != std::string_view::npos)
    refuse("delimiter must be one ASCII character that is no quote and no line end; got '",
           escape_controls(options.delimiter), "'.");
  if (options.stratify.value.value_or(false) && options.task != Task::classification)
    refuse("stratify is for a classification; task is regression.");
  if (!options.split.fold.empty() && !options.val_paths.empty())
    refuse("fold divides the training files, but val_paths names files for validation. Remove one of them.");
  if (!options.stream) return;
  if (options.stratify.value.value_or(false))
    refuse("stratify needs all classes in memory, which stream avoids. Set stratify or stream to false.");
  if (options.blank_numbers == Blanks::median)
    refuse("a median needs all numbers in memory, which stream avoids. Set blank_numbers to mean, indicator or error.");
  if (options.loading.num_workers.value.value_or(0) > 1)
    refuse("a stream has one position, so num_workers must be 0 or 1; got ", *options.loading.num_workers.value, ".");
}

TableDataModule::~TableDataModule() = default;

void TableDataModule::setup(TrainerFn fn) {
  impl_->read(impl_->files_for(fn));
  impl_->is_set_up = true;
}

/// The statistics of a checkpoint replace the training files, so that only the files of the stage are needed.
TableFilesSet TableDataModule::Impl::files_for(TrainerFn fn) const {
  if (!schema_is_loaded || fn == TrainerFn::fit) return {true, true, true, true};
  TableFiles files = kMainFiles;
  if (fn == TrainerFn::validate && !options.val_paths.empty()) files = kValFiles;
  if (fn != TrainerFn::validate && !options.test_paths.empty()) files = kTestFiles;
  if (fn == TrainerFn::predict && !options.predict_paths.empty()) files = kPredictFiles;
  TableFilesSet wanted{};
  wanted[files] = true;
  return wanted;
}

/// Reads what is wanted and was not read yet.
void TableDataModule::Impl::read(const TableFilesSet& wanted) {
  const auto is_missing = [&](TableFiles files) { return wanted[files] && !have[files]; };
  if (is_missing(kMainFiles)) read_main();
  if (!encoder || is_missing(kMainFiles)) {
    encoder = std::make_shared<RowEncoder>(*schema, options, /*with_targets=*/true);
    predict_encoder = std::make_shared<RowEncoder>(*schema, options, /*with_targets=*/false);
  }
  std::array<Batch, 4> sets;
  if (!options.stream)
    for (const TableFiles files : {kMainFiles, kValFiles, kTestFiles, kPredictFiles})
      if (is_missing(files)) sets[files] = read_set(files);
  // All is read before anything changes.
  const std::array<Batch*, 4> kept{&main, &val, &test, &predict};
  for (size_t i = 0; i < sets.size(); ++i) {
    if (!sets[i].empty()) *kept[i] = std::move(sets[i]);
    have[i] = have[i] || wanted[i];
  }
}

void TableDataModule::Impl::read_main() {
  Options reading = options;
  // Columns of a checkpoint need no decision.
  if (schema_is_loaded) {
    const tables::CsvFile first(options.paths.front(), options.delimiter.front());
    const std::set<std::string> targets(options.target.begin(), options.target.end());
    for (const std::string& name : first.header())
      if (!targets.contains(name)) reading.types[name] = ColumnType::ignore;
    for (const auto& number : schema->numbers) reading.types[number.name] = number.type;
    for (const auto& category : schema->categories) reading.types[category.name] = ColumnType::category;
  }
  const TableSurvey survey = tables::survey_table(reading, stratifies());
  rows_of_paths = survey.rows;
  if (options.stream) {
    part_rows = {};
    const SplitOptions how = split();
    for (int64_t row = 0; row < survey.rows; ++row) ++part_rows[static_cast<size_t>(tables::part_of_row(how, row))];
    if (!schema_is_loaded)
      schema = tables::fit_schema(options, survey,
                                  [split = split()](int64_t row) { return tables::part_of_row(split, row) == 0; });
  } else {
    parts = split().parts(survey.rows, stratifies() ? &survey.labels : nullptr, "data.TableDataModule");
    const std::vector<int64_t>& training = parts[0];
    size_t next = 0;  // rows come in order
    if (!schema_is_loaded)
      schema = tables::fit_schema(options, survey, [&](int64_t row) {
        const bool is_next = next < training.size() && training[next] == row;
        if (is_next) ++next;
        return is_next;
      });
  }
}

Batch TableDataModule::Impl::read_set(TableFiles files) const {
  const std::vector<std::filesystem::path>& paths = paths_of(files);
  if (paths.empty()) return {};
  const RowEncoder& with = files == kPredictFiles ? *predict_encoder : *encoder;
  if (files == kMainFiles) return with.encode_all(paths, rows_of_paths);
  const int64_t count = tables::count_rows(paths, options.delimiter.front());
  if (count == 0)
    throw DataError(cat("[data.TableDataModule] a table must have rows; '", escape_controls(paths.front().string()),
                        "' has only a header."));
  return with.encode_all(paths, count);
}

std::shared_ptr<Dataset> TableDataModule::Impl::dataset(RunningStage stage) const {
  const auto whole = [stage](Batch rows) -> std::shared_ptr<Dataset> {
    if (rows.empty()) return nullptr;
    if (stage == RunningStage::predict) rows.add("index", at::arange(rows.size(), at::kLong));
    return std::make_shared<TensorDataset>(std::move(rows));
  };
  if (stage == RunningStage::predict && !predict.empty()) return whole(predict);
  if (stage == RunningStage::validate && !val.empty()) return whole(val);
  if ((stage == RunningStage::test || stage == RunningStage::predict) && !test.empty()) return whole(test);
  const std::vector<int64_t>& part = parts[stage == RunningStage::train ? 0 : stage == RunningStage::validate ? 1 : 2];
  if (part.empty() || main.empty()) return nullptr;
  return std::make_shared<SubsetDataset>(whole(main), part);
}

std::optional<StreamPart> TableDataModule::Impl::stream_part(RunningStage stage) const {
  const SplitOptions parts_of = split();
  if (stage == RunningStage::train)
    return StreamPart{options.paths, 0, options.shuffle_buffer, options.shuffle_buffer > 1};
  // The buffer of an evaluation holds a batch.
  const int64_t buffer = options.eval_batch_size.value.value_or(options.batch_size);
  if (stage == RunningStage::predict && !options.predict_paths.empty())
    return StreamPart{options.predict_paths, -1, buffer, false};
  const bool validates = stage == RunningStage::validate;
  if (!splits(stage)) return StreamPart{validates ? options.val_paths : options.test_paths, -1, buffer, false};
  const bool has_part = validates ? !parts_of.fold.empty() || parts_of.val_fraction > 0 : parts_of.test_fraction > 0;
  return has_part ? std::optional(StreamPart{options.paths, validates ? 1 : 2, buffer, false}) : std::nullopt;
}

bool TableDataModule::Impl::has_row_of(int part) const {
  const SplitOptions parts_of = split();
  for (int64_t row = 0; row < rows_of_paths; ++row)
    if (tables::part_of_row(parts_of, row) == part) return true;
  return false;
}

std::shared_ptr<Loader> TableDataModule::Impl::stream_loader(RunningStage stage, const DataLoaderOptions& how,
                                                             StreamPart part) const {
  const bool predicts_files = stage == RunningStage::predict && !options.predict_paths.empty();
  if (part.part >= 0) part.rows = part_rows[static_cast<size_t>(part.part)];
  part.with_index = stage == RunningStage::predict;
  IterableLoaderOptions stream;
  stream.batch_size = how.batch_size;
  stream.drop_last = how.drop_last;
  stream.name = how.name;
  stream.num_workers = options.loading.num_workers.value.value_or(1);
  stream.prefetch_factor = options.loading.prefetch_factor;
  stream.timeout_s = options.loading.timeout_s;
  if (options.loading.pin_memory.value.value_or(false))
    stream.transform = [](const Batch& batch) { return batch.pin_memory(); };
  return std::make_shared<IterableLoader>(
      std::make_shared<TableStream>(predicts_files ? predict_encoder : encoder, split(), options.delimiter.front(),
                                    std::move(part)),
      std::move(stream));
}

std::vector<std::shared_ptr<Loader>> TableDataModule::loaders(RunningStage stage) {
  const Impl& m = *impl_;
  const Options& options = m.options;
  const bool training = stage == RunningStage::train;
  DataLoaderOptions how;
  how.batch_size = training ? options.batch_size : options.eval_batch_size.value.value_or(options.batch_size);
  how.shuffle = training;
  how.drop_last = training && options.drop_last;
  how.name = stage == RunningStage::validate ? "validation" : std::string(name_of(stage));
  if (options.stream) {
    auto part = m.stream_part(stage);
    if (!part || (part->part >= 0 && !m.have[kMainFiles])) return {};
    if (part->part > 0 && !m.has_row_of(part->part))
      throw DataError(cat("[data.TableDataModule] each part must have a sample; the part for ", how.name,
                          " has none of ", m.rows_of_paths, ". Use more data, or other fractions."));
    return {m.stream_loader(stage, how, std::move(*part))};
  }
  auto dataset = m.dataset(stage);
  if (!dataset) return {};
  options.loading.apply(how);
  return {std::make_shared<DataLoader>(std::move(dataset), std::move(how))};
}

StateTree TableDataModule::exported_values() const {
  if (!impl_->schema) return {};
  const TableSchema& schema = *impl_->schema;
  StateTree::List cardinalities, means, deviations, classes;
  for (const auto& category : schema.categories)
    cardinalities.emplace_back(static_cast<int64_t>(category.values.size()) + 1);
  for (const auto& target : schema.targets) {
    if (schema.is_classification()) break;
    means.emplace_back(target.mean);
    deviations.emplace_back(target.std);
  }
  for (const std::string& text : schema.classes) classes.emplace_back(text);
  const auto num_classes = static_cast<int64_t>(schema.classes.size());
  return StateTree::map(
      {{"num_numbers", schema.num_numbers()},
       {"cardinalities", StateTree(std::move(cardinalities))},
       {"num_classes", num_classes},
       {"num_outputs", schema.is_classification() ? num_classes : static_cast<int64_t>(schema.targets.size())},
       {"task", std::string(enum_text(schema.task))},
       {"classes", StateTree(std::move(classes))},
       {"target_mean", StateTree(std::move(means))},
       {"target_std", StateTree(std::move(deviations))}});
}

StateTree TableDataModule::state() const {
  return impl_->schema ? StateTree::map({{"columns", impl_->schema->state()}}) : StateTree();
}

void TableDataModule::Impl::check_loaded(const TableSchema& loaded) const {
  const auto refuse = [](const auto&... what) { throw CheckpointError(cat("[data.TableDataModule] ", what...)); };
  if (loaded.task != options.task)
    refuse("task must be that of the checkpoint, ", enum_text(loaded.task), "; got ", enum_text(options.task), ".");
  std::vector<std::string> targets;
  for (const auto& target : loaded.targets) targets.push_back(target.name);
  if (targets != options.target)
    refuse("target must be that of the checkpoint, ", escape_controls(join(targets)), "; got ",
           escape_controls(join(options.target)), ".");
  const auto check = [&](const std::string& name, ColumnType type) {
    const auto given = options.types.find(name);
    if (given != options.types.end() && given->second != type)
      refuse("types must be those of the checkpoint, in which '", escape_controls(name), "' is a ", enum_text(type),
             "; got ", enum_text(given->second), ".");
  };
  for (const auto& number : loaded.numbers) check(number.name, number.type);
  for (const auto& category : loaded.categories) check(category.name, ColumnType::category);
}

void TableDataModule::load_state(const StateTree& state) {
  if (!state.contains("columns")) return;
  Impl& m = *impl_;
  const TableSchema loaded = TableSchema::from(state.at("columns"));
  m.check_loaded(loaded);
  if (!m.is_set_up) {
    m.schema = loaded;
    m.schema_is_loaded = true;
    return;
  }
  // All is read before anything changes.
  Impl again;
  again.options = m.options;
  again.schema = loaded;
  again.schema_is_loaded = true;
  again.read(m.have);
  const std::array<std::pair<Batch*, Batch*>, 4> sets = {
      {{&m.main, &again.main}, {&m.val, &again.val}, {&m.test, &again.test}, {&m.predict, &again.predict}}};
  for (const auto& [before, after] : sets)
    for (size_t i = 0; i < before->entries(); ++i)
      if ((*before)[i].sizes() != (*after)[i].sizes())
        throw CheckpointError(cat("[data.TableDataModule] the table must have the columns of the checkpoint; entry '",
                                  before->entry(i).first, "' has the shape ", shape_text((*before)[i].sizes()),
                                  " and gets ", shape_text((*after)[i].sizes()),
                                  ". Load the checkpoint before the data module is set up."));
  // In place: existing loaders read the same tensors.
  for (const auto& [before, after] : sets)
    for (size_t i = 0; i < before->entries(); ++i) (*before)[i].copy_((*after)[i]);
  m.schema = loaded;
  m.schema_is_loaded = true;
  m.encoder = again.encoder;
  m.predict_encoder = again.predict_encoder;
}

[[maybe_unused]] static const bool registered_table_data_module = Registry<DataModule>::add<TableDataModule>(
    "TableDataModule", "CSV tables of numbers and categories, for regression and classification.");

}  // namespace fulgur
