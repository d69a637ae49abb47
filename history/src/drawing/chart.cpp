#include "drawing/chart.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "drawing/html.h"
#include "drawing/number_text.h"
#include "fulgur/core/text/text.h"

namespace fulgur::history {
namespace {

// In units of the view box, which the page scales to its width: 12 units are readable on a phone.
constexpr double kWidth = 400, kHeight = 230, kLeft = 54, kRight = 392, kTop = 8, kBottom = 204;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kColours = 8;
constexpr size_t kDots = 40;  ///< a line of fewer points shows each of them

struct Axis {
  double low = kInfinity, high = -kInfinity;
  bool log = false;

  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // An axis of one value, or of none, gets some width.
  void widen() {
    if (low > high) low = 0, high = 1;
    if (low == high) {
      const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
      low -= margin;
      high += margin;
    }
  }
  // From 0 to 1; halves, since the whole range may be larger than a double.
  double place(double value) const { return (value / 2 - low / 2) / (high / 2 - low / 2); }
};

void append_number(std::string& out, double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, 1);
  std::string_view digits(text, static_cast<size_t>(end - text));
  if (digits.ends_with(".0")) digits.remove_suffix(2);
  out += digits;
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    for (const ChartLine& line : chart.lines) {
      for (const ChartPoint& point : line.points) {
        x_.include(point.x);
        y_.include(point.least);
        y_.include(point.most);
      }
    }
    y_.log = y_.low > 0 && y_.low < y_.high && y_.high / y_.low >= 1000;
    if (y_.log) {
      y_.low = std::log10(y_.low);
      y_.high = std::log10(y_.high);
    }
    x_.widen();
    y_.widen();
  }

  std::string svg() {
    out_ = cat("<svg class=\"chart ", chart_.place, "\" viewBox=\"0 0 400 230\" role=\"img\" data-unit=\"",
               html_escaped(chart_.unit), "\" data-box=\"54 8 392 204\" data-x0=\"", format(x_.low), "\" data-x1=\"",
               format(x_.high), "\" data-y0=\"", format(y_.low), "\" data-y1=\"", format(y_.high), "\"",
               y_.log ? " data-log=\"1\"" : "", " aria-label=\"", label(), "\">");
    axes();
    for (const ChartLine& line : chart_.lines) draw(line);
    return out_ + "</svg>\n";
  }

 private:
  static std::string format(double value) { return value_text_exact(value); }
  static std::string value_text_exact(double value) {
    char text[40];
    const auto [end, error] = std::to_chars(text, text + sizeof text, value);
    return {text, end};
  }

  std::string label() const {
    std::vector<std::string> parts;
    for (const ChartLine& line : chart_.lines)
      if (line.scattered)
        parts.push_back(cat(counted(static_cast<int64_t>(line.points.size()), "point"), " ", line.name));
      else if (!line.points.empty())
        parts.push_back(cat(line.name, " ends at ", value_text(line.points.back().mean)));
    return html_escaped(cat(chart_.title, " by ", chart_.unit, y_.log ? ", logarithmic: " : ": ", join(parts)));
  }

  double at_x(double x) const { return kLeft + (kRight - kLeft) * x_.place(x); }
  double at_y(double y) const {
    const double place = y_.log ? y_.place(std::log10(y)) : y_.place(y);
    return kBottom - (kBottom - kTop) * place;
  }

  void tick(double x, double y, const char* anchor, const std::string& text) {
    out_ += "<text x=\"";
    append_number(out_, x);
    out_ += "\" y=\"";
    append_number(out_, y);
    out_ += cat("\" text-anchor=\"", anchor, "\">", text, "</text>");
  }

  void axes() {
    std::string path = "<path class=\"axis\" d=\"M54 8V204H392";
    std::vector<std::pair<double, std::string>> marks;
    if (y_.log) {
      const int first = static_cast<int>(std::ceil(y_.low)), last = static_cast<int>(std::floor(y_.high));
      const int every = std::max(1, (last - first) / 5 + 1);
      for (int power = first; power <= last; power += every) marks.emplace_back(power, cat("1e", power));
    } else {
      for (const double value : round_ticks(y_.low, y_.high, 5)) marks.emplace_back(value, short_text(value));
    }
    std::string texts;
    std::swap(texts, out_);
    for (const auto& [value, text] : marks) {
      const double y = kBottom - (kBottom - kTop) * y_.place(value);
      path += "M54 ";
      append_number(path, y);
      path += "H392";
      tick(kLeft - 4, std::max(y + 4, 12.0), "end", text);
    }
    for (const double value : round_ticks(x_.low, x_.high, 4)) {
      const double x = at_x(value);
      tick(std::min(x, kRight), kHeight - 12, x > kRight - 20 ? "end" : "middle", x_text(value));
    }
    std::swap(texts, out_);
    out_ += path + "\"/>" + texts;
  }

  std::string x_text(double value) const {
    if (chart_.unit == "s" && value >= 60) return duration_text(value);
    return short_text(value);
  }

  static std::string short_text(double value) {
    const bool large = value >= 1e4 && value < 1e15;
    return large ? format_count(static_cast<int64_t>(value)) : value_text(value);
  }

  void append_point(std::string& path, char command, double x, double y) const {
    path += command;
    append_number(path, at_x(x));
    path += ' ';
    append_number(path, at_y(y));
  }

  void draw(const ChartLine& line) {
    std::string band, mean, dots;
    const bool has_band = std::any_of(line.points.begin(), line.points.end(),
                                      [](const ChartPoint& point) { return point.least != point.most; });
    if (has_band) {
      char command = 'M';
      for (const ChartPoint& point : line.points) append_point(band, std::exchange(command, 'L'), point.x, point.most);
      for (auto point = line.points.rbegin(); point != line.points.rend(); ++point)
        append_point(band, 'L', point->x, point->least);
      out_ += cat("<path class=\"band f", line.colour % kColours, "\" d=\"", band, "Z\"/>");
    }
    char command = 'M';
    for (const ChartPoint& point : line.points) append_point(mean, std::exchange(command, 'L'), point.x, point.mean);
    if (line.scattered) return draw_dots(line);
    out_ += cat("<path class=\"mean s", line.colour % kColours, "\"", line.dashed ? " stroke-dasharray=\"6 3\"" : "",
                " data-name=\"", html_escaped(line.name), "\" d=\"", mean, "\"/>");
    if (line.points.size() <= kDots) draw_dots(line);
  }

  void draw_dots(const ChartLine& line) {
    for (const ChartPoint& point : line.points) {
      out_ += cat("<circle class=\"f", line.colour % kColours, "\" r=\"", line.scattered ? "4" : "2.2", "\" cx=\"");
      append_number(out_, at_x(point.x));
      out_ += "\" cy=\"";
      append_number(out_, at_y(point.mean));
      out_ += "\"/>";
    }
  }

  const Chart& chart_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::vector<double> round_ticks(double low, double high, int most) {
  std::vector<double> ticks;
  const double width = (high / 2 - low / 2) / most * 2;
  if (!std::isfinite(width) || width <= 0) return ticks;
  const double unit = std::pow(10, std::floor(std::log10(width)));
  double step = unit * 10;
  for (const double factor : {1.0, 2.0, 5.0})
    if (unit * factor >= width) {
      step = unit * factor;
      break;
    }
  if (step <= 0 || !std::isfinite(step)) return ticks;
  // Counted, since a sum of steps would not reach a range far from 0.
  const double first = std::ceil(low / step);
  for (int i = 0; i <= most; ++i) {
    const double value = (first + i) * step;
    if (value > high) break;
    if (ticks.empty() || value > ticks.back()) ticks.push_back(value == 0 ? 0 : value);
  }
  return ticks;
}

std::string svg_of(const Chart& chart) { return Drawing(chart).svg(); }

std::string legend_of(const std::vector<ChartLine>& lines) {
  std::string out = "<ul class=\"legend\">";
  for (const ChartLine& line : lines)
    out +=
        cat("<li><svg viewBox=\"0 0 22 8\" aria-hidden=\"true\"><path class=\"mean s", line.colour % kColours, "\"",
            line.dashed ? " stroke-dasharray=\"6 3\"" : "", " d=\"M0 4H22\"/></svg>", html_escaped(line.name), "</li>");
  return out + "</ul>";
}

}  // namespace fulgur::history
