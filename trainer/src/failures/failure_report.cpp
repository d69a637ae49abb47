#include "failures/failure_report.h"

#include "failures/failed_layers.h"
#include "failures/failure_hints.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/launcher.h"

namespace fulgur::detail {

void report_failure(const RunState& run, const std::exception& error) {
  std::vector<std::string> lines{
      cat("the run failed in ", run.position.failed_in.empty() ? run.place_of_failure() : run.position.failed_in)};
  // A strategy of several devices places the module's tensors itself.
  if (run.strategy->devices().size() == 1)
    if (auto layers = failed_layers(error.what(), *run.model, run.device())) lines.push_back(std::move(*layers));
  if (const auto hint = hint_for(error.what())) lines.push_back(cat("hint: ", *hint));
  for (std::string& line : lines) line = escape_controls(line);
  // The launcher shows once what several ranks report.
  const bool shown_later = keep_for_launcher(join(lines, "\n"));
  for (const std::string& line : lines) shown_later ? log::info(line) : log::error(line);
}

void explain_out_of_memory(const RunState& run) {
  const auto mib = [](int64_t bytes) { return bytes >> 20 > 0 ? cat(bytes >> 20, " MiB") : cat(bytes >> 10, " KiB"); };
  for (const at::Device& device : run.strategy->devices())
    if (const auto memory = device_memory(device))
      log::error(cat("out of memory: tensors hold ", mib(memory->allocated), " of ", device.str(),
                     " (peak: ", mib(memory->peak_allocated), "), and the allocator keeps ", mib(memory->reserved)));
  // Before the loops, there was no batch yet.
  const bool evaluates = !run.position.failed_in.empty() || (run.fn != TrainerFn::fit && !run.position.setting_up);
  // A loader may copy the batch that it reads to the device.
  const bool reads = run.position.reading && !evaluates;
  const bool trains = run.counters.batches_total.ready > 0 || reads;
  // Do not advise what is already set.
  const std::string precision = run.strategy->precision().name();
  const bool is_whole = precision == "32-true" || precision == "64-true";
  const bool is_true_half = precision == "16-true" || precision == "bf16-true";
  if (!evaluates && !trains)
    return log::error(cat("to use less memory: a smaller model", is_true_half ? "" : "; precision: bf16-true",
                          ". Other processes may be using memory of the device"));
  const std::string_view mixed = is_whole ? "; precision: bf16-mixed or 16-mixed" : "";
  // An evaluation has no gradients, and its own batches.
  if (evaluates)
    return log::error(cat("to use less memory: a smaller evaluation batch, such as data.eval_batch_size", mixed,
                          "; keep no outputs on the device"));
  // Micro-batches divide a batch that is on the device.
  if (reads)
    return log::error(
        cat("to use less memory: this happened while a training batch was copied to the device. Use a "
            "smaller batch_size, with accumulate_grad_batches",
            mixed));
  log::error(
      cat("to use less memory: ",
          run.options.auto_micro_batch || run.strategy->divides_parameters() ? "" : "auto_micro_batch: true, or ",
          "a smaller batch with accumulate_grad_batches", mixed, "; activation checkpointing (docs/memory.md)"));
}

}  // namespace fulgur::detail
