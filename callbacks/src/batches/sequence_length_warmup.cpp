#include "fulgur/callbacks/sequence_length_warmup.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "fulgur/core/contracts/interval_trigger.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

ConfigError wrong_warmup(const std::string& what) {
  return ConfigError(cat("[callbacks.SequenceLengthWarmup] ", what));
}

std::string names_in(const Batch& batch) {
  std::vector<std::string> names;
  for (const auto& [name, value] : batch) names.push_back(escape_controls(name));
  return join(names);
}

// The row [n x length, ...] of a sequence becomes n rows [length, ...], one after the other.
Tensor in_segments(const Tensor& tensor, int64_t dim, int64_t length) {
  return tensor.unflatten(dim, {tensor.size(dim) / length, length}).movedim(dim, 1).flatten(0, 1);
}

}  // namespace

void SequenceLengthWarmup::Options::fields(Fields& f) {
  f(start, "start", "Length of the sequences at the start of the fit.").at_least(1).required();
  f(end, "end", "Length after the warm-up; null: that of the sequences.").at_least(1);
  f(duration, "duration", "Length of training in which sequences grow from start to end.")
      .units({"ep", "st", "sa", "tok"})
      .required();
  f(step, "step", "Lengths are multiples of it.").at_least(1);
  f(keys, "keys", "Entries of the batch that have sequences, such as [input, target].").min_items(1).required();
  f(dim, "dim", "The dimension of the sequences in these entries.").at_least(1);
  f(mode, "mode", "Leave out what is too long (truncate), or make it more rows (segment).");
}

SequenceLengthWarmup::SequenceLengthWarmup(Options options)
    : options_(detail::checked_options(std::move(options), "callbacks.SequenceLengthWarmup")) {
  const Options& o = options_;
  if (!(o.duration.value > 0)) throw wrong_warmup(cat("duration must be longer than 0; got ", o.duration.text(), "."));
  for (const auto& [name, length] : {std::pair("start", std::optional(o.start)), std::pair("end", o.end)})
    if (length && *length % o.step != 0)
      throw wrong_warmup(cat(name, " must be a multiple of step (", o.step, "); got ", *length, "."));
  if (o.end && *o.end < o.start)
    throw wrong_warmup(cat("end must not be below start; got start ", o.start, " and end ", *o.end, "."));
}

void SequenceLengthWarmup::on_train_start(RunContext& run) {
  const Interval& duration = options_.duration;
  if (duration.unit == Interval::Unit::samples || duration.unit == Interval::Unit::tokens)
    run.meters().count_each_batch();
  // A resumed run was checked when it began.
  checked_ = run.progress().batches_total.completed > 0;
  longest_ = 0;
  if (!position_in(duration.unit, run))
    throw wrong_warmup("duration counts tokens, but the module does not count them. Override num_tokens(batch).");
  if (duration.unit == Interval::Unit::epochs && !run.num_batches(RunningStage::train))
    throw wrong_warmup(cat("duration in epochs needs a training loader of known length; got ", duration.text(),
                           " and a loader without one. Use st, sa or tok."));
}

int64_t SequenceLengthWarmup::length_at(double part, int64_t full) const {
  const int64_t end = options_.end.value_or(full);
  if (part >= 1) return std::min(end, full);
  const double wanted = static_cast<double>(options_.start) +
                        static_cast<double>(std::max<int64_t>(end - options_.start, 0)) * std::max(part, 0.0);
  // Rounding must not take a whole step away.
  const auto steps = static_cast<int64_t>(std::floor(wanted / static_cast<double>(options_.step) + 1e-9));
  return std::min(steps * options_.step, full);
}

int64_t SequenceLengthWarmup::length_of_sequences(const Batch& batch) const {
  std::optional<int64_t> full;
  for (const std::string& key : options_.keys) {
    if (!batch.contains(key))
      throw wrong_warmup(cat("keys must name entries of the training batches; there is no '", escape_controls(key),
                             "'. They have: ", names_in(batch), "."));
    const auto entry = std::ranges::find(batch, key, [](const Batch::Entry& each) { return each.first; });
    const auto* tensor = std::get_if<Tensor>(&entry->second);
    if (!tensor || !tensor->defined() || tensor->dim() <= options_.dim)
      throw wrong_warmup(cat("'", escape_controls(key), "' must be a tensor with dimension ", options_.dim, "; got ",
                             tensor && tensor->defined() ? shape_text(tensor->sizes()) : std::string("a list"),
                             ". Set dim to the dimension of the sequences."));
    const int64_t length = tensor->size(options_.dim);
    if (full && *full != length)
      throw wrong_warmup(cat("the entries of keys must have sequences of the same length; got ", *full, " and ", length,
                             " for '", escape_controls(key), "'. Use one SequenceLengthWarmup for each length."));
    full = length;
  }
  return full.value_or(0);
}

int64_t SequenceLengthWarmup::dividing_length(int64_t wanted, int64_t full) const {
  if (wanted >= full) return full;
  int64_t length = wanted - wanted % options_.step;
  while (length > 0 && full % length != 0) length -= options_.step;
  if (length > 0) return length;
  throw wrong_warmup(
      cat("mode: segment keeps all elements, so a length must divide that of the sequences; no multiple "
          "of step (",
          options_.step, ") up to ", wanted, " divides ", full, ". Choose another step or start, or mode: truncate."));
}

Batch SequenceLengthWarmup::truncated(Batch batch, int64_t length) const {
  for (auto& [name, value] : batch)
    if (std::ranges::find(options_.keys, name) != options_.keys.end())
      value = std::get<Tensor>(value).narrow(options_.dim, 0, length).contiguous();
  return batch;
}

Batch SequenceLengthWarmup::segmented(Batch batch, int64_t length) const {
  for (auto& [name, value] : batch) {
    const auto* tensor = std::get_if<Tensor>(&value);
    if (std::ranges::find(options_.keys, name) != options_.keys.end())
      value = in_segments(*tensor, options_.dim, length).contiguous();
    else if (!tensor || tensor->dim() > 0)
      throw wrong_warmup(
          cat("mode: segment makes several rows of each, so all entries with rows must have sequences; '",
              escape_controls(name), "' is not among keys. Add it if it has sequences, or use mode: truncate."));
  }
  return batch;
}

// Sequences that are shorter than `start` would never be shortened. Later batches may have any length.
void SequenceLengthWarmup::refuse_long_start(const Batch& batch, int64_t full) const {
  if (full >= options_.start) return;
  const std::string& key = options_.keys.front();
  const auto entry = std::ranges::find(batch, key, [](const Batch::Entry& each) { return each.first; });
  throw wrong_warmup(cat("start must not be longer than the sequences of the first batch; start ", options_.start,
                         " is longer than dimension ", options_.dim, " of '", escape_controls(key), "' (", full, " of ",
                         shape_text(std::get<Tensor>(entry->second).sizes()),
                         "). Set a smaller start, or keys and dim to those of the sequences."));
}

void SequenceLengthWarmup::on_train_end(RunContext& run) {
  if (longest_ > 0 && !run.log_dir().empty() &&
      position_in(options_.duration.unit, run).value_or(0) < options_.duration.value)
    log::warn("sequence_length_warmup.not_ended",
              cat("SequenceLengthWarmup: the fit has ended after ", counted(run.progress().global_step, "step"),
                  ", before the warm-up of ", options_.duration.text(), " did: the last sequences had a length of ",
                  length_));
  if (!options_.end || longest_ == 0 || *options_.end <= longest_ || run.log_dir().empty()) return;
  log::warn("sequence_length_warmup.long_end",
            cat("SequenceLengthWarmup: end is ", *options_.end, ", but no sequence was longer than ", longest_,
                ", so the sequences were whole before the warm-up ended. Leave end out"));
}

Batch SequenceLengthWarmup::shape_batch(RunContext& run, Batch batch) {
  const int64_t full = length_of_sequences(batch);
  if (!std::exchange(checked_, true)) refuse_long_start(batch, full);
  longest_ = std::max(longest_, full);
  const double part = position_in(options_.duration.unit, run).value_or(0) / options_.duration.value;
  length_ = length_at(part, full);
  if (options_.mode == LongSequences::segment) length_ = dividing_length(length_, full);
  if (length_ == full) return batch;
  return options_.mode == LongSequences::segment ? segmented(std::move(batch), length_)
                                                 : truncated(std::move(batch), length_);
}

void SequenceLengthWarmup::on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t) {
  if (run.meters().is_logging_step())
    run.log("sequence_length", static_cast<double>(length_), {.reduce_fx = Reduce::last});
}

[[maybe_unused]] static const bool registered_sequence_length_warmup = Registry<Callback>::add<SequenceLengthWarmup>(
    "SequenceLengthWarmup", "Trains on shorter sequences first, whose length grows to the full one.");

}  // namespace fulgur
