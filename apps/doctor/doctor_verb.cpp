#include "doctor/doctor_verb.h"

#include <ATen/Version.h>

#include "doctor/checks.h"
#include "doctor/machine_facts.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "json_text.h"
#include "print.h"

namespace fulgur::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of_facts(const Facts& facts) {
  Json json = Json::object();
  for (const auto& [name, value] : facts) json[name] = value;
  return json;
}

std::string table_of_facts(const std::string& title, const Facts& facts) {
  if (facts.empty()) return {};
  std::vector<TextRow> rows;
  for (const auto& [name, value] : facts) rows.push_back({escape_controls(name), escape_controls(value)});
  return cat(title, ":\n", aligned_lines(rows));
}

}  // namespace

ExitCode doctor(const CommandLine& command) {
  const Config config = load_config(command.sources);
  log::silence(config.silence);
  Findings findings;
  check_cpus(config, findings);
  check_memory(findings);
  check_gpus(findings);
  check_backends(config, findings);
  const auto choices = check_choices(config, findings);
  check_disk(config, findings);
  check_data(config, findings);
  if (command.json) {
    Json json{{"ok", all_well(findings)}, {"auto", json_of_facts(choices)}, {"findings", Json::array()}};
    for (const Finding& finding : findings) {
      Json item{{"about", finding.about}, {"level", word_of(finding.level)}, {"text", finding.text}};
      if (!finding.fix.empty()) item["fix"] = finding.fix;
      json["findings"].push_back(std::move(item));
    }
    print(json_text(json));
  } else {
    print(findings_text(findings));
  }
  return all_well(findings) ? ExitCode::ok : ExitCode::other;
}

ExitCode show_environment(const CommandLine& command) {
  const Facts versions = version_facts(), hardware = hardware_facts(), variables = variable_facts();
  if (command.json) {
    print(json_text({{"versions", json_of_facts(versions)},
                     {"hardware", json_of_facts(hardware)},
                     {"variables", json_of_facts(variables)},
                     {"libtorch", at::show_config()}}));
    return ExitCode::ok;
  }
  print(cat(table_of_facts("Versions", versions), table_of_facts("Hardware", hardware),
            table_of_facts("Variables", variables), "LibTorch:\n", at::show_config()));
  return ExitCode::ok;
}

}  // namespace fulgur::cli
