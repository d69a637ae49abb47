#include "fulgur/loggers/csv_logger.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>

#include "append_file.h"
#include "csv_format.h"
#include "fulgur/core/errors.h"
#include "fulgur/core/log.h"
#include "fulgur/core/text.h"
#include "fulgur/core/yaml_writer.h"
#include "run_name.h"

namespace fulgur {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

bool parse_step(const std::string& text, int64_t& step) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

struct CsvLogger::Impl {
  Options options;
  std::filesystem::path path;
  std::vector<std::string> columns;
  AppendFile file{"CsvLogger", "logger.csv_write"};
  int64_t rows_waiting = 0;
  bool has_header = false;

  /// Header and old rows, by a new file.
  bool rewrite(const std::function<void(const std::function<void(std::string_view)>&)>& put_rows) {
    file.close();
    const std::string error = replace_file(path, [&](const auto& put) {
      put(csv_row(columns));
      put_rows(put);
    });
    if (!error.empty()) file.warn(error);
    else has_header = true;
    return error.empty();
  }

  /// False where rows still wait.
  bool flush() {
    if (path.empty()) return true;
    rows_waiting = 0;
    if (!has_header && !rewrite([](const auto&) {})) return false;
    return file.flush();
  }

  /// Reads what an earlier part of the run wrote; false where there is no table.
  bool read_table(std::vector<std::vector<std::string>>& rows) {
    const std::string text = read_file(path);
    size_t position = 0;
    auto header = read_csv_row(text, position);
    if (!header || header->size() < 2 || (*header)[0] != "step") return false;
    columns = std::move(*header);
    while (auto row = read_csv_row(text, position)) rows.push_back(std::move(*row));
    return true;
  }

  /// Cuts rows after `resume_step`, torn ones, and columns that nothing is left of.
  void mend(std::vector<std::vector<std::string>>& rows, std::optional<int64_t> resume_step) {
    std::erase_if(rows, [&](const auto& row) {
      int64_t step = 0;
      return row.size() != columns.size() || !parse_step(row[0], step) || (resume_step && step > *resume_step);
    });
    for (size_t c = columns.size(); c-- > 2;) {
      if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return !row[c].empty(); })) continue;
      columns.erase(columns.begin() + static_cast<std::ptrdiff_t>(c));
      for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
    }
    rewrite([&](const auto& put) {
      for (const auto& row : rows) put(csv_row(row));
    });
  }

  /// Adds columns for names that have none. Rows hold numbers only, so the old ones are lines. Where the file cannot be
  /// written the columns stay as they were, and the next row tries again.
  void add_columns(const std::vector<std::string>& names) {
    if (!flush()) return;
    const std::string text = read_file(path);
    size_t position = 0;
    read_csv_row(text, position);
    columns.insert(columns.end(), names.begin(), names.end());
    const std::string commas(names.size(), ',');
    const bool written = rewrite([&](const auto& put) {
      for (size_t end = 0; (end = text.find('\n', position)) != std::string::npos; position = end + 1) {
        put(std::string_view(text).substr(position, end - position));
        put(commas);
        put("\n");
      }
    });
    if (!written) columns.resize(columns.size() - names.size());
  }
};

void CsvLogger::Options::fields(Fields& f) {
  LoggerOptions::fields(f);
  f(flush_every_n_rows, "flush_every_n_rows", "Rows that are written at once; with 1 each row survives a killed process.").at_least(1);
}

CsvLogger::CsvLogger(const Options& options) : impl_(std::make_unique<Impl>()) {
  checked_run_name("CsvLogger", options.name);
  impl_->options = options;
}

CsvLogger::CsvLogger() : CsvLogger(Options()) {}
CsvLogger::~CsvLogger() = default;

std::optional<std::string> CsvLogger::run_name() const { return impl_->options.name; }
std::optional<int64_t> CsvLogger::run_version() const { return impl_->options.version.value; }

void CsvLogger::start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) {
  std::error_code error;
  std::filesystem::create_directories(log_dir, error);
  impl_->file.close();
  impl_->path = log_dir / "metrics.csv";
  impl_->columns = {"step", "epoch"};
  impl_->has_header = false;
  impl_->file.open(impl_->path);
  std::vector<std::vector<std::string>> rows;
  if (impl_->read_table(rows)) impl_->mend(rows, resume_step);
  else impl_->rewrite([](const auto&) {});
}

void CsvLogger::log_hyperparams(const ConfigNode& hparams) {
  if (impl_->path.empty()) throw Error("[loggers.CsvLogger] start must be called before log_hyperparams.");
  const auto path = impl_->path.parent_path() / "hparams.yaml";
  const std::string text = hparams.is_null() ? "{}\n" : to_yaml(hparams);
  if (const std::string error = replace_file(path, [&](const auto& put) { put(text); }); !error.empty()) impl_->file.warn(error);
}

void CsvLogger::log_metrics(const Metrics& metrics, int64_t step) {
  if (impl_->path.empty()) throw Error("[loggers.CsvLogger] start must be called before log_metrics.");
  std::vector<std::string> added;
  for (const auto& [name, value] : metrics) {
    const auto known = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
    if (!known(impl_->columns) && !known(added)) added.push_back(name);
  }
  if (!added.empty()) impl_->add_columns(added);
  std::vector<std::string> row(impl_->columns.size());
  row[0] = cat(step);
  for (const auto& [name, value] : metrics) {
    if (name == "step") {
      log::warn("logger.reserved_name", "[loggers.CsvLogger] 'step' is the name of the step itself; the metric of that name is left out. Rename it.");
      continue;
    }
    const auto column = std::find(impl_->columns.begin() + 1, impl_->columns.end(), name);
    if (column == impl_->columns.end()) continue;
    const bool whole = name == "epoch" && std::abs(value) < 1e15 && std::trunc(value) == value;
    row[static_cast<size_t>(column - impl_->columns.begin())] = whole ? cat(static_cast<int64_t>(value)) : csv_number(value);
  }
  impl_->file.add(csv_row(row));
  if (++impl_->rows_waiting >= impl_->options.flush_every_n_rows || impl_->file.is_filling()) impl_->flush();
}

void CsvLogger::flush() { impl_->flush(); }

void CsvLogger::finalize(RunStatus) noexcept {
  impl_->file.finish([&] { impl_->flush(); });
}

[[maybe_unused]] static const bool registered =
    Registry<Logger>::add<CsvLogger>("CsvLogger", "Metrics as a table, metrics.csv in the run folder.");

}  // namespace fulgur
