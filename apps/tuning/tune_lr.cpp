#include "tuning/tune_lr.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fulgur/core/text/csv_format.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "fulgur/history/curve_page.h"
#include "json_text.h"
#include "prepared_run.h"
#include "print.h"
#include "report_file.h"
#include "tuning/tune_options.h"
#include "tuning/tuned_config.h"

namespace fulgur::cli {
namespace {

constexpr size_t kMostCurveRows = 20;

std::string end_of(const LrCurve& curve) {
  switch (curve.end) {
    case LrTestEnd::all_steps:
      return "all steps were made";
    case LrTestEnd::diverged:
      return "the loss diverged";
    case LrTestEnd::not_finite:
      return "the loss was not finite";
    case LrTestEnd::no_more_data:
      break;
  }
  return "the run ended early";
}

std::string csv_of(const LrCurve& curve) {
  std::string text = csv_row({"step", "lr", "loss", "smoothed_loss"});
  for (size_t i = 0; i < curve.points.size(); ++i) {
    const LrPoint& point = curve.points[i];
    text += csv_row(
        {cat(static_cast<int64_t>(i + 1)), csv_number(point.lr), csv_number(point.loss), csv_number(point.smoothed)});
  }
  return text;
}

std::string page_of(const LrCurve& curve, const LrSuggestion& suggestion, LrTestMode mode, const std::string& summary) {
  const bool by_log = mode == LrTestMode::exponential;
  const auto x_of = [&](double lr) { return by_log ? std::log10(lr) : lr; };
  history::PlottedCurve loss{.name = "loss", .points = {}}, smoothed{.name = "smoothed loss", .points = {}};
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const LrPoint& point : curve.points) {
    loss.points.emplace_back(x_of(point.lr), point.loss);
    smoothed.points.emplace_back(x_of(point.lr), point.smoothed);
    if (!std::isfinite(point.smoothed)) continue;
    low = std::min(low, point.smoothed);
    high = std::max(high, point.smoothed);
  }
  std::vector<history::PlottedCurve> curves{loss, smoothed};
  if (suggestion.lr)
    curves.push_back({.name = cat("suggestion: ", four_digits(*suggestion.lr)),
                      .points = {{x_of(*suggestion.lr), low}, {x_of(*suggestion.lr), high}},
                      .dashed = true});
  return history::curve_page("Learning-rate range test", by_log ? "log10(lr)" : "lr", curves, {summary});
}

// At most kMostCurveRows of the points, evenly chosen, and the suggested one.
std::string curve_table(const LrCurve& curve, const LrSuggestion& suggestion) {
  std::vector<TextRow> rows{{"step", "learning rate", "loss", "smoothed loss"}};
  const size_t count = curve.points.size(), every = std::max<size_t>((count + kMostCurveRows - 1) / kMostCurveRows, 1);
  for (size_t i = 0; i < count; ++i) {
    if (i % every != 0 && i + 1 != count && suggestion.index != i) continue;
    const LrPoint& point = curve.points[i];
    TextRow row{cat(static_cast<int64_t>(i + 1)), csv_number(four_digits(point.lr)),
                csv_number(four_digits(point.loss)), csv_number(four_digits(point.smoothed))};
    if (suggestion.index == i) row.emplace_back("<- steepest descent");
    rows.push_back(std::move(row));
  }
  return aligned_lines(rows);
}

// How to train with the suggested rate of the first parameter group.
std::string overrides_for(const Config& config, double lr, double initial_lr) {
  const std::vector<RateOption> rates = rates_of(config);
  if (rates.empty())
    return cat("the module sets its learning rates in code: multiply them by ",
               csv_number(four_digits(lr / initial_lr)), "\n");
  std::string text = "use it with:";
  for (size_t i = 0; i < rates.size(); ++i)
    text += cat(" --", rates[i].key, "=", csv_number(four_digits(i == 0 ? lr : rates[i].value * (lr / initial_lr))));
  if (config.trainer.scale_lr != ScaleLr::none) text += " --trainer.scale_lr=none --trainer.base_batch_size=null";
  return text + "\n";
}

std::string lr_report(const LrCurve& curve, const LrSuggestion& suggestion, const std::string& csv,
                      const std::string& html) {
  nlohmann::ordered_json json{{"verb", "tune lr"}, {"exit_code", 0}};
  json["suggestion"] = suggestion.lr ? nlohmann::ordered_json(*suggestion.lr) : nlohmann::ordered_json(nullptr);
  json["reason"] = suggestion.reason;
  json["end"] = end_of(curve);
  json["steps"] = curve.points.size();
  json["csv"] = csv;
  json["html"] = html;
  return json_text(json);
}

}  // namespace

LrTestReport test_lr(const Config& config, const LrRangeTest::Options& options, bool several) {
  const auto range_test = std::make_shared<LrRangeTest>(options);
  Config trial = trial_config(config);
  trial.trainer.max_steps = options.steps;
  trial.trainer.max_epochs = options.steps;  // an epoch has at least one step, unless no batch has a loss
  trial.trainer.limit_val_batches = BatchLimit(0);
  // The ranks see the same loss, and must stop at the same step.
  trial.trainer.agree_every = int64_t{1};
  TrainerComponents components;
  components.is_trial = true;
  components.add(range_test);
  PreparedRun run = prepare(trial, TrainerFn::fit, several, std::move(components));
  const FitReport fit = run.trainer.fit(run.module, run.data, trial.ckpt_path);
  return {.curve = range_test->curve(), .initial_lr = range_test->initial_lr(), .exit_code = fit.exit_code};
}

ExitCode tune_lr(const CommandLine& command, const Config& config, bool several, bool first_rank) {
  const LrRangeTest::Options options = lr_options_of(command.tune);
  const std::string name = command.output ? command.output->string() : "lr_range_test";
  const std::string csv = name + ".csv", html = name + ".html";
  if (first_rank)
    for (const std::string& file : {csv, html}) check_report_path(file, "--output");
  const LrTestReport test = test_lr(config, options, several);
  if (test.exit_code != ExitCode::ok || !first_rank) return test.exit_code;

  const LrCurve& curve = test.curve;
  const LrSuggestion suggestion = suggest_lr(curve);
  const std::string summary =
      cat(counted(static_cast<int64_t>(curve.points.size()), "step"), ", then ", end_of(curve), "; ",
          suggestion.lr ? cat("suggested learning rate: ", csv_number(four_digits(*suggestion.lr)))
                        : cat("no suggestion is possible: ", suggestion.reason));
  write_report(csv, csv_of(curve));
  write_report(html, page_of(curve, suggestion, options.mode, summary));
  if (command.report) write_report(*command.report, lr_report(curve, suggestion, csv, html));
  std::string text = curve_table(curve, suggestion) + summary + "\n";
  if (!suggestion.lr && options.steps < kFewestLrSteps)
    text += cat("a test needs at least --steps ", kFewestLrSteps, "; ", options.steps, " were requested\n");
  if (suggestion.lr) text += overrides_for(config, *suggestion.lr, test.initial_lr);
  text += cat("curve: ", escape_controls(csv), ", ", escape_controls(html), "\n");
  print(text);
  return ExitCode::ok;
}

}  // namespace fulgur::cli
