#include "doctor/finding.h"

#include <algorithm>

#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"

namespace fulgur::cli {

const char* word_of(Finding::Level level) {
  switch (level) {
    case Finding::Level::ok:
      return "ok";
    case Finding::Level::note:
      return "note";
    case Finding::Level::warning:
      return "warning";
    case Finding::Level::problem:
      break;
  }
  return "problem";
}

std::string findings_text(const Findings& findings) {
  int64_t widest = 0;
  for (const Finding& finding : findings) widest = std::max(widest, columns_of(finding.about));
  constexpr int64_t kLevel = 7;  // of `problem` and `warning`
  const std::string indent(static_cast<size_t>(kLevel + 2 + widest + 2), ' ');
  std::string out;
  for (const Finding& finding : findings) {
    std::string lines;
    for (const std::string& line : split_text(finding.text, '\n'))
      lines += (lines.empty() ? std::string() : indent) + escape_controls(line) + "\n";
    out += cat(padded(word_of(finding.level), kLevel), "  ", padded(finding.about, widest), "  ", lines);
    if (!finding.fix.empty()) out += cat(indent, "→ ", escape_controls(finding.fix), "\n");
  }
  const auto count = [&](Finding::Level level) { return std::ranges::count(findings, level, &Finding::level); };
  const int64_t problems = count(Finding::Level::problem), warnings = count(Finding::Level::warning);
  return out + (problems + warnings == 0 ? std::string("nothing to fix\n")
                                         : cat(counted(problems, "problem"), ", ", counted(warnings, "warning"), "\n"));
}

bool all_well(const Findings& findings) {
  return std::ranges::none_of(findings, [](const Finding& f) { return f.level == Finding::Level::problem; });
}

}  // namespace fulgur::cli
