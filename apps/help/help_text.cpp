#include "help/help_text.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "fulgur/core/text/text.h"
#include "fulgur/core/text/text_table.h"
#include "help/examples.h"

namespace fulgur::cli {
namespace {

using Lines = std::vector<std::string>;

bool is_among(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr const char* kWholeFooter = R"(Overrides of the config, before or after the verb (--key VALUE or --key=VALUE):
  --trainer.max_epochs 3                      any key of the config
  --model CnnClassifier --model.dropout 0.1   a component and its options
  --model FILE.yaml                           a part of the config from a file (also --data, --trainer, …)
  --trainer.callbacks+=ModelCheckpoint        appends to a list;
  --trainer.callbacks.monitor val_acc         … then sets options of the element appended last
  FULGUR_TRAINER__MAX_EPOCHS=3                the same from the environment
Exit codes: 0 ok, 1 other, 2 usage or config, 3 data, 4 checkpoint, 5 distributed, 6 non-finite loss,
  75 stopped with a checkpoint, 130 interrupted, 143 terminated.
)";

bool takes_config(const std::vector<const CLI::Option*>& options) {
  return std::ranges::any_of(options, [](const CLI::Option* option) { return option->get_name() == "--config"; });
}

/// Verbs that show classes: of a config, they need only its plug-ins.
bool reads_only_plugins(const std::string& verb) { return is_among(verb, {"list", "describe", "schema"}); }

/// The name and what the option takes, without its range: `-c,--config FILE`.
std::string head_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const bool has_value = option.get_items_expected_max() > 0;
  const std::string value = has_value ? type.substr(0, type.find_first_of(": ")) : std::string();
  const std::string name = option.get_positional() ? std::string() : option.get_name(false, true);
  return cat(name, name.empty() || value.empty() ? "" : " ", value);
}

/// `text` cut to `columns`, at the end of a part of the sentence or of a word if it is too long.
std::string cut_to(const std::string& text, int64_t columns, bool& was_cut) {
  if (columns_of(text) <= columns) return text;
  was_cut = true;
  std::string fitting = text.substr(0, fit_columns(text, columns - 1).bytes);
  if (const size_t part = fitting.find_last_of(";:"); part != std::string::npos && part > fitting.size() / 2)
    return fitting.substr(0, part) + "…";
  if (const size_t word = fitting.find_last_of(' '); word != std::string::npos) fitting.resize(word);
  while (fitting.ends_with(',') || fitting.ends_with('(')) fitting.pop_back();
  return fitting + "…";
}

/// One line for each option.
Lines option_lines(const std::vector<const CLI::Option*>& options, bool& was_cut) {
  constexpr int64_t kWidest = 30;
  int64_t width = 0;
  for (const CLI::Option* option : options) {
    const int64_t columns = columns_of(head_of(*option));
    if (columns <= kWidest) width = std::max(width, columns);
  }
  Lines lines;
  for (const CLI::Option* option : options) {
    const std::string head = padded(head_of(*option), width);
    const int64_t left = kHelpColumns - 4 - columns_of(head);
    lines.push_back(cat("  ", head, "  ", cut_to(option->get_description(), left, was_cut)));
  }
  return lines;
}

Lines example_lines(const std::string& verb, const std::string& program) {
  Lines lines;
  for (const std::string& example : examples_of(verb)) lines.push_back(cat("  ", program, " ", example));
  return lines;
}

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

const CLI::Formatter& formatter_of(const CLI::App& app) {
  return dynamic_cast<const CLI::Formatter&>(*app.get_formatter());
}

std::string usage_of(const CLI::App& verb, const std::string& program) {
  std::string usage = cat("Usage: ", program, " ", verb.get_name());
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional()) continue;
    const std::string word = head_of(*option) + (option->get_items_expected_max() > 1 ? "…" : "");
    usage += option->get_required() ? cat(" ", word) : cat(" [", word, "]");
  }
  return usage + " [OPTIONS]";
}

/// Verbs by subject. Those that are in no group are shown at the end.
struct VerbGroup {
  const char* subject;
  std::initializer_list<const char*> verbs;
};
const VerbGroup kGroups[] = {{"Start", {"new"}},
                             {"Run", {"fit", "validate", "test", "predict", "tune", "sweep", "plan"}},
                             {"Config", {"config", "schema", "list", "describe"}},
                             {"Weights", {"export", "import", "inspect"}},
                             {"Runs", {"runs", "compare", "report", "watch"}},
                             {"Data", {"tokenize"}},
                             {"Machine", {"doctor", "env", "bench", "completion"}}};

Lines verb_lines(const CLI::App& app) {
  std::vector<std::string> left;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    left.push_back(verb->get_name());
  std::vector<TextRow> rows;
  for (const VerbGroup& group : kGroups) {
    std::vector<std::string> names;
    for (const char* name : group.verbs)
      if (std::erase(left, std::string(name)) > 0) names.emplace_back(name);
    if (!names.empty()) rows.push_back({cat("  ", group.subject, ":"), join(names, " ")});
  }
  if (!left.empty()) rows.push_back({"  Others:", join(left, " ")});
  const std::vector<int64_t> widths = column_widths(rows);
  Lines lines;
  for (const TextRow& row : rows) lines.push_back(aligned(row, widths));
  return lines;
}

}  // namespace

bool reads_keys(const CLI::App& verb, const CLI::App& app) {
  return takes_config(options_of_verb(verb, app)) && !reads_only_plugins(verb.get_name());
}

std::vector<const CLI::Option*> options_of_verb(const CLI::App& verb, const CLI::App& app) {
  const std::string& name = verb.get_name();
  std::vector<const CLI::Option*> options = verb.get_options();
  const auto add = [&](const char* option) { options.push_back(app.get_option(option)); };
  const bool runs = is_among(name, {"fit", "validate", "test", "predict", "tune"});
  if (runs || is_among(name, {"config", "import", "sweep", "doctor", "plan", "bench"}) || reads_only_plugins(name))
    add("--config");
  if (!is_among(name, {"inspect", "runs", "compare", "report", "watch", "tokenize", "env", "completion", "new"}))
    add("--plugin");
  if (runs) add("--report");
  if (runs || is_among(name, {"config", "sweep", "plan"})) add("--print_config");
  if (name == "fit")
    for (const char* option : {"--profile", "--resume", "--allow-config-change"}) add(option);
  if (runs)
    for (const char* option : {"--ckpt_path", "--verify"}) add(option);
  std::erase_if(options, [](const CLI::Option* option) { return !option->nonpositional(); });
  return options;
}

std::string program_help(const CLI::App& app) {
  const std::string& program = app.get_name();
  Lines lines{app.get_description(), cat("Usage: ", program, " VERB [OPTIONS]"), ""};
  for (std::string& line : verb_lines(app)) lines.push_back(std::move(line));
  lines.emplace_back("");
  lines.emplace_back("Examples:");
  for (std::string& line : example_lines("", program)) lines.push_back(std::move(line));
  lines.emplace_back("");
  lines.emplace_back("Any key of the config is an option: --trainer.max_epochs 3 or");
  lines.emplace_back("--trainer.max_epochs=3; `describe config` lists the keys.");
  lines.push_back(cat("`", program, " VERB --help` shows a verb, `--help-all` everything."));
  return joined(lines);
}

std::string verb_help(const CLI::App& verb, const CLI::App& app) {
  const std::string& program = app.get_name();
  bool is_part = false;
  Lines head{cut_to(verb.get_description(), kHelpColumns, is_part), usage_of(verb, program), ""};
  std::vector<const CLI::Option*> options = verb.get_options();
  std::erase_if(options, [](const CLI::Option* option) { return !option->get_positional(); });
  const Lines positionals = option_lines(options, is_part);
  head.insert(head.end(), positionals.begin(), positionals.end());
  options = options_of_verb(verb, app);
  std::erase_if(options, [](const CLI::Option* option) { return option->get_name() == "--help-all"; });
  const bool configured = reads_keys(verb, app);
  Lines named = option_lines(options, is_part), tail;
  if (configured) named.emplace_back("  --KEY VALUE: any key of the config, such as --trainer.max_epochs 3");
  const Lines examples = example_lines(verb.get_name(), program);
  if (!examples.empty()) tail.emplace_back("Examples:");
  tail.insert(tail.end(), examples.begin(), examples.end());
  // The last line may have to say that this is not all.
  const size_t room = static_cast<size_t>(kHelpLines) - head.size() - tail.size() - 1;
  if (named.size() > room) {
    const std::string key_line = configured ? named.back() : std::string();
    named.resize(room);
    if (configured) named.back() = key_line;
    is_part = true;
  }
  if (is_part || configured) tail.push_back(cat("`", program, " ", verb.get_name(), " --help-all` shows the rest."));
  const bool has_room = head.size() + named.size() + tail.size() < static_cast<size_t>(kHelpLines);
  return joined(head) + joined(named) + (has_room && !tail.empty() ? "\n" : "") + joined(tail);
}

std::string whole_program_help(const CLI::App& app) {
  return app.help("", CLI::AppFormatMode::Normal) + "\n" + kWholeFooter;
}

std::string whole_verb_help(const CLI::App& verb, const CLI::App& app) {
  const CLI::Formatter& format = formatter_of(verb);
  const std::vector<const CLI::Option*> options = options_of_verb(verb, app);
  const Lines examples = example_lines(verb.get_name(), app.get_name());
  return format.make_description(&verb) + format.make_usage(&verb, cat(app.get_name(), " ", verb.get_name())) +
         format.make_positionals(&verb) + format.make_group("Options", false, options) +
         (examples.empty() ? std::string() : cat("\nExamples:\n", joined(examples))) +
         (reads_keys(verb, app) ? cat("\n", kWholeFooter) : std::string());
}

}  // namespace fulgur::cli
