#include "fulgur/history/report_page.h"

#include <set>

#include "drawing/html.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/run_curves.h"
#include "report_charts.h"
#include "report_media.h"
#include "report_tables.h"

namespace fulgur::history {
namespace {

// Nothing is loaded, whatever the texts of a run contain.
constexpr const char* kPolicy =
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

constexpr const char* kAxisChoice =
    "<input type=\"radio\" name=\"axis\" id=\"x-step\" checked><label for=\"x-step\">by step</label>"
    "<input type=\"radio\" name=\"axis\" id=\"x-epoch\"><label for=\"x-epoch\">by epoch</label>"
    "<input type=\"radio\" name=\"axis\" id=\"x-time\"><label for=\"x-time\">by time</label>\n";

constexpr const char* kReading =
    "<p class=\"note\">A line is the mean of the values near a step, and the area around it reaches from the smallest "
    "to "
    "the largest of them. Times are exact at checkpoints and interpolated between them.</p>\n";

bool have_own_names(const std::vector<RunCurves>& runs) {
  std::set<std::string> names;
  for (const RunCurves& run : runs) names.insert(run.run.name);
  return names.size() == runs.size();
}

/// `a/version_0` and `b/version_0` get names that differ.
void name_runs(std::vector<RunCurves>& runs) {
  const auto rename = [&](const auto& name_of) {
    if (have_own_names(runs)) return;
    for (RunCurves& run : runs) run.run.name = name_of(run.run.folder).string();
  };
  rename([](const std::filesystem::path& folder) {
    const std::filesystem::path whole = std::filesystem::absolute(folder).lexically_normal();
    return whole.parent_path().filename() / whole.filename();
  });
  rename([](const std::filesystem::path& folder) { return folder.lexically_normal(); });
}

}  // namespace

std::string report_page(const std::vector<std::filesystem::path>& folders) {
  if (folders.empty())
    throw ConfigError("[history.report_page] a report shows at least one run; got none. Give run folders.");
  std::vector<RunCurves> runs;
  for (const std::filesystem::path& folder : folders) runs.push_back(read_curves(folder));
  name_runs(runs);
  const std::string title =
      runs.size() == 1 ? shown_name(runs.front().run.name) : counted(static_cast<int64_t>(runs.size()), "run");
  std::string page = cat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
                         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">",
                         "<meta http-equiv=\"Content-Security-Policy\" content=\"", kPolicy, "\">", "<title>",
                         html_escaped(title), "</title><style>", kPageStyle, "</style></head>\n<body><h1>",
                         html_escaped(title), "</h1>\n", kAxisChoice, "<main>\n");
  page += summary_section(runs);
  page += kReading;
  page += chart_sections(runs);
  page += media_section(runs);
  page += metrics_section(runs);
  page += checkpoints_section(runs);
  page += config_section(runs);
  page += system_section(runs);
  return page + cat("</main><script>", kPageScript, "</script></body></html>\n");
}

}  // namespace fulgur::history
