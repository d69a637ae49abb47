#include <algorithm>
#include <cmath>

#include "drawing/chart.h"
#include "drawing/html.h"
#include "drawing/number_text.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/history/sweep_report.h"
#include "reading/run_curves.h"
#include "sweep/point_results.h"

namespace fulgur::history {
namespace {

constexpr size_t kMostCurves = 60, kPointsOfCurve = 128, kMostRowsOfPage = 2000, kMostScatters = 50;

constexpr const char* kSweepPolicy =
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

std::string number_cell(const std::string& text) { return cat("<td class=\"number\">", html_escaped(text), "</td>"); }

std::string head_cell(const std::string& text) { return cat("<th>", html_escaped(text), "</th>"); }

class SweepPage {
 public:
  SweepPage(const SweepPlan& plan, const std::vector<TrialRecord>& trials, const std::filesystem::path& folder)
      : plan_(plan),
        trials_(trials),
        folder_(folder),
        results_(point_results(plan, trials)),
        names_(axis_names(plan)) {}

  std::string html(const std::optional<std::string>& best_config, const std::string& command) const {
    const std::string title = cat("Sweep of ", counted(static_cast<int64_t>(trials_.size()), "trial"), " · ",
                                  html_escaped(plan_.spec.metric), ", ", enum_text(plan_.spec.mode));
    return cat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
               "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">",
               "<meta http-equiv=\"Content-Security-Policy\" content=\"", kSweepPolicy, "\"><title>", title,
               "</title><style>", kPageStyle, "</style></head>\n<body><h1>", title, "</h1>\n<main>\n", table(),
               curves(), scatters(), best(best_config, command), "</main><script>", kPageScript,
               "</script></body></html>\n");
  }

 private:
  std::string table() const {
    std::string rows = cat("<tr>", head_cell(plan_.runs_per_point() > 1 ? "point" : "trial"), head_cell("state"));
    for (const std::string& name : names_) rows += head_cell(name);
    rows += head_cell(plan_.spec.metric);
    for (const int64_t rung : plan_.runs_per_point() > 1 ? std::vector<int64_t>() : plan_.rungs)
      rows += head_cell(cat("at ", rung));
    rows += cat(head_cell("epochs"), head_cell("time"), head_cell(""), "</tr>\n");
    for (size_t r = 0; r < std::min(results_.size(), kMostRowsOfPage); ++r) {
      const PointResult& result = results_[r];
      rows += cat("<tr>", number_cell(cat(result.point)), "<td class=\"", row_class(result), "\">",
                  html_escaped(result.status), "</td>");
      for (const ConfigNode& value : plan_.trials[result.first_trial].values) rows += number_cell(override_text(value));
      rows += number_cell(result_text(plan_, result));
      if (plan_.runs_per_point() == 1) {
        const auto& at_rungs = trials_[result.first_trial].at_rungs;
        for (size_t rung = 0; rung < plan_.rungs.size(); ++rung)
          rows += number_cell(value_text(rung < at_rungs.size() ? at_rungs[rung] : std::nullopt));
      }
      rows += cat(number_cell(cat(result.epochs)), number_cell(duration_text(result.seconds)), "<td class=\"wide\">",
                  html_escaped(first_line(result.reason)), "</td></tr>\n");
    }
    if (results_.size() > kMostRowsOfPage)
      rows += cat("<tr><td colspan=\"4\">", results_.size() - kMostRowsOfPage,
                  " more points are in sweep.csv.</td></tr>\n");
    return cat("<section><h2>Results</h2><div class=\"scroll\"><table>\n", rows, "</table></div></section>\n");
  }

  // The classes of the page's style.
  static const char* row_class(const PointResult& result) {
    return result.complete ? "finished" : !result.reason.empty() ? "failed" : "interrupted";
  }

  std::string curves() const {
    Chart chart{plan_.spec.metric, "step", "", {}};
    size_t unreadable = 0, left_out = 0;
    for (const PointResult& result : results_) {
      for (size_t i = result.first_trial; i < result.first_trial + static_cast<size_t>(plan_.runs_per_point()); ++i) {
        if (trials_[i].run.empty()) continue;
        if (chart.lines.size() == kMostCurves) {
          ++left_out;
          continue;
        }
        try {
          add_curve(i, chart);
        } catch (const Error&) {
          ++unreadable;
        }
      }
    }
    std::string out = "<section><h2>Curves</h2>\n";
    out += chart.lines.empty() ? "<p>No values have been logged yet.</p>"
                               : cat("<figure><figcaption>", html_escaped(chart.title), " by step</figcaption>",
                                     svg_of(chart), legend_of(chart.lines), "</figure>");
    if (left_out > 0)
      out += cat("<p class=\"note\">", counted(static_cast<int64_t>(left_out), "more trial"), " not shown.</p>");
    if (unreadable > 0)
      out += cat("<p class=\"note\">", counted(static_cast<int64_t>(unreadable), "run"), " cannot be read.</p>");
    return out + "</section>\n";
  }

  void add_curve(size_t trial, Chart& chart) const {
    const RunCurves run = read_curves(folder_ / trials_[trial].run);
    for (size_t m = 0; m < run.curves.size(); ++m) {
      if (run.run.metrics[m].name != plan_.spec.metric) continue;
      ChartLine line{cat("trial ", trial), chart.lines.size(), trials_[trial].status != TrialStatus::completed, {}};
      for (const Curve::Bucket& bucket : run.curves[m].at_most(kPointsOfCurve))
        line.points.push_back({static_cast<double>(bucket.first_step) / 2 + static_cast<double>(bucket.last_step) / 2,
                               bucket.least, bucket.most, bucket.mean});
      if (!line.points.empty()) chart.lines.push_back(std::move(line));
    }
  }

  std::string scatters() const {
    std::string out = "<section><h2>The metric by each option</h2><div class=\"grid\">\n";
    for (size_t axis = 0; axis < std::min(names_.size(), kMostScatters); ++axis) out += scatter(axis);
    return out + "</div></section>\n";
  }

  std::string scatter(size_t axis) const {
    const SweepAxis& option = plan_.spec.space.axes[axis];
    const bool log = option.range && option.range->scale == RangeScale::log;
    const bool numeric = std::all_of(plan_.trials.begin(), plan_.trials.end(), [&](const SweepTrial& trial) {
      return number_of_value(trial.values[axis]).has_value();
    });
    Chart chart{
        cat(plan_.spec.metric, " by ", names_[axis]), log ? cat("log10 of ", names_[axis]) : names_[axis], "", {}};
    ChartLine complete{"completed", 0, false, {}, true}, others{"not completed", 7, false, {}, true};
    for (const PointResult& result : results_) {
      if (!result.mean) continue;
      const ConfigNode& value = plan_.trials[result.first_trial].values[axis];
      const double x = !numeric ? place_in_list(option, value)
                       : log    ? std::log10(*number_of_value(value))
                                : *number_of_value(value);
      (result.complete ? complete : others).points.push_back({x, *result.mean, *result.mean, *result.mean});
    }
    for (ChartLine* line : {&complete, &others})
      if (!line->points.empty()) chart.lines.push_back(std::move(*line));
    std::string out = cat("<figure><figcaption>", html_escaped(chart.title), "</figcaption>");
    out += chart.lines.empty() ? "<p class=\"note\">No point has a value yet.</p>"
                               : svg_of(chart) + legend_of(chart.lines);
    out += cat("<p class=\"note\">", html_escaped(log ? chart.unit : option.key), "</p>");
    if (!numeric) out += list_of_values(option);
    return out + "</figure>\n";
  }

  static std::optional<double> number_of_value(const ConfigNode& value) {
    if (!value.is_scalar() || value.quoted()) return std::nullopt;
    const auto number = parse_whole<double>(value.text());
    return number && std::isfinite(*number) ? number : std::nullopt;
  }

  static double place_in_list(const SweepAxis& axis, const ConfigNode& value) {
    for (size_t i = 0; i < axis.values.size(); ++i)
      if (axis.values[i].same_as(value)) return static_cast<double>(i);
    return static_cast<double>(axis.values.size());
  }

  static std::string list_of_values(const SweepAxis& axis) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < axis.values.size(); ++i) parts.push_back(cat(i, ": ", override_text(axis.values[i])));
    return cat("<p class=\"note\">", html_escaped(join_some(parts, 30, " · ")), "</p>");
  }

  std::string best(const std::optional<std::string>& config, const std::string& command) const {
    if (results_.empty() || !results_.front().complete)
      return "<section><h2>Best config</h2><p>No point is complete yet.</p></section>\n";
    const PointResult& result = results_.front();
    const std::string point =
        cat("<section><h2>Best config</h2><p>Trial ", result.first_trial, ": ",
            html_escaped(trial_text(plan_, plan_.trials[result.first_trial])), " · ", html_escaped(plan_.spec.metric),
            " = ", html_escaped(result_text(plan_, result)), "</p>");
    if (!config) return point + "<p class=\"note\">The config of its run cannot be read.</p></section>\n";
    return cat(point, "<pre>", html_escaped(command), "</pre><details><summary>best.yaml</summary><pre>",
               html_escaped(*config), "</pre></details></section>\n");
  }

  const SweepPlan& plan_;
  const std::vector<TrialRecord>& trials_;
  const std::filesystem::path& folder_;
  std::vector<PointResult> results_;
  std::vector<std::string> names_;
};

}  // namespace

std::string sweep_page(const SweepPlan& plan, const std::vector<TrialRecord>& trials,
                       const std::filesystem::path& sweep_folder, const std::optional<std::string>& best_config,
                       const std::string& command) {
  return SweepPage(plan, trials, sweep_folder).html(best_config, command);
}

}  // namespace fulgur::history
