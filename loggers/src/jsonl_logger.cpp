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

  /// What a start does to the file of an earlier part of the run.
  struct Cut {
    std::optional<StateTree> state;
    std::optional<int64_t> resume_step;
    std::optional<std::string> kept = {};     ///< the part that belongs to the run, once the file is read
    bool removes = false, is_prefix = false;  ///< whether the file has more; whether that is all at its end
  };
  std::optional<Cut> cut;  ///< until the file is cut; rows wait for that

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

  /// Cuts the file of an earlier part of the run; one that is kept completely is not touched. False if it must be
  /// tried again.
  bool cut_file() {
    if (!cut->kept && !read_earlier()) return false;
    if (!cut->kept) {  // an earlier file may still appear before a new one can be written
      file.replaced({});
      return true;
    }
    if (cut->removes && !write_kept()) return false;
    file.replaced(FileMark::of(*cut->kept));
    cut.reset();
    return true;
  }

  /// False if the file cannot be read now.
  bool read_earlier() {
    std::optional<std::string> text;
    try {
      text = read_regular_file(file.path());
    } catch (const Error& error) {
      file.warn(error.what());
      return false;
    }
    std::string kept = kept_of(text.value_or(""), cut->state, cut->resume_step);
    if (!text) return true;
    cut->removes = kept != *text;
    cut->is_prefix = text->starts_with(kept);
    cut->kept = std::move(kept);
    return true;
  }

  bool write_kept() {
    const std::string error = replace_file(file.path(), [&](const auto& put) { put(*cut->kept); });
    if (error.empty()) return true;
    // A full disk has no room for a second file, but needs none to shorten the first. A link is not followed.
    std::error_code failed;
    if (cut->is_prefix && !std::filesystem::is_symlink(file.path(), failed)) {
      std::filesystem::resize_file(file.path(), cut->kept->size(), failed);
      if (!failed) return true;
    }
    file.warn(error);
    return false;
  }

  /// False if rows are still waiting.
  bool flush() {
    if (cut && !cut_file()) return false;
    if (!file.flush()) return false;
    cut.reset();
    return true;
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
  impl_->file.hold();
  impl_->cut = Impl::Cut{.state = std::exchange(impl_->resumed, std::nullopt), .resume_step = resume_step};
  impl_->cut_file();
}

StateTree JsonlLogger::state() {
  if (impl_->file.path().empty()) return nullptr;
  impl_->media.flush();
  if (!impl_->flush()) return nullptr;
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
  impl_->flush();
}

void JsonlLogger::log_media(const MediaRecord& record, int64_t step) { impl_->media.log(record, step); }

void JsonlLogger::log_artifact(const std::filesystem::path& path) { impl_->media.keep(path); }

void JsonlLogger::flush() {
  impl_->media.flush();
  impl_->flush();
}

void JsonlLogger::finalize(RunStatus) noexcept {
  impl_->file.finish([&] { impl_->flush(); });
  impl_->media.finish();
}

[[maybe_unused]] static const bool registered_jsonl_logger = Registry<Logger>::add<JsonlLogger>(
    "JsonlLogger", "Metrics as one JSON object per row, metrics.jsonl in the run folder.");

}  // namespace fulgur
