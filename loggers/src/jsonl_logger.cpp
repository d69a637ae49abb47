#include "fulgur/loggers/jsonl_logger.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "files/append_file.h"
#include "files/run_name.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "media/media_files.h"

namespace fulgur {
namespace {

nlohmann::ordered_json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

/// Values with the type implied by their text.
nlohmann::ordered_json json_of(const ConfigNode& node) {
  nlohmann::ordered_json out;
  if (node.is_map()) {
    out = nlohmann::ordered_json::object();
    for (const auto& [key, value] : node.entries()) out[key] = json_of(value);
  } else if (node.is_list()) {
    out = nlohmann::ordered_json::array();
    for (const ConfigNode& item : node.items()) out.push_back(json_of(item));
  } else if (node.is_scalar()) {
    Problems ignored;
    bool boolean = false;
    int64_t whole = 0;
    double number = 0;
    if (FieldTraits<bool>::read(node, boolean, ignored, ""))
      out = boolean;
    else if (FieldTraits<int64_t>::read(node, whole, ignored, ""))
      out = whole;
    else if (FieldTraits<double>::read(node, number, ignored, ""))
      out = json_number(number);
    else
      out = node.text();
  }
  return out;
}

/// True if the line is a row that belongs to the run up to `resume_step`.
bool is_kept(std::string_view line, std::optional<int64_t> resume_step) {
  const auto row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) return false;
  return !resume_step || row["step"].get<int64_t>() <= *resume_step;
}

}  // namespace

struct JsonlLogger::Impl {
  Options options;
  AppendFile file{"JsonlLogger", "logger.jsonl_write"};
  MediaFiles media{"JsonlLogger"};
  std::optional<StateTree> resumed;  ///< for the next start

  /// The part of `text` that belongs to the run: up to the mark of `state`; if that does not match, or there is no
  /// state, the complete rows up to `resume_step`.
  std::string kept_of(const std::string& text, const std::optional<StateTree>& state,
                      std::optional<int64_t> resume_step) {
    if (state) {
      const FileMark mark = FileMark::read(*state);
      if (mark.begins(text)) return text.substr(0, mark.bytes);
      if (resume_step) file.warn_of_cut_by_step(*resume_step);
    }
    std::string kept;
    for (size_t position = 0, end = 0; (end = text.find('\n', position)) != std::string::npos; position = end + 1) {
      const std::string_view line(text.data() + position, end - position);
      if (is_kept(line, resume_step)) kept.append(line) += '\n';
    }
    return kept;
  }

  /// A file that is kept completely is not touched.
  void cut(std::optional<int64_t> resume_step) {
    const std::optional<StateTree> state = std::exchange(resumed, std::nullopt);
    std::optional<std::string> text;
    try {
      text = read_regular_file(file.path());
    } catch (const Error& error) {
      return file.warn(error.what());
    }
    const std::string kept = kept_of(text.value_or(""), state, resume_step);
    if (text && kept != *text) {
      const std::string error = replace_file(file.path(), [&](const auto& put) { put(kept); });
      if (!error.empty()) return file.warn(error);
    }
    file.replaced(FileMark::of(kept));
  }
};

JsonlLogger::JsonlLogger(const Options& options) : impl_(std::make_unique<Impl>()) {
  checked_run_name("JsonlLogger", options.name);
  impl_->options = options;
}

JsonlLogger::JsonlLogger() : JsonlLogger(Options()) {}
JsonlLogger::~JsonlLogger() = default;

std::optional<std::string> JsonlLogger::run_name() const { return impl_->options.name; }
std::optional<int64_t> JsonlLogger::run_version() const { return impl_->options.version.value; }

void JsonlLogger::start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) {
  impl_->media.start(log_dir, resume_step);
  impl_->file.open(log_dir / "metrics.jsonl");
  impl_->cut(resume_step);
}

StateTree JsonlLogger::state() {
  if (impl_->file.path().empty()) return nullptr;
  impl_->media.flush();
  if (!impl_->file.flush()) return nullptr;
  StateTree state;
  impl_->file.mark().write(state);
  return state;
}

void JsonlLogger::load_state(const StateTree& state) { impl_->resumed = state; }

void JsonlLogger::log_hyperparams(const ConfigNode& hparams) {
  impl_->file.require_open("log_hyperparams");
  const std::string text = (hparams.is_null() ? nlohmann::ordered_json::object() : json_of(hparams))
                               .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                           '\n';
  impl_->file.write_beside("hparams.json", text);
}

void JsonlLogger::log_metrics(const Metrics& metrics, int64_t step) {
  impl_->file.require_open("log_metrics");
  nlohmann::ordered_json row;
  row["step"] = step;
  for (const auto& [name, value] : metrics)
    if (name == "epoch")
      row["epoch"] = std::trunc(value) == value && std::abs(value) < 1e15
                         ? nlohmann::ordered_json(static_cast<int64_t>(value))
                         : json_number(value);
  for (const auto& [name, value] : metrics) {
    if (name == "epoch") continue;
    if (name == "step") {
      impl_->file.warn_of_reserved_name();
      continue;
    }
    row[name] = json_number(value);
  }
  // Names that are not UTF-8 are repaired, not refused.
  impl_->file.add(row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
  impl_->file.flush();
}

void JsonlLogger::log_media(const MediaRecord& record, int64_t step) { impl_->media.log(record, step); }

void JsonlLogger::log_artifact(const std::filesystem::path& path) { impl_->media.keep(path); }

void JsonlLogger::flush() {
  impl_->media.flush();
  impl_->file.flush();
}

void JsonlLogger::finalize(RunStatus) noexcept {
  impl_->file.finish();
  impl_->media.finish();
}

[[maybe_unused]] static const bool registered_jsonl_logger = Registry<Logger>::add<JsonlLogger>(
    "JsonlLogger", "Metrics as one JSON object per row, metrics.jsonl in the run folder.");

}  // namespace fulgur
