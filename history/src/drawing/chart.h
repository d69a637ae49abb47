#pragma once

#include <optional>
#include <string>
#include <vector>

namespace fulgur::history {

/// A point of a line: the range and the mean of the values near `x`.
struct ChartPoint {
  double x = 0, least = 0, most = 0, mean = 0;
};

struct ChartLine {
  std::string name;
  size_t colour = 0;
  bool dashed = false;
  std::vector<ChartPoint> points;  ///< by x
  bool scattered = false;          ///< each point by itself, without a line between them
};

struct Chart {
  std::string title;
  std::string unit;   ///< of the x axis: `step`, `epoch`, `s`
  std::string place;  ///< the class of the element, such as `by-step`; may be empty
  std::vector<ChartLine> lines;
};

/// The chart as SVG, with a label that says what it shows. The y axis is logarithmic if all values are positive and the
/// largest is at least 1000 times the smallest.
std::string svg_of(const Chart& chart);

/// The names of the lines with their colours, as a list.
std::string legend_of(const std::vector<ChartLine>& lines);

/// At most `most` round numbers in [low, high], evenly spaced; `low` < `high`.
std::vector<double> round_ticks(double low, double high, int most);

}  // namespace fulgur::history
