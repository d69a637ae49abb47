#include "fulgur/tables/series_data_module.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "columns/read_cell.h"
#include "fulgur/core/contracts/dataset.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "option_bounds.h"
#include "reading/table_rows.h"

namespace fulgur {
namespace {

/// Windows over rows [begin, end) of series. Without targets, rows of the horizon need not exist.
class SeriesWindows final : public Dataset {
 public:
  struct Cut {
    int64_t begin, end;
    int64_t window, horizon, stride;
    bool with_index = false;  ///< `index`: the row of the file that follows the window
  };
  /// `inputs` (rows, num_inputs) and `targets` (rows, num_outputs, or undefined), float32, contiguous.
  SeriesWindows(Tensor inputs, Tensor targets, const Cut& cut)
      : inputs_(std::move(inputs)), targets_(std::move(targets)), cut_(cut) {}

  int64_t size() const override {
    const int64_t rows = cut_.end - cut_.begin - cut_.window - (targets_.defined() ? cut_.horizon : 0);
    return rows < 0 ? 0 : rows / cut_.stride + 1;
  }

  Batch prototype() const override {
    Batch batch{{"input", at::empty({1, cut_.window, inputs_.size(1)}, at::kFloat)}};
    if (targets_.defined()) batch.add("target", at::empty({1, cut_.horizon, targets_.size(1)}, at::kFloat));
    if (cut_.with_index) batch.add("index", at::empty({1}, at::kLong));
    return batch;
  }

  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out, const SampleContext&) const override {
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] < 0 || indices[i] >= size())
        throw DataError(cat("[data.SeriesDataModule] the index must be in [0, ", size(), "); got ", indices[i], "."));
      const int64_t row = first_row + static_cast<int64_t>(i), begin = cut_.begin + indices[i] * cut_.stride;
      copy(inputs_, begin, cut_.window, out[0], row);
      if (targets_.defined()) copy(targets_, begin + cut_.window, cut_.horizon, out[1], row);
      if (cut_.with_index) out["index"].mutable_data_ptr<int64_t>()[row] = begin + cut_.window;
    }
  }

 private:
  static void copy(const Tensor& series, int64_t begin, int64_t rows, const Tensor& to, int64_t row) {
    const int64_t width = series.size(1);
    std::memcpy(to.select(0, row).mutable_data_ptr(), series.const_data_ptr<float>() + begin * width,
                static_cast<size_t>(rows * width) * sizeof(float));
  }
  Tensor inputs_, targets_;
  Cut cut_;
};

StateTree numbers_state(const std::vector<double>& numbers) {
  StateTree::List list;
  for (const double number : numbers) list.emplace_back(number);
  return StateTree(std::move(list));
}

StateTree names_state(const std::vector<std::string>& names) {
  StateTree::List list;
  for (const std::string& name : names) list.emplace_back(name);
  return StateTree(std::move(list));
}

}  // namespace

struct SeriesDataModule::Impl {
  Options options;
  std::vector<double> mean, spread;  ///< of each column: means and deviations; empty until they are known
  bool is_loaded = false;            ///< mean and spread come from a checkpoint
  Tensor values;                     ///< (rows, columns) float64, as in the file
  Tensor inputs, targets;            ///< float32
  Tensor future, future_inputs;      ///< values and inputs of predict_path
  std::array<int64_t, 4> cuts{};     ///< rows at which training, validation and test begin, and the end

  std::vector<std::string> target_names() const { return options.targets.empty() ? options.columns : options.targets; }
  /// The places of the targets among the columns that are read.
  std::vector<std::string> columns_read() const {
    std::vector<std::string> names = options.columns;
    std::set<std::string> known(names.begin(), names.end());
    for (const std::string& name : target_names())
      if (known.insert(name).second) names.push_back(name);
    return names;
  }
  /// Of each target.
  std::vector<int64_t> target_places() const {
    std::map<std::string, int64_t> places_by_name;
    for (const std::string& name : columns_read())
      places_by_name.emplace(name, static_cast<int64_t>(places_by_name.size()));
    std::vector<int64_t> places;
    for (const std::string& name : target_names()) places.push_back(places_by_name.at(name));
    return places;
  }

  Tensor read_file(const std::filesystem::path& path, const std::vector<std::string>& names) const;
  void read();
  void read_future();
  void standardise();
  /// The columns that the model reads, of `columns`, whose first ones they are.
  Tensor standardised(const Tensor& columns, const std::filesystem::path& path) const;
};

void SeriesDataModule::Options::fields(Fields& f) {
  f(path, "path", "A CSV file with a header, whose rows are in the order of time.").required();
  f(predict_path, "predict_path",
    "Such a file for predict, of which only the columns that the model reads are needed: a forecast follows each "
    "window of it, also the last one; null: the part for test.");
  f(columns, "columns", "The columns that the model reads; numbers without blanks.").required().min_items(1);
  f(targets, "targets", "The columns to forecast; empty: all that are read.");
  f(delimiter, "delimiter", "The character between cells.");
  f(window, "window", "Rows that the model reads.").range(1, tables::kMostRows);
  f(horizon, "horizon", "Rows that are forecast; link the model's option to it.").range(1, tables::kMostRows);
  f(stride, "stride", "Rows between the beginnings of training windows.").range(1, tables::kMostRows);
  f(standardize, "standardize",
    "Whether inputs get the mean 0 and the deviation 1 of the training part, and the model standardises targets.");
  f(val_fraction, "val_fraction", "Fraction of the rows, after the training part, for validation; 0: none.")
      .at_least(0)
      .less_than(1);
  f(test_fraction, "test_fraction", "Fraction of the rows, at the end, for test and predict; 0: none.")
      .at_least(0)
      .less_than(1);
  f(batch_size, "batch_size", "Windows in a training batch.").range(1, tables::kMostRows);
  f(eval_batch_size, "eval_batch_size", "Windows in a batch of validation, test and predict; auto: batch_size.")
      .range(1, tables::kMostRows);
  f(shuffle, "shuffle", "Whether training has a new order of windows in each epoch.");
  loading.fields(f);
}

SeriesDataModule::SeriesDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = detail::checked_options(options, "data.SeriesDataModule");
  const auto refuse = [](const auto&... what) { throw ConfigError(cat("[data.SeriesDataModule] ", what...)); };
  if (options.path.empty()) refuse("path must name a CSV file; it is empty. Set data.init_args.path.");
  for (const auto* names : {&options.columns, &options.targets})
    if (std::set<std::string>(names->begin(), names->end()).size() != names->size())
      refuse("each column must be there once; got ", escape_controls(join(*names)), ".");
  if (options.delimiter.size() != 1)
    refuse("delimiter must be one ASCII character; got '", escape_controls(options.delimiter), "'.");
  if (options.val_fraction + options.test_fraction >= 1)
    refuse("val_fraction and test_fraction must leave something to train on; they are ", options.val_fraction, " and ",
           options.test_fraction, ".");
}

SeriesDataModule::~SeriesDataModule() = default;

void SeriesDataModule::setup(TrainerFn fn) {
  Impl& m = *impl_;
  const bool reads_future = fn == TrainerFn::predict && m.options.predict_path.has_value();
  if (!m.values.defined() && !(reads_future && m.is_loaded)) m.read();
  if (reads_future && !m.future.defined()) m.read_future();
}

Tensor SeriesDataModule::Impl::read_file(const std::filesystem::path& path,
                                         const std::vector<std::string>& names) const {
  const tables::BlankTexts blanks({""});
  tables::TableRows rows({path}, options.delimiter.front(), names);
  std::vector<double> cells;
  while (rows.next())
    for (size_t i = 0; i < names.size(); ++i) {
      const auto value =
          tables::read_number(rows, i, ColumnType::number, blanks,
                              "Correct the cell, or leave the column out of data.init_args.columns and "
                              "data.init_args.targets; dates cannot be read, the order of the rows is that "
                              "of time.");
      if (!value)
        rows.fail(i, "a series must not have gaps; the cell is blank. Fill it, for example with the value before.");
      cells.push_back(*value);
    }
  return at::tensor(cells, at::kDouble).view({-1, static_cast<int64_t>(names.size())});
}

void SeriesDataModule::Impl::read_future() {
  Tensor read_values = read_file(*options.predict_path, options.columns);
  if (read_values.size(0) < options.window)
    throw DataError(cat("[data.SeriesDataModule] predict_path must have the rows of a window, ", options.window, "; '",
                        escape_controls(options.predict_path->string()), "' has ", read_values.size(0),
                        ". Add the rows before them."));
  future_inputs = standardised(read_values, *options.predict_path);
  future = std::move(read_values);
}

void SeriesDataModule::Impl::read() {
  const std::vector<std::string> names = columns_read();
  Tensor read_values = read_file(options.path, names);
  const int64_t count = read_values.size(0);
  const auto part = [&](double fraction) {
    return static_cast<int64_t>(std::llround(fraction * static_cast<double>(count)));
  };
  const int64_t test = part(options.test_fraction), val = part(options.val_fraction);
  cuts = {0, count - val - test, count - test, count};
  constexpr std::array kParts{"training", "validation", "test"};
  const std::array<bool, 3> wanted{true, options.val_fraction > 0, options.test_fraction > 0};
  for (size_t i = 0; i < 3; ++i)
    if (wanted[i] && cuts[i + 1] - cuts[i] < options.window + options.horizon)
      throw DataError(cat(
          "[data.SeriesDataModule] each part must have a sample, window + horizon = ", options.window + options.horizon,
          " rows; the part for ", kParts[i], " has ", cuts[i + 1] - cuts[i], " of ", count,
          " rows. Use a longer file, a smaller window, or another val_fraction or test_fraction."));
  values = std::move(read_values);
  if (!is_loaded) {
    mean.assign(names.size(), 0);
    spread.assign(names.size(), 1);
    const Tensor training = values.narrow(0, 0, cuts[1]);
    for (size_t i = 0; options.standardize && i < names.size(); ++i) {
      const Tensor column = training.select(1, static_cast<int64_t>(i));
      mean[i] = column.mean().item<double>();
      const double deviation = std::sqrt(column.sub(mean[i]).square().mean().item<double>());
      spread[i] = deviation > 0 && std::isfinite(deviation) ? deviation : 1;
    }
  }
  standardise();
}

static void check_series_values(const Tensor& numbers, const std::filesystem::path& path) {
  if (!numbers.isfinite().all().item<bool>())
    throw DataError(cat("[data.SeriesDataModule] values must fit float32, in which models compute; '",
                        escape_controls(path.string()), "' has larger ones. Scale the columns."));
}

Tensor SeriesDataModule::Impl::standardised(const Tensor& columns, const std::filesystem::path& path) const {
  const auto inputs_count = static_cast<int64_t>(options.columns.size());
  const Tensor means = at::tensor(mean, at::kDouble).narrow(0, 0, inputs_count);
  const Tensor deviations = at::tensor(spread, at::kDouble).narrow(0, 0, inputs_count);
  Tensor made = columns.narrow(1, 0, inputs_count).sub(means).div(deviations).to(at::kFloat).contiguous();
  check_series_values(made, path);
  return made;
}

void SeriesDataModule::Impl::standardise() {
  Tensor new_future;
  if (future.defined()) new_future = standardised(future, *options.predict_path);
  if (!values.defined()) {
    future_inputs.copy_(new_future);
    return;
  }
  Tensor new_inputs = standardised(values, options.path);
  Tensor new_targets = values.index_select(1, at::tensor(target_places(), at::kLong)).to(at::kFloat).contiguous();
  check_series_values(new_targets, options.path);
  if (future.defined()) future_inputs.copy_(new_future);
  // In place: existing loaders read the same tensors.
  if (inputs.defined())
    inputs.copy_(new_inputs);
  else
    inputs = std::move(new_inputs);
  targets = std::move(new_targets);
}

std::vector<std::shared_ptr<Loader>> SeriesDataModule::loaders(RunningStage stage) {
  const Impl& m = *impl_;
  const bool training = stage == RunningStage::train, predicting = stage == RunningStage::predict;
  const bool reads_future = predicting && m.options.predict_path;
  if (reads_future && !m.future.defined()) return {};  // before setup
  const size_t part = training ? 0 : stage == RunningStage::validate ? 1 : 2;
  if (!reads_future && m.cuts[part] == m.cuts[part + 1]) return {};
  SeriesWindows::Cut cut{
      m.cuts[part], m.cuts[part + 1], m.options.window, m.options.horizon, training ? m.options.stride : 1, predicting};
  if (reads_future) cut.begin = 0, cut.end = m.future.size(0);
  DataLoaderOptions how;
  how.batch_size = training ? m.options.batch_size : m.options.eval_batch_size.value.value_or(m.options.batch_size);
  how.shuffle = training && m.options.shuffle;
  how.name = stage == RunningStage::validate ? "validation" : std::string(name_of(stage));
  m.options.loading.apply(how);
  auto windows = reads_future ? std::make_shared<SeriesWindows>(m.future_inputs, Tensor(), cut)
                              : std::make_shared<SeriesWindows>(m.inputs, m.targets, cut);
  return {std::make_shared<DataLoader>(std::move(windows), std::move(how))};
}

StateTree SeriesDataModule::exported_values() const {
  const Impl& m = *impl_;
  std::vector<double> means, deviations;
  for (const int64_t place : m.target_places()) {
    if (m.mean.empty()) break;
    means.push_back(m.mean[static_cast<size_t>(place)]);
    deviations.push_back(m.spread[static_cast<size_t>(place)]);
  }
  return StateTree::map({{"num_inputs", static_cast<int64_t>(m.options.columns.size())},
                         {"num_outputs", static_cast<int64_t>(m.target_names().size())},
                         {"window", m.options.window},
                         {"horizon", m.options.horizon},
                         {"target_mean", numbers_state(means)},
                         {"target_std", numbers_state(deviations)}});
}

StateTree SeriesDataModule::state() const {
  if (impl_->mean.empty()) return {};
  return StateTree::map({{"columns", names_state(impl_->columns_read())},
                         {"mean", numbers_state(impl_->mean)},
                         {"std", numbers_state(impl_->spread)}});
}

void SeriesDataModule::load_state(const StateTree& state) {
  if (!state.contains("columns")) return;
  Impl& m = *impl_;
  std::vector<std::string> names;
  std::vector<double> means, deviations;
  for (const StateTree& item : state.at("columns").as_list()) names.push_back(item.as_string());
  for (const StateTree& item : state.at("mean").as_list()) means.push_back(item.as_double());
  for (const StateTree& item : state.at("std").as_list()) deviations.push_back(item.as_double());
  if (names != m.columns_read())
    throw CheckpointError(cat("[data.SeriesDataModule] columns and targets must be those of the checkpoint, ",
                              escape_controls(join(names)), "; got ", escape_controls(join(m.columns_read())), "."));
  if (means.size() != names.size() || deviations.size() != names.size() ||
      !std::ranges::all_of(deviations, [](double value) { return value > 0 && std::isfinite(value); }) ||
      !std::ranges::all_of(means, [](double value) { return std::isfinite(value); }))
    throw CheckpointError("[data.SeriesDataModule] the checkpoint's means and deviations are damaged.");
  const std::vector<double> mean_before = std::exchange(m.mean, std::move(means));
  const std::vector<double> spread_before = std::exchange(m.spread, std::move(deviations));
  const bool was_loaded = std::exchange(m.is_loaded, true);
  if (!m.values.defined() && !m.future.defined()) return;
  try {
    m.standardise();
  } catch (...) {
    m.mean = mean_before;
    m.spread = spread_before;
    m.is_loaded = was_loaded;
    throw;
  }
}

[[maybe_unused]] static const bool registered_series_data_module = Registry<DataModule>::add<SeriesDataModule>(
    "SeriesDataModule", "Windows of series in the columns of a CSV file, for forecasts.");

}  // namespace fulgur
