#include "tuning/tune_batch_size.h"

#include <cmath>

#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "json_text.h"
#include "print.h"
#include "report_file.h"
#include "tuning/tune_options.h"
#include "tuning/tuned_config.h"

namespace fulgur::cli {
namespace {

const char* result_of(BatchTrial result) {
  switch (result) {
    case BatchTrial::fits:
      return "fits";
    case BatchTrial::out_of_memory:
      return "out of memory";
    case BatchTrial::no_such_batch:
      break;
  }
  return "no batch of this size in the data";
}

std::string peak_of(const BatchTrialReport& report) {
  if (report.peak_bytes == 0) return "-";
  const double mib = static_cast<double>(report.peak_bytes) / (1 << 20);
  return cat(format_fixed(mib, mib < 10 ? 1 : 0), " MiB (", report.device,
             report.device == "cpu" ? ", resident)" : ")");
}

std::string trials_table(const std::vector<TriedBatchSize>& trials) {
  std::vector<TextRow> rows{{"batch size", "result", "peak memory"}};
  for (const TriedBatchSize& trial : trials)
    rows.push_back({cat(trial.batch_size), result_of(trial.report.result), peak_of(trial.report)});
  return aligned_lines(rows);
}

// The rates that go with a batch `ratio` times as large as that of the config.
std::string rates_for(const Config& config, double ratio) {
  if (config.trainer.scale_lr != ScaleLr::none)
    return cat("trainer.scale_lr: ", enum_text(config.trainer.scale_lr), " sets the learning rate for it\n");
  const std::vector<RateOption> rates = rates_of(config);
  if (rates.empty())
    return cat("the module sets its learning rates in code: multiply them by ", csv_number(four_digits(ratio)),
               " (linear scaling) or ", csv_number(four_digits(std::sqrt(ratio))), " (square-root scaling)\n");
  const auto options = [&](double factor) {
    std::string text;
    for (const RateOption& rate : rates)
      text += cat(" --", rate.key, "=", csv_number(four_digits(rate.value * factor)));
    return text;
  };
  return cat("learning rate for it, linear scaling:     ", options(ratio).substr(1),
             "\nlearning rate for it, square-root scaling:", options(std::sqrt(ratio)), "\n");
}

std::string sizes_report(const std::vector<TriedBatchSize>& trials, const BatchSizeSearch& search) {
  const auto number = [](const std::optional<int64_t>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json json{{"verb", "tune batch_size"}, {"exit_code", search.suggestion() ? 0 : 1}};
  json["suggestion"] = number(search.suggestion());
  json["greatest"] = number(search.greatest());
  json["reason"] = search.end_reason();
  json["trials"] = nlohmann::ordered_json::array();
  for (const TriedBatchSize& trial : trials)
    json["trials"].push_back({{"batch_size", trial.batch_size},
                              {"result", result_of(trial.report.result)},
                              {"peak_bytes", trial.report.peak_bytes},
                              {"device", trial.report.device}});
  return json_text(json);
}

}  // namespace

std::vector<TriedBatchSize> try_batch_sizes(BatchSizeSearch& search, const RunBatchTrial& run_trial) {
  std::vector<TriedBatchSize> trials;
  while (const auto size = search.next()) {
    BatchTrialReport report;
    try {
      report = run_trial(*size);
    } catch (const DataError&) {
      // Smaller batches have shown that the data can be read: it does not fill this one.
      if (!search.greatest()) throw;
      report.result = BatchTrial::no_such_batch;
    }
    log::info(cat("batch size ", *size, ": ", result_of(report.result)));
    trials.push_back({*size, report});
    search.note(report.result);
  }
  return trials;
}

ExitCode tune_batch_size(const CommandLine& command, const Config& config, const RunBatchTrial& run_trial) {
  const int64_t before = batch_size_of(config);
  BatchSizeSearch search(batch_size_options_of(command.tune).search);
  const std::vector<TriedBatchSize> trials = try_batch_sizes(search, run_trial);
  if (command.report) write_report(*command.report, sizes_report(trials, search));
  print(trials_table(trials));
  const auto found = search.suggestion();
  if (!found)
    throw Error(cat("[tune.batch_size] no batch size can be suggested: ", search.end_reason(),
                    ". Start with a smaller --init, or make the model smaller (docs/memory.md)."));
  std::string text = cat("suggested batch size: ", *found, " (", search.end_reason(),
                         ")\nuse it with: --data.batch_size=", *found, "\n");
  text += rates_for(config, static_cast<double>(*found) / static_cast<double>(before));
  print(text);
  return ExitCode::ok;
}

}  // namespace fulgur::cli
