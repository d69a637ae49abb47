#include "report_charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "drawing/chart.h"
#include "drawing/html.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "reading/config_keys.h"

namespace fulgur::history {
namespace {

constexpr size_t kMostCharts = 150, kMostLines = 500;
/// Of a line on each axis: a line with a range has three coordinates of about 11 bytes per point.
constexpr size_t kMostPoints = 256, kBytesPerPoint = 33, kBytesOfLines = 1'400'000;

constexpr std::array<const char*, 5> kSections = {"Curves", "Learning rates", "Throughput and waiting", "Loss scale",
                                                  "System load"};

struct Family {
  size_t section = 0;
  std::string title;
  bool evaluates = false;
};

Family family_of(const std::string& metric) {
  const auto ends = [&](const char* end) { return metric.ends_with(end); };
  const auto starts = [&](const char* start) { return metric.starts_with(start); };
  if (metric == "loss_scale" || metric == "skipped_steps") return {3, metric};
  if (metric == "lr" || starts("lr-") || starts("lr_") || starts("lr/")) {
    if (ends("-momentum")) return {1, "momentum"};
    if (ends("-weight_decay")) return {1, "weight decay"};
    return {1, "learning rate"};
  }
  if (starts("device/") || starts("global/") || ends("_per_sec") || ends("mfu") || metric == "data_wait_share")
    return {2, metric};
  if (starts("DeviceStatsMonitor")) return {4, metric.substr(metric.rfind('/') + 1)};
  std::string title = metric;
  bool evaluates = false;
  for (const std::string stage : {"train", "val", "test"}) {
    if (!metric.starts_with(stage) || metric.size() < stage.size() + 2) continue;
    if (const char after = metric[stage.size()]; after != '_' && after != '/') continue;
    title.erase(0, stage.size() + 1);
    evaluates = stage != "train";
    break;
  }
  for (const std::string_view suffix : {"_step", "_epoch"})
    if (title.ends_with(suffix) && title.size() > suffix.size()) title.resize(title.size() - suffix.size());
  return {0, title, evaluates};
}

/// A metric of a run.
struct Source {
  size_t run, metric;
  bool evaluates;
};

struct Sources {
  std::string title;
  std::vector<Source> all;
};

enum class XAxis { step, epoch, time };

double x_of(const RunCurves& run, XAxis axis, double step) {
  return axis == XAxis::step ? step : axis == XAxis::epoch ? run.epochs.at(step) : run.times.at(step);
}

std::vector<ChartPoint> points_of(const RunCurves& run, const Curve& curve, XAxis axis, size_t most) {
  std::vector<ChartPoint> points;
  if (axis == XAxis::time && run.times.empty()) return points;
  for (const Curve::Bucket& bucket : curve.at_most(most)) {
    const double step = static_cast<double>(bucket.first_step) / 2 + static_cast<double>(bucket.last_step) / 2;
    const ChartPoint point{x_of(run, axis, step), bucket.least, bucket.most, bucket.mean};
    if (std::isfinite(point.x) && std::isfinite(point.mean)) points.push_back(point);
  }
  return points;
}

class Sections {
 public:
  explicit Sections(const std::vector<RunCurves>& runs) : runs_(runs) {
    std::map<std::pair<size_t, std::string>, size_t> places;
    for (size_t r = 0; r < runs.size(); ++r) {
      for (size_t m = 0; m < runs[r].curves.size(); ++m) {
        if (runs[r].curves[m].buckets().empty()) {
          if (runs[r].curves[m].nonfinite() > 0) without_value_.push_back(runs[r].run.metrics[m].name);
          continue;
        }
        add({r, m, false}, places);
      }
    }
    const size_t axes = has_times() ? 3 : 2;
    points_ = std::clamp<size_t>(kBytesOfLines / (kBytesPerPoint * axes * std::max<size_t>(lines_, 1)), 8, kMostPoints);
  }

  std::string html() const {
    std::string out;
    for (size_t s = 0; s < kSections.size(); ++s) {
      if (sections_[s].empty()) continue;
      out += cat("<section><h2>", kSections[s], "</h2><div class=\"grid\">\n");
      for (const Sources& sources : sections_[s]) out += figure(sources);
      out += "</div></section>\n";
    }
    if (out.empty()) out = "<section><h2>Curves</h2><p>No metrics have been logged yet.</p></section>\n";
    for (const RunCurves& run : runs_)
      if (const std::string why = why_no_log(run.run); !why.empty())
        out += cat("<p class=\"note\">", html_escaped(shown_name(run.run.name)), ": ", html_escaped(why), ".</p>\n");
    if (left_out_ > 0)
      out += cat("<p class=\"note\">", left_out_, " more metrics are not shown: a page has at most ", kMostCharts,
                 " charts with ", kMostLines, " lines.</p>\n");
    if (!without_value_.empty())
      out += cat("<p class=\"note\">All values of these metrics are NaN or infinite: ",
                 html_escaped(shown_name(join(without_value_))), "</p>\n");
    return out;
  }

 private:
  void add(Source source, std::map<std::pair<size_t, std::string>, size_t>& places) {
    const std::string& metric = runs_[source.run].run.metrics[source.metric].name;
    const Family family = family_of(metric);
    source.evaluates = family.evaluates;
    auto& section = sections_[family.section];
    const auto place = places.find({family.section, family.title});
    if (lines_ == kMostLines || (place == places.end() && places.size() == kMostCharts)) {
      ++left_out_;
      return;
    }
    ++lines_;
    if (place != places.end()) return section[place->second].all.push_back(source);
    places[{family.section, family.title}] = section.size();
    section.push_back({family.title, {source}});
  }

  bool has_times() const {
    return std::any_of(runs_.begin(), runs_.end(), [](const RunCurves& run) { return !run.times.empty(); });
  }

  std::string figure(const Sources& sources) const {
    struct View {
      XAxis axis;
      const char *unit, *place;
    };
    constexpr View kViews[] = {
        {XAxis::step, "step", "by-step"}, {XAxis::epoch, "epoch", "by-epoch"}, {XAxis::time, "s", "by-time"}};
    std::string out = cat("<figure><figcaption>", html_escaped(shown_name(sources.title)), "</figcaption>");
    std::string legend;
    int64_t nonfinite = 0;
    for (const View& view : kViews) {
      Chart chart{shown_name(sources.title), view.unit, view.place, {}};
      for (const Source& source : sources.all) {
        const RunCurves& run = runs_[source.run];
        const std::string metric = shown_name(run.run.metrics[source.metric].name);
        chart.lines.push_back({runs_.size() > 1 ? cat(shown_name(run.run.name), ": ", metric) : metric,
                               runs_.size() > 1 ? source.run : chart.lines.size(), runs_.size() > 1 && source.evaluates,
                               points_of(run, run.curves[source.metric], view.axis, points_)});
        if (view.axis == XAxis::step) nonfinite += run.curves[source.metric].nonfinite();
      }
      if (view.axis == XAxis::step) legend = legend_of(chart.lines);
      if (std::any_of(chart.lines.begin(), chart.lines.end(),
                      [](const ChartLine& line) { return !line.points.empty(); }))
        out += svg_of(chart);
      else
        out += cat("<p class=\"note ", view.place,
                   "\">The times of these values are not known: the run has no checkpoint.</p>");
    }
    out += legend;
    if (nonfinite > 0) out += cat("<p class=\"note\">", counted(nonfinite, "value"), " NaN or infinite</p>");
    return out + "</figure>\n";
  }

  const std::vector<RunCurves>& runs_;
  std::array<std::vector<Sources>, kSections.size()> sections_;
  std::vector<std::string> without_value_;
  size_t lines_ = 0, left_out_ = 0, points_ = 0;
};

}  // namespace

std::string shown_name(const std::string& text) {
  constexpr int64_t kLongest = 80;
  const TextExtent extent = fit_columns(text, kLongest);
  // Characters without a width could be many.
  const size_t bytes = std::min<size_t>(extent.bytes, 4 * kLongest);
  return bytes == text.size() ? text : text.substr(0, bytes) + "…";
}

std::string chart_sections(const std::vector<RunCurves>& runs) { return Sections(runs).html(); }

}  // namespace fulgur::history
