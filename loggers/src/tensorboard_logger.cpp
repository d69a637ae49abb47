#include "fulgur/loggers/tensorboard_logger.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "files/append_file.h"
#include "files/run_name.h"
#include "files/tf_record.h"
#include "fulgur/core/system/regular_file.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "media/histogram.h"
#include "media/png_image.h"
#include "tensorboard/event_file_name.h"
#include "tensorboard/events.h"
#include "tensorboard/hparams.h"

namespace fulgur {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr const char* kHpMetric = "hp_metric";
constexpr size_t kMostEventsWaiting = 16 << 20;

double wall_time() { return Seconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

/// A link could lead the files out of the run folder.
std::filesystem::path folder_below(const std::filesystem::path& log_dir, const std::filesystem::path& sub_dir) {
  std::filesystem::path folder = log_dir;
  for (const auto& part : sub_dir) {
    folder /= part;
    std::error_code error;
    if (std::filesystem::is_symlink(folder, error))
      throw ConfigError(cat("[loggers.TensorBoardLogger] sub_dir must be a folder below the run folder; ", folder,
                            " is a link. Remove it, or name another."));
  }
  return folder;
}

}  // namespace

struct TensorBoardLogger::Impl {
  Options options;
  std::string prefix;
  AppendFile file{"TensorBoardLogger", "logger.tensorboard_write", kMostEventsWaiting};
  Clock::time_point flushed;
  bool hp_metric_due = true;
  bool session_open = false;
  int64_t last_step = 0;             ///< the greatest of all rows
  std::optional<StateTree> resumed;  ///< for the next start

  void add(const std::string& event) { file.add(tf_record(event)); }

  /// The event of a record; empty if TensorBoard can show nothing of it.
  std::string event_of(const MediaRecord& record, int64_t step) const {
    const double now = wall_time();
    const std::string tag = prefix + media_name(record);
    if (const auto* image = std::get_if<ImageRecord>(&record))
      return tensorboard::image_event(now, step, tag,
                                      {.height = image->pixels.size(1),
                                       .width = image->pixels.size(2),
                                       .channels = image->pixels.size(0),
                                       .file = png_image(image->pixels)});
    if (const auto* text = std::get_if<TextRecord>(&record))
      return tensorboard::text_event(now, step, tag + "/text_summary", text->text);
    if (const auto* table = std::get_if<TableRecord>(&record))
      return tensorboard::text_event(now, step, tag + "/table", markdown_table(*table));
    const Histogram histogram = histogram_of(std::get<HistogramRecord>(record).values);
    if (histogram.nonfinite > 0)
      log::warn("logger.nonfinite_histogram",
                cat("[loggers.TensorBoardLogger] a histogram needs finite values; '", escape_controls(tag), "' has ",
                    histogram.nonfinite, " others at step ", step, ", which are left out."));
    return histogram.num > 0 ? tensorboard::histogram_event(now, step, tag, histogram) : std::string();
  }

  bool flush() {
    flushed = Clock::now();
    return file.flush();
  }

  /// Removes what was written after the checkpoint: the end of that time's event file, and later files. False if that
  /// file has changed.
  static bool cut_exactly(const std::filesystem::path& folder, const StateTree& state) {
    const std::string name = state.at("file").as_string();
    const FileMark mark = FileMark::read(state);
    const auto names = event_file_names(folder);
    if (std::find(names.begin(), names.end(), name) == names.end()) return false;
    try {
      const auto text = read_regular_file(folder / name);
      if (!text || !mark.begins(*text)) return false;
      std::filesystem::resize_file(folder / name, mark.bytes);
      for (const std::string& later : names)
        if (later > name) std::filesystem::remove(folder / later);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
};

void TensorBoardLogger::Options::fields(Fields& f) {
  LoggerOptions::fields(f);
  f(default_hp_metric, "default_hp_metric",
    "Write hp_metric = -1, the one metric of the HParams table until the module logs it; false: the table shows every "
    "metric.");
  f(prefix, "prefix", "Prefix of each name, followed by a hyphen: PREFIX-train_loss.");
  f(sub_dir, "sub_dir", "Folder of the event files below the run folder; null: the run folder itself.");
  f(flush_every_s, "flush_every_s",
    "Seconds that rows may wait in memory: the first row after that writes them. Checkpoints and the end of the run "
    "write them, too.")
      .at_least(0);
}

TensorBoardLogger::TensorBoardLogger(const Options& options) : impl_(std::make_unique<Impl>()) {
  checked_run_name("TensorBoardLogger", options.name);
  if (options.sub_dir) checked_sub_dir("TensorBoardLogger", *options.sub_dir);
  impl_->options = options;
  if (!options.prefix.empty()) impl_->prefix = cat(options.prefix, '-');
}

TensorBoardLogger::TensorBoardLogger() : TensorBoardLogger(Options()) {}
TensorBoardLogger::~TensorBoardLogger() = default;

std::optional<std::string> TensorBoardLogger::run_name() const { return impl_->options.name; }
std::optional<int64_t> TensorBoardLogger::run_version() const { return impl_->options.version.value; }

void TensorBoardLogger::start(const std::filesystem::path& log_dir, std::optional<int64_t> resume_step) {
  const std::filesystem::path folder = folder_below(log_dir, impl_->options.sub_dir.value_or(""));
  // If it were written again at step 0, it would displace values that the module has logged since.
  impl_->hp_metric_due = !resume_step && impl_->file.path().parent_path() != folder;
  impl_->session_open = false;
  const std::optional<StateTree> state = std::exchange(impl_->resumed, std::nullopt);
  const bool is_cut = state && Impl::cut_exactly(folder, *state);
  impl_->last_step = is_cut ? state->at("last_step").as_int() : resume_step.value_or(0);
  impl_->file.open(folder / event_file_name(folder));
  if (state && !is_cut && resume_step) impl_->file.warn_of_cut_by_step(*resume_step);
  impl_->add(tensorboard::version_event(wall_time()));
  // For a TensorBoard that has already read the past. Twice, since its server takes the first mark of a run as its
  // start and drops nothing for it.
  for (int mark = 0; resume_step && mark < 2; ++mark)
    impl_->add(tensorboard::session_start_event(wall_time(), impl_->last_step + 1));
  impl_->flush();
}

StateTree TensorBoardLogger::state() {
  if (impl_->file.path().empty() || !impl_->flush()) return nullptr;
  StateTree state = StateTree::map({{"file", impl_->file.path().filename().string()}, {"last_step", impl_->last_step}});
  impl_->file.mark().write(state);
  return state;
}

void TensorBoardLogger::load_state(const StateTree& state) { impl_->resumed = state; }

void TensorBoardLogger::log_hyperparams(const ConfigNode& hparams) {
  impl_->file.require_open("log_hyperparams");
  const auto flat = tensorboard::flatten_hparams(hparams);
  if (flat.empty()) return;
  const double now = wall_time();
  if (impl_->options.default_hp_metric) {
    if (impl_->hp_metric_due) impl_->add(tensorboard::scalars_event(now, 0, {{kHpMetric, -1}}, impl_->prefix));
    impl_->hp_metric_due = false;
    impl_->add(tensorboard::experiment_event(now, flat, cat(impl_->prefix, kHpMetric)));
  }
  impl_->add(tensorboard::run_start_event(now, flat));
  impl_->session_open = true;
  impl_->flush();
}

void TensorBoardLogger::log_metrics(const Metrics& metrics, int64_t step) {
  impl_->file.require_open("log_metrics");
  if (metrics.empty()) return;
  impl_->last_step = std::max(impl_->last_step, step);
  impl_->add(tensorboard::scalars_event(wall_time(), step, metrics, impl_->prefix));
  if (Clock::now() - impl_->flushed >= Seconds(impl_->options.flush_every_s) || impl_->file.is_filling())
    impl_->flush();
}

void TensorBoardLogger::log_media(const MediaRecord& record, int64_t step) {
  impl_->file.require_open("log_media");
  const std::string event = impl_->event_of(record, step);
  if (event.empty()) return;
  impl_->last_step = std::max(impl_->last_step, step);
  impl_->flush();  // makes room
  impl_->add(event);
  impl_->flush();
}

void TensorBoardLogger::after_save_checkpoint(const CheckpointInfo&) { impl_->flush(); }

void TensorBoardLogger::flush() { impl_->flush(); }

void TensorBoardLogger::finalize(RunStatus status) noexcept {
  impl_->file.finish([&] {
    if (std::exchange(impl_->session_open, false) && status != RunStatus::interrupted)
      impl_->add(tensorboard::run_end_event(wall_time(), status == RunStatus::success));
  });
}

[[maybe_unused]] static const bool registered_tensorboard_logger = Registry<Logger>::add<TensorBoardLogger>(
    "TensorBoardLogger", "Metrics and hyper-parameters for TensorBoard, an event file in the run folder.");

}  // namespace fulgur
