#include "fulgur/loggers/csv_logger.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

#include "files/append_file.h"
#include "files/run_name.h"
#include "fulgur/core/options/yaml_writer.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "media/media_files.h"

namespace fulgur {
namespace {

bool parse_step(const std::string& text, int64_t& step) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

struct CsvLogger::Impl {
  using Columns = std::vector<std::string>;
  using Rows = std::vector<std::vector<std::string>>;
  using Put = std::function<void(std::string_view)>;

  /// What a start does to the table of an earlier part of the run.
  struct Cut {
    std::optional<StateTree> state;
    std::optional<int64_t> resume_step;
    std::optional<Rows> kept = {};  ///< the rows that belong to the run, once the table is read
  };

  Options options;
  Columns columns;
  size_t columns_in_file = 0;
  AppendFile file{"CsvLogger", "logger.csv_write"};
  MediaFiles media{"CsvLogger"};
  int64_t rows_waiting = 0;
  std::optional<StateTree> resumed;  ///< for the next start
  std::optional<Cut> cut;            ///< until the file is cut; an error must not cost the earlier rows

  /// Writes header and old rows to a new file.
  bool rewrite(const std::function<void(const Put&)>& put_rows) {
    FileMark mark;
    const std::string error = replace_file(file.path(), [&](const Put& put) {
      const Put counted = [&](std::string_view part) {
        mark.add(part);
        put(part);
      };
      counted(csv_row(columns));
      put_rows(counted);
    });
    if (!error.empty()) {
      file.warn(error);
      return false;
    }
    file.replaced(mark);
    columns_in_file = columns.size();
    return true;
  }

  /// The text of the file, empty if it does not exist; nullopt if it cannot be read.
  std::optional<std::string> text_of_file() const {
    try {
      return read_regular_file(file.path()).value_or("");
    } catch (const Error& error) {
      file.warn(error.what());
      return std::nullopt;
    }
  }

  /// False if rows are still waiting.
  bool flush() {
    if (file.path().empty()) return true;
    rows_waiting = 0;
    if (cut && !cut_file()) return false;
    if (columns_in_file < columns.size() && !widen_file()) return false;
    return file.flush();
  }

  /// Cuts the table of an earlier part of the run, or begins one. False if it must be tried again.
  bool cut_file() {
    if (!cut->kept && !read_earlier()) return false;
    const bool is_cut = rewrite([&](const Put& put) {
      for (std::vector<std::string> row : cut->kept.value_or(Rows())) {
        row.resize(columns.size());
        put(csv_row(row));
      }
    });
    if (is_cut) cut.reset();
    return is_cut;
  }

  /// Reads the table of an earlier part of the run, if there is one. False if it cannot be read now.
  bool read_earlier() {
    const auto text = text_of_file();
    if (!text) return false;
    Columns names;
    Rows rows;
    const bool has_table = read_table(*text, names, rows);
    if (!has_table || !cut->state || !cut_exactly(names, rows, *cut->state)) {
      if (cut->state && cut->resume_step) file.warn_of_cut_by_step(*cut->resume_step);
      if (!has_table) return true;  // it may still appear before the file can be written
      cut_by_step(names, rows, cut->resume_step);
    }
    cut->kept = std::move(rows);
    put_before(std::move(names));
    return true;
  }

  /// False if `text` is no table.
  static bool read_table(const std::string& text, Columns& names, Rows& rows) {
    size_t position = 0;
    auto header = read_csv_row(text, position);
    if (!header || header->size() < 2 || (*header)[0] != "step") return false;
    names = std::move(*header);
    while (auto row = read_csv_row(text, position)) rows.push_back(std::move(*row));
    std::erase_if(rows, [&](const auto& row) { return row.size() != names.size(); });
    return true;
  }

  StateTree state() {
    if (!flush()) return nullptr;
    StateTree state = StateTree::map({{"columns", static_cast<int64_t>(columns.size())}});
    file.mark().write(state);
    return state;
  }

  /// Truncates the table to its state at the checkpoint; false if it is a different table now.
  static bool cut_exactly(Columns& names, Rows& rows, const StateTree& state) {
    const FileMark wanted = FileMark::read(state);
    const auto count = static_cast<size_t>(state.at("columns").as_uint());
    if (count > names.size()) return false;
    // Columns added later made the rows longer.
    const auto front_of = [&](std::vector<std::string> row) {
      row.resize(count);
      return row;
    };
    FileMark mark;
    mark.add(csv_row(front_of(names)));
    size_t kept = 0;
    for (; kept < rows.size() && mark.bytes < wanted.bytes; ++kept) mark.add(csv_row(front_of(rows[kept])));
    if (mark != wanted) return false;
    rows.resize(kept);
    for (auto& row : rows) row.resize(count);
    names.resize(count);
    return true;
  }

  /// Removes rows after `resume_step`, torn ones, and columns that become empty.
  static void cut_by_step(Columns& names, Rows& rows, std::optional<int64_t> resume_step) {
    std::erase_if(rows, [&](const auto& row) {
      int64_t step = 0;
      return !parse_step(row[0], step) || (resume_step && step > *resume_step);
    });
    for (size_t c = names.size(); c-- > 2;) {
      if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return !row[c].empty(); })) continue;
      names.erase(names.begin() + static_cast<std::ptrdiff_t>(c));
      for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
    }
  }

  /// The columns of the earlier table come before those of the rows that wait.
  void put_before(Columns earlier) {
    const Columns of_waiting = std::exchange(columns, std::move(earlier));
    std::vector<size_t> places;
    for (const std::string& name : of_waiting) {
      const auto place = std::find(columns.begin(), columns.end(), name);
      places.push_back(static_cast<size_t>(place - columns.begin()));
      if (place == columns.end()) columns.push_back(name);
    }
    if (columns == of_waiting) return;
    file.change_waiting([&](std::string_view rows) {
      const std::string text(rows);
      std::string moved;
      size_t position = 0;
      while (const auto row = read_csv_row(text, position)) {
        std::vector<std::string> cells(columns.size());
        for (size_t c = 0; c < row->size(); ++c) cells[places[c]] = (*row)[c];
        moved += csv_row(cells);
      }
      return moved;
    });
  }

  /// Rows contain only numbers, so each is one line.
  static void put_longer(std::string_view lines, size_t more, const Put& put) {
    const std::string end = std::string(more, ',') + '\n';
    for (size_t begin = 0, stop = 0; (stop = lines.find('\n', begin)) != std::string_view::npos; begin = stop + 1) {
      put(lines.substr(begin, stop - begin));
      put(end);
    }
  }

  /// Waiting rows get the new columns at once, the file with the next flush.
  void add_columns(const std::vector<std::string>& names) {
    columns.insert(columns.end(), names.begin(), names.end());
    file.hold();
    file.change_waiting([&](std::string_view rows) {
      std::string longer;
      put_longer(rows, names.size(), [&](std::string_view part) { longer += part; });
      return longer;
    });
  }

  bool widen_file() {
    const auto text = text_of_file();
    if (!text) return false;
    size_t position = 0;
    read_csv_row(*text, position);
    const size_t more = columns.size() - columns_in_file;
    return rewrite([&](const Put& put) { put_longer(std::string_view(*text).substr(position), more, put); });
  }
};

void CsvLogger::Options::fields(Fields& f) {
  LoggerOptions::fields(f);
  f(flush_every_n_rows, "flush_every_n_rows",
    "Number of rows that are written at a time; with 1, no row is lost if the process is killed.")
      .at_least(1);
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
  impl_->media.start(log_dir, resume_step);
  impl_->columns = {"step", "epoch"};
  impl_->columns_in_file = 0;
  impl_->file.open(log_dir / "metrics.csv");
  impl_->file.hold();
  impl_->cut = Impl::Cut{.state = std::exchange(impl_->resumed, std::nullopt), .resume_step = resume_step};
  impl_->cut_file();
}

StateTree CsvLogger::state() {
  if (impl_->file.path().empty()) return nullptr;
  impl_->media.flush();
  return impl_->state();
}

void CsvLogger::load_state(const StateTree& state) { impl_->resumed = state; }

void CsvLogger::log_hyperparams(const ConfigNode& hparams) {
  impl_->file.require_open("log_hyperparams");
  impl_->file.write_beside("hparams.yaml", hparams.is_null() ? "{}\n" : to_yaml(hparams));
}

void CsvLogger::log_metrics(const Metrics& metrics, int64_t step) {
  impl_->file.require_open("log_metrics");
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
      impl_->file.warn_of_reserved_name();
      continue;
    }
    const auto column = std::find(impl_->columns.begin() + 1, impl_->columns.end(), name);
    if (column == impl_->columns.end()) continue;
    const bool whole = name == "epoch" && std::abs(value) < 1e15 && std::trunc(value) == value;
    row[static_cast<size_t>(column - impl_->columns.begin())] =
        whole ? cat(static_cast<int64_t>(value)) : csv_number(value);
  }
  impl_->file.add(csv_row(row));
  if (++impl_->rows_waiting >= impl_->options.flush_every_n_rows || impl_->file.is_filling()) impl_->flush();
}

void CsvLogger::log_media(const MediaRecord& record, int64_t step) { impl_->media.log(record, step); }

void CsvLogger::log_artifact(const std::filesystem::path& path) { impl_->media.keep(path); }

void CsvLogger::flush() {
  impl_->media.flush();
  impl_->flush();
}

void CsvLogger::finalize(RunStatus) noexcept {
  impl_->file.finish([&] { impl_->flush(); });
  impl_->media.finish();
}

[[maybe_unused]] static const bool registered_csv_logger =
    Registry<Logger>::add<CsvLogger>("CsvLogger", "Metrics as a table, metrics.csv in the run folder.");

}  // namespace fulgur
