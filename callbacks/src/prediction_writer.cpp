#include "fulgur/callbacks/prediction_writer.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "fulgur/checkpoint/new_file.h"
#include "fulgur/checkpoint/safetensors_writer.h"
#include "fulgur/core/contracts/run_views.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

namespace fs = std::filesystem;
using PredictedBatch = PredictionWriter::Predicted;

constexpr const char* kIndexName = "sample_index";
constexpr const char* kFilePrefix = "predictions-";

std::string with_zeros(int64_t number, size_t digits) {
  std::string text = std::to_string(number);
  return text.size() < digits ? std::string(digits - text.size(), '0') + text : text;
}

bool has_predictions(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().filename().string().starts_with(kFilePrefix)) return true;
  return false;
}

// All ranks look before any of them writes.
void refuse_predictions(RunContext& run, const fs::path& folder, bool here) {
  if (run.collectives().any(here && has_predictions(folder)))
    throw ConfigError(cat("[callbacks.PredictionWriter] output_dir must not have predictions of another run; ", folder,
                          " has some. Remove them, or choose another folder."));
}

[[noreturn]] void refuse_output(const std::string& text) { throw Error(cat("[callbacks.PredictionWriter] ", text)); }

// The outputs on the CPU, checked.
PredictedBatch on_host(const Outputs& outputs, const Tensor& indices, int64_t samples) {
  PredictedBatch batch{.outputs = {}, .sample_indices = indices};
  for (const auto& [name, value] : outputs) {
    if (name == kIndexName)
      refuse_output(cat("the name '", kIndexName, "' belongs to the writer; predict_step returns an output with it. ",
                        "Rename the output."));
    if (!value.defined() || value.dim() == 0 || value.size(0) != samples)
      refuse_output(cat("output '", escape_controls(name), "' must have one row per sample (", samples, "); got ",
                        !value.defined()   ? "an undefined tensor"
                        : value.dim() == 0 ? "a scalar"
                                           : cat(value.size(0), " rows"),
                        "."));
    if (value.layout() != at::kStrided)
      refuse_output(cat("output '", escape_controls(name), "' must be dense; call to_dense()."));
    Tensor copy = value.to(at::kCPU).contiguous();
    // A captured or reused buffer may be overwritten by the next batch.
    batch.outputs.add(name, copy.is_alias_of(value) ? copy.clone() : copy);
  }
  return batch;
}

// The tensors of a file that has the rows of all batches.
std::vector<SafetensorsWriter::Entry> entries_of(const std::vector<const PredictedBatch*>& batches) {
  std::vector<SafetensorsWriter::Entry> entries;
  int64_t rows = 0;
  for (const PredictedBatch* batch : batches) rows += batch->sample_indices.size(0);
  for (const auto& [name, value] : batches.front()->outputs) {
    std::vector<int64_t> shape = value.sizes().vec();
    shape[0] = rows;
    entries.push_back({name, value.scalar_type(), std::move(shape)});
  }
  entries.push_back({kIndexName, at::kLong, {rows}});
  for (const PredictedBatch* batch : batches) {
    size_t place = 0;
    for (const auto& [name, value] : batch->outputs) {
      const bool same = place + 1 < entries.size() && entries[place].name == name &&
                        entries[place].dtype == value.scalar_type() &&
                        std::equal(value.sizes().begin() + 1, value.sizes().end(), entries[place].shape.begin() + 1,
                                   entries[place].shape.end());
      if (!same)
        refuse_output(cat("every predict_step must return the same outputs; '", escape_controls(name), "' (",
                          c10::toString(value.scalar_type()), " ", shape_text(value.sizes().slice(1)),
                          " in a row) differs from the first batch. Use write_interval: batch for such outputs."));
      ++place;
    }
    if (place + 1 != entries.size())
      refuse_output(cat("every predict_step must return the same outputs; '", escape_controls(entries[place].name),
                        "', which the first batch had, is missing. Use write_interval: batch for such outputs."));
  }
  return entries;
}

}  // namespace

void PredictionWriter::Options::fields(Fields& f) {
  f(output_dir, "output_dir", "Folder of the files; null: predictions/ in the run folder.");
  f(write_interval, "write_interval", "Whether a file is written for each batch, or for each loader at the end.");
}

PredictionWriter::PredictionWriter(Options options) : options_(std::move(options)) {}

PredictionWriter::~PredictionWriter() = default;

void PredictionWriter::setup(RunContext& run, TrainerFn fn) {
  // Before the data is read. The run folder is not known yet; a run without loggers may be one that writes nothing.
  if (fn != TrainerFn::predict || !options_.output_dir || run.fast_dev_run()) return;
  refuse_predictions(run, *options_.output_dir, !run.loggers().empty());
}

void PredictionWriter::on_predict_start(RunContext& run) {
  // fast_dev_run and barebones have no run folder, and leave nothing behind.
  is_trial_ = run.log_dir().empty();
  files_ = 0;
  if (is_trial_) return;
  kept_.assign(static_cast<size_t>(run.extent().num_loaders(RunningStage::predict)), {});
  folder_ = options_.output_dir ? *options_.output_dir : run.log_dir() / "predictions";
  refuse_predictions(run, folder_, true);
  std::error_code error;
  fs::create_directories(folder_, error);
  if (run.collectives().any(static_cast<bool>(error)))
    throw ConfigError(cat("[callbacks.PredictionWriter] output_dir must be a folder that can be created; ", folder_,
                          error ? cat(": ", error.message()) : std::string(" cannot be created on another rank"),
                          ". Choose another folder."));
}

void PredictionWriter::on_predict_batch_end(RunContext& run, const Outputs& outputs, const Batch& batch,
                                            int64_t batch_idx, int64_t loader_idx) {
  const int64_t samples = batch.size();
  Tensor indices = run.sample_indices();
  // Only the order within this rank is known.
  if (!indices.defined()) {
    int64_t before = 0;
    if (batch_idx > 0) before = rows_of_loader_;
    indices = at::arange(before, before + samples, at::TensorOptions(at::kLong));
  }
  rows_of_loader_ = (batch_idx > 0 ? rows_of_loader_ : 0) + samples;
  Predicted predicted = on_host(outputs, indices, samples);
  if (is_trial_) return;  // the outputs were checked
  if (options_.write_interval != WriteInterval::epoch) write_on_batch_end(run, predicted, batch, batch_idx, loader_idx);
  if (options_.write_interval != WriteInterval::batch)
    kept_.at(static_cast<size_t>(loader_idx)).push_back(std::move(predicted));
}

void PredictionWriter::on_predict_epoch_end(RunContext& run) {
  if (is_trial_) return;
  if (options_.write_interval != WriteInterval::batch) write_on_epoch_end(run, kept_);
  kept_.clear();
  if (files_ > 0) run.print(cat("PredictionWriter: ", counted(files_, "file"), " of this rank in ", folder_));
}

void PredictionWriter::on_exception(RunContext&, const std::exception&) { kept_.clear(); }

void PredictionWriter::write_on_batch_end(RunContext& run, const Predicted& predicted, const Batch&, int64_t batch_idx,
                                          int64_t loader_idx) {
  write(run, cat("-batch", with_zeros(batch_idx, 8)), {&predicted}, loader_idx);
}

void PredictionWriter::write_on_epoch_end(RunContext& run, const std::vector<std::vector<Predicted>>& loaders) {
  for (size_t l = 0; l < loaders.size(); ++l) {
    std::vector<const Predicted*> batches;
    for (const Predicted& predicted : loaders[l]) batches.push_back(&predicted);
    if (!batches.empty()) write(run, "", batches, static_cast<int64_t>(l));
  }
}

void PredictionWriter::write(RunContext& run, const std::string& suffix, const std::vector<const Predicted*>& batches,
                             int64_t loader_idx) {
  const auto entries = entries_of(batches);
  const std::string name =
      cat(kFilePrefix, "rank", with_zeros(run.rank(), 2), "-loader", with_zeros(loader_idx, 2), suffix, ".safetensors");
  detail::NewFile file(folder_, name, "callbacks.PredictionWriter");
  SafetensorsWriter writer(file.hidden(), entries);
  int64_t row = 0;
  for (const Predicted* batch : batches) {
    size_t place = 0;
    for (const auto& [output, value] : batch->outputs) writer.write(place++, row, value);
    writer.write(place, row, batch->sample_indices);
    row += batch->sample_indices.size(0);
  }
  writer.commit();
  file.publish();
  file.keep();
  ++files_;
}

[[maybe_unused]] static const bool registered_prediction_writer = Registry<Callback>::add<PredictionWriter>(
    "PredictionWriter", "Writes the predictions of each rank to files, for each batch or at the end of predict.");

}  // namespace fulgur
