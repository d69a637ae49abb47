#include "drawing/chart.h"

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <limits>

#include "drawing/html.h"
#include "drawing/number_text.h"
#include "support/expect_error.h"

namespace chart_test {

using namespace fulgur::history;
using Catch::Matchers::ContainsSubstring;

ChartLine line_of(std::vector<std::pair<double, double>> points) {
  ChartLine line{"loss", 0, false, {}};
  for (const auto& [x, y] : points) line.points.push_back({x, y, y, y});
  return line;
}

TEST_CASE("a chart has the line from corner to corner of its box") {
  const std::string svg = svg_of({"loss", "step", "by-step", {line_of({{0, 1}, {5, 2}, {10, 3}})}});
  CHECK_THAT(svg, ContainsSubstring("d=\"M54 204L223 106L392 8\""));
  CHECK_THAT(svg, ContainsSubstring("class=\"chart by-step\""));
  CHECK_THAT(svg, ContainsSubstring("aria-label=\"loss by step: loss ends at 3\""));
  CHECK_THAT(svg, !ContainsSubstring("data-log"));
  CHECK_THAT(svg, !ContainsSubstring("band"));
}

TEST_CASE("a chart shows the range of the values that a point stands for") {
  ChartLine line{"loss", 9, true, {{0, 0, 4, 1}, {10, 1, 2, 1.5}}};
  const std::string svg = svg_of({"loss", "step", "", {line}});
  CHECK_THAT(svg, ContainsSubstring("class=\"band f1\" d=\"M54 8L392 106L392 155L54 204Z\""));
  CHECK_THAT(svg, ContainsSubstring("class=\"mean s1\" stroke-dasharray"));
}

TEST_CASE("values over three orders of magnitude have a logarithmic axis, unless one is not positive") {
  const std::string svg = svg_of({"loss", "step", "", {line_of({{0, 1}, {1, 10}, {2, 10000}})}});
  CHECK_THAT(svg, ContainsSubstring("data-log=\"1\""));
  CHECK_THAT(svg, ContainsSubstring("d=\"M54 204L223 155L392 8\""));
  CHECK_THAT(svg, ContainsSubstring(">1e2<"));
  CHECK_THAT(svg_of({"loss", "step", "", {line_of({{0, 0}, {2, 10000}})}}), !ContainsSubstring("data-log"));
}

TEST_CASE("one value, no value and the largest numbers are drawn without NaN") {
  constexpr double kMost = std::numeric_limits<double>::max();
  for (const auto& line : {line_of({{1, 0}}), line_of({}), line_of({{1, 5}, {1, 5}}),
                           line_of({{0, -kMost}, {1, kMost}}), line_of({{0, 5e-324}, {1, 1e-323}})}) {
    const std::string svg = svg_of({"loss", "step", "", {line}});
    CHECK_THAT(svg, !ContainsSubstring("nan") && !ContainsSubstring("inf"));
    CHECK_THAT(svg, ContainsSubstring("</svg>"));
  }
}

TEST_CASE("ticks are round numbers inside the range") {
  CHECK(round_ticks(0, 10, 5) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(round_ticks(-1, 1, 4) == std::vector<double>{-1, -0.5, 0, 0.5, 1});
  CHECK(round_ticks(3, 3, 5).empty());
  for (const double far : {1e15, 1e300, -1e300})
    for (const double tick : round_ticks(far, far + std::abs(far) * 1e-3, 5))
      CHECK((tick >= far && tick <= far + std::abs(far) * 1e-3));
}

TEST_CASE("texts are escaped for HTML, and bytes that are not UTF-8 are replaced") {
  CHECK(html_escaped("<a href=\"x\" title='y'>&é😀") == "&lt;a href=&quot;x&quot; title=&#39;y&#39;&gt;&amp;é😀");
  CHECK(html_escaped("a\xff\xc3") == "a\uFFFD\uFFFD");
  CHECK(html_escaped(std::string("\0\x1b", 2)) == "\uFFFD\uFFFD");
  CHECK(html_escaped("\xed\xa0\x80") == "\uFFFD\uFFFD\uFFFD");
}

TEST_CASE("bytes become a data URL") {
  CHECK(data_url("image/png", "") == "data:image/png;base64,");
  CHECK(data_url("a/b", "f") == "data:a/b;base64,Zg==");
  CHECK(data_url("a/b", "fo") == "data:a/b;base64,Zm8=");
  CHECK(data_url("a/b", "foo\xff") == "data:a/b;base64,Zm9v/w==");
}

TEST_CASE("numbers and times are short texts") {
  CHECK(value_text(0.123456789) == "0.12346");
  CHECK(value_text(std::nan("")) == "nan");
  CHECK(duration_text(0.642) == "0.64 s");
  CHECK(duration_text(125.4) == "2:05");
  CHECK(duration_text(3 * 3600 + 125) == "3:02:05");
  CHECK(duration_text(std::nullopt) == "-");
  CHECK(bytes_text(1'500'000) == "1.5 MB");
  CHECK(spark_line({0, 1, 2, std::nan("")}) == "▁▅█×");
  CHECK(spark_line({3, 3}) == "▅▅");
}

}  // namespace chart_test
