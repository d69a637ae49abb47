#include "fulgur/history/curve_page.h"

#include <cmath>

#include "drawing/chart.h"
#include "drawing/html.h"
#include "fulgur/core/text/text.h"

namespace fulgur::history {

std::string curve_page(const std::string& title, const std::string& x_name, const std::vector<PlottedCurve>& curves,
                       const std::vector<std::string>& notes) {
  Chart chart{.title = title, .unit = x_name, .place = "", .lines = {}};
  for (const PlottedCurve& curve : curves) {
    ChartLine line{.name = curve.name, .colour = chart.lines.size(), .dashed = curve.dashed, .points = {}};
    for (const auto& [x, y] : curve.points)
      if (std::isfinite(x) && std::isfinite(y)) line.points.push_back({.x = x, .least = y, .most = y, .mean = y});
    chart.lines.push_back(std::move(line));
  }
  std::string page = cat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
                         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
                         html_escaped(title), "</title><style>", kPageStyle, "</style></head>\n<body><h1>",
                         html_escaped(title), "</h1>\n<main>\n", svg_of(chart), legend_of(chart.lines));
  for (const std::string& note : notes) page += cat("<p class=\"note\">", html_escaped(note), "</p>\n");
  return page + cat("</main><script>", kPageScript, "</script></body></html>\n");
}

}  // namespace fulgur::history
