#include "command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "added_verb.h"
#include "fulgur/core/system/program_name.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "help/help_text.h"

namespace fulgur::cli {

namespace {

struct VerbHelp {
  const char* name;
  const char* doc;
};
constexpr VerbHelp kRuns[] = {{"fit", "Train a model"},
                              {"validate", "Evaluate on the validation data"},
                              {"test", "Evaluate on the test data"},
                              {"predict", "Write predictions"},
                              {"config", "Check the config and print it without running anything"},
                              {"schema", "Print the JSON Schema of the config, for editors"}};

/// Options of the program itself; anything else that begins with `--` is a config key.
constexpr const char* kWithValue[] = {
    "config", "report", "plugin", "format", "output", "strict", "max_shard_size", "key_prefix", "sort", "filter",
    "every", "profile",
    // of tune
    "mode", "min_lr", "max_lr", "early_stop_threshold", "steps", "steps_per_trial", "init", "max_trials", "margin",
    // of sweep
    "sweep", "dir", "jobs", "grace", "trial", "show", "collect", "devices_per_trial", "device_list",
    // of tokenize
    "tokenizer", "train", "vocab_size", "input", "jsonl", "csv", "separator", "val_fraction"};
constexpr const char* kFlags[] = {"help",          "help-all", "version", "force", "averaged",
                                  "only_adapters", "json",     "convert", "quiet", "retry_failed"};
/// Options of `plan`; for other verbs these names are not options.
constexpr const char* kOfPlan[] = {"nodes", "devices", "batch_size"};
/// Short forms of config keys.
struct Short {
  const char* name;
  const char* key;
  const char* value;  ///< null: the user's
  const char* doc;
};
constexpr Short kShorts[] = {
    {"ckpt_path", "ckpt_path", nullptr, "Load a checkpoint: last, best or a path"},
    {"resume", "ckpt_path", "auto",
     "fit: resume from the newest checkpoint that verifies, if there is one (ckpt_path: auto)"},
    {"allow-config-change", "load.allow_config_change", "true",
     "fit: if config and checkpoint differ, the config wins"},
    {"verify", "load.verify", nullptr,
     "Compare the whole checkpoint with its manifest, or only the parts that are needed: whole, needed"}};

template <class Names>
bool is_one_of(const std::string& name, const Names& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// Options of components that are often given without the name of their component, and their keys.
struct ComponentOption {
  const char* name;
  const char* key;
};
constexpr ComponentOption kComponentOptions[] = {{"lr", "optimizer.lr"},
                                                 {"learning_rate", "optimizer.lr"},
                                                 {"weight_decay", "optimizer.weight_decay"},
                                                 {"momentum", "optimizer.momentum"},
                                                 {"betas", "optimizer.betas"},
                                                 {"batch_size", "data.batch_size"},
                                                 {"num_workers", "data.num_workers"},
                                                 {"data_dir", "data.data_dir"},
                                                 {"hidden", "model.hidden"}};

/// The options that a verb takes; those of all verbs if it is empty.
std::vector<std::string> options_for_hint(const std::string& verb, const Fields& schema) {
  std::vector<std::string> names;
  bool has_keys = true;
  if (verb.empty()) {
    names = {"print_config"};
    names.insert(names.end(), std::begin(kWithValue), std::end(kWithValue));
    names.insert(names.end(), std::begin(kFlags), std::end(kFlags));
    for (const Short& option : kShorts) names.emplace_back(option.name);
  } else {
    with_declared_options([&](const CLI::App& app) {
      const CLI::App& chosen = *app.get_subcommand(verb);
      for (const CLI::Option* option : options_of_verb(chosen, app))
        for (const std::string& long_name : option->get_lnames()) names.push_back(long_name);
      has_keys = reads_keys(chosen, app);
    });
  }
  if (has_keys)
    for (const Field& field : schema.all()) names.push_back(field.name);
  for (std::string& name : names) name.insert(0, "--");
  return names;
}

/// `verb`: that of the command line; empty if it has none.
[[noreturn]] void unknown_option(const std::string& name, const std::string& verb, const Fields& schema,
                                 const Fields& trainer) {
  for (const Field& field : trainer.all()) {
    if (field.name == name)
      throw ConfigError(cat("[cli] unknown option '--", name, "'; did you mean '--trainer.", name, "'?"));
  }
  for (const auto& [option, key] : kComponentOptions) {
    if (name == option)
      throw ConfigError(cat("[cli] unknown option '--", name, "'; did you mean '--", key, "'? `", program_name(),
                            " describe CLASS` lists the options of a component."));
  }
  std::string hint = did_you_mean("--" + name, options_for_hint(verb, schema));
  if (const auto renamed = trainer.hint_for_unknown(name); hint.empty() && renamed) hint = "; " + *renamed;
  throw ConfigError(cat(
      "[cli] unknown option '--", escape_controls(name), "'", as_sentence(hint), "`", program_name(), " ",
      verb.empty() ? "VERB" : verb, " --help` lists those of ", verb.empty() ? "a verb" : verb, ", `", program_name(),
      " describe CLASS` those of a component, which are set as --model.NAME, --data.NAME and so on."));
}

YamlStyle parse_style(const std::string& text) {
  YamlStyle style;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word == "comments")
      style.comments = true;
    else if (word == "skip_null")
      style.skip_null = true;
    else
      throw ConfigError(cat("[cli] --print_config takes comments and skip_null; got '", word, "'"));
    begin = end + 1;
  }
  return style;
}

/// The first argument that is the name of a verb; empty if no argument is one.
std::string verb_of(const std::vector<std::string>& arguments) {
  const auto found = std::ranges::find_if(arguments, is_built_in_verb);
  return found == arguments.end() ? std::string() : *found;
}

/// Extracts the overrides from the arguments: the rest goes to CLI11, which would take `fit` in `--model.name fit` for
/// the verb.
std::vector<std::string> take_overrides(const std::vector<std::string>& arguments, CommandLine& out) {
  const std::unique_ptr<Fields> schema = FieldTraits<Config>::type().object();
  const std::unique_ptr<Fields> trainer = FieldTraits<TrainerOptions>::type().object();
  std::vector<std::string> rest;
  const bool plans = std::ranges::find(arguments, "plan") != arguments.end();
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string argument = arguments[i];
    // It adds to the list of the config in any case.
    if (argument == "--plugin+" || argument.starts_with("--plugin+=")) argument.erase(argument.find('+'), 1);
    if (argument == "-c" && i + 1 < arguments.size()) {
      rest.push_back(argument);
      rest.push_back(arguments[++i]);
      continue;
    }
    if (!argument.starts_with("--") || argument.size() == 2) {
      rest.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const bool has_value = equals != std::string::npos;
    const std::string name = argument.substr(2, has_value ? equals - 2 : std::string::npos);
    if (name == "print_config") {
      out.print_config = parse_style(has_value ? argument.substr(equals + 1) : "");
      continue;
    }
    const bool takes_value = is_one_of(name, kWithValue) || (plans && is_one_of(name, kOfPlan));
    if (takes_value || is_one_of(name, kFlags)) {
      rest.push_back(argument);
      if (!has_value && takes_value && i + 1 < arguments.size()) rest.push_back(arguments[++i]);
      continue;
    }
    const auto* shorthand =
        std::find_if(std::begin(kShorts), std::end(kShorts), [&](const Short& option) { return name == option.name; });
    if (shorthand != std::end(kShorts)) {
      if (shorthand->value != nullptr && has_value) throw ConfigError(cat("[cli] --", name, " takes no value"));
      if (shorthand->value == nullptr && !has_value && i + 1 == arguments.size())
        throw ConfigError(cat("[cli] --", name, " needs a value"));
      out.sources.overrides.emplace_back(shorthand->key, shorthand->value != nullptr ? shorthand->value
                                                         : has_value                 ? argument.substr(equals + 1)
                                                                                     : arguments[++i]);
      if (name == "resume") out.resume = true;
      continue;
    }
    const std::string key = name.ends_with('+') ? name.substr(0, name.size() - 1) : name;
    const bool is_key =
        key.find('.') != std::string::npos ||
        std::any_of(schema->all().begin(), schema->all().end(), [&](const Field& field) { return field.name == key; });
    if (!is_key) unknown_option(name, verb_of(arguments), *schema, *trainer);
    if (!has_value && (i + 1 == arguments.size() || arguments[i + 1].starts_with("--"))) {
      throw ConfigError(cat("[cli] --", escape_controls(name), " needs a value: --", escape_controls(name), " VALUE"));
    }
    out.sources.overrides.emplace_back(name, has_value ? argument.substr(equals + 1) : arguments[++i]);
  }
  return rest;
}

/// What an option takes, such as `FILE`, without its range.
std::string value_name(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  return name.substr(0, name.find_first_of(": "));
}

/// Names that other programs give to the verbs.
struct OtherName {
  const char *name, *verb;
};
constexpr OtherName kOtherNames[] = {
    {"train", "fit"},    {"resume", "fit --resume"}, {"evaluate", "validate"}, {"eval", "validate"},
    {"val", "validate"}, {"infer", "predict"},       {"lr_find", "tune lr"},   {"scale_batch_size", "tune batch_size"}};

/// What was probably meant by an argument that has no place.
std::string hint_for_extra(const std::string& extra, const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    verbs.push_back(verb->get_name());
  if (extra.ends_with(".yaml") || extra.ends_with(".yml"))
    return cat("; did you mean `--config ", shell_word(extra), "`?");
  if (const auto given = app.get_subcommands(); !given.empty())
    return std::ranges::find(verbs, extra) == verbs.end()
               ? std::string()
               : cat("; a command has one verb, and '", given.front()->get_name(), "' is it");
  for (const auto& [verb, doc] : added_verb_list()) verbs.push_back(verb);
  for (const auto& [name, verb] : kOtherNames)
    if (extra == name) return cat("; did you mean '", verb, "'?");
  return did_you_mean(extra, verbs);
}

/// A mistake that concerns an argument without a name, or the value of an option; empty if it is another one.
std::string argument_message(const CLI::ParseError& error, const CLI::App& app) {
  const std::string text = error.what();
  const std::string name = text.substr(0, text.find(": "));
  const auto choice = text.find(" not in {");
  if (dynamic_cast<const CLI::ValidationError*>(&error) && choice != std::string::npos && text.ends_with('}')) {
    const size_t list = choice + std::string_view(" not in {").size();
    return cat(name, " takes ", join(split_text(text.substr(list, text.size() - 1 - list), ','), " or "), "; got '",
               text.substr(name.size() + 2, choice - name.size() - 2), "'. ");
  }
  constexpr std::string_view kRange = " not in range ", kValue = ": Value ", kConvert = "Could not convert: ";
  const auto range = text.find(kRange), value = text.find(kValue);
  if (range != std::string::npos && value < range)
    return cat(text.substr(0, value), " must be in the range ", text.substr(range + kRange.size()), "; got '",
               text.substr(value + kValue.size(), range - value - kValue.size()), "'. ");
  if (const auto equals = text.find(" = "); text.starts_with(kConvert) && equals != std::string::npos)
    return cat(text.substr(kConvert.size(), equals - kConvert.size()), " does not take the value '",
               text.substr(equals + 3), "'. ");
  const bool lacks_some = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  if (!lacks_some && !dynamic_cast<const CLI::RequiredError*>(&error)) return "";
  std::vector<const CLI::App*> apps{&app};
  for (const CLI::App* verb : app.get_subcommands()) apps.push_back(verb);
  for (const CLI::App* place : apps) {
    for (const CLI::Option* option : place->get_options()) {
      if (!option->get_positional() && lacks_some && option->get_name() == name)
        return cat(name, " needs a value: ", name, " ", value_name(*option), ". ");
      const bool is_missing = option->get_required() && option->count() == 0;
      if (option->get_positional() && (lacks_some ? option->get_name() == name : is_missing))
        return cat("`", program_name(), " ", place->get_name(), "` needs ", value_name(*option), " (",
                   option->get_description(), "); got ",
                   lacks_some ? text.substr(text.rfind(' ') + 1) : std::string("none"), ". ");
    }
  }
  return "";
}

/// CLI11's message without its internal details.
std::string usage_message(const CLI::ParseError& error, const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(true);
  const auto verbs = app.get_subcommands();
  const std::string verb = verbs.empty() ? std::string() : " " + verbs.front()->get_name();
  const std::string usage = cat("`", program_name(), verb, " --help` shows the usage.");
  if (!extras.empty())
    return cat("[cli] unexpected argument '", escape_controls(extras.front().substr(0, 200)), "'",
               as_sentence(hint_for_extra(extras.front(), app)), usage);
  const std::string argument = argument_message(error, app);
  return argument.empty() ? cat("[cli] ", escape_controls(error.what()))
                          : cat("[cli] ", escape_controls(argument), usage);
}

/// Verbs that exchange weights with Python, and show the contents of a checkpoint.
void add_exchange(CLI::App& app, CommandLine& out, std::optional<std::string>& argument) {
  CLI::App* exports =
      app.add_subcommand("export", "Write a checkpoint's weights, or its model as TorchScript, for Python")
          ->fallthrough();
  exports->add_option("checkpoint", argument, "Folder of the checkpoint, or a link to it")
      ->required()
      ->type_name("CKPT");
  exports
      ->add_option("--format", out.format,
                   "safetensors or pt: weights; torchscript: a program; default: from the name of the output")
      ->check(CLI::IsMember({"safetensors", "pt", "torchscript"}))
      ->type_name("FORMAT");
  exports
      ->add_option("--output", out.output,
                   "File to write (folder, of adapters and shards); the checkpoint's name in this folder if not given")
      ->type_name("FILE");
  exports
      ->add_option("--max_shard_size", out.max_shard_size,
                   "safetensors: write a folder of files with at most so many bytes each (5GB), and their index, for "
                   "Hugging Face's loaders")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::PositiveNumber)
      ->type_name("SIZE");
  exports->add_flag("--force", out.force, "Replace an existing output");
  exports->add_flag("--averaged", out.averaged, "Export the averages of the callback WeightAveraging");
  exports->add_flag("--only_adapters", out.only_adapters,
                    "Write the adapters as a folder of PEFT's, instead of weights that include them");
  exports
      ->add_option(
          "--input", out.inputs,
          "torchscript: shape of one sample of an input of the model (3,32,32 or tokens=128:int64), instead of a batch "
          "of the run's data; may be given several times")
      ->type_name("SHAPE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  CLI::App* imports = app.add_subcommand("import", "Create a checkpoint from a Python state dict")->fallthrough();
  imports->add_option("file", argument, "A .safetensors, .pt or .pth file, or a .ckpt of Lightning")
      ->required()
      ->type_name("FILE");
  imports
      ->add_option("--output", out.output, "Checkpoint folder to create; the file's name in this folder if not given")
      ->type_name("DIR");
  imports->add_option("--strict", out.strict, "false: load what fits, and list the rest")->type_name("BOOL");
  imports->add_flag("--convert", out.convert, "Convert floating-point weights of another dtype to that of the module");
  imports
      ->add_option("--key_prefix", out.key_prefixes,
                   "Prefix of names in the file = its replacement in the module; may be given several times")
      ->type_name("OLD=NEW")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  CLI::App* inspect =
      app.add_subcommand("inspect", "Show the contents of a checkpoint, or of a file of weights")->fallthrough();
  inspect->add_option("checkpoint", argument, "Folder of the checkpoint, or a file that import takes")
      ->required()
      ->type_name("CKPT");
  inspect->add_flag("--json", out.json, "Print the contents as JSON");
}

/// Verbs that show run folders.
void add_history(CLI::App& app, CommandLine& out) {
  CLI::App* runs = app.add_subcommand("runs", "List the runs below a folder")->fallthrough();
  runs->add_option("dir", out.runs, "Folder; fulgur_logs if not given")->type_name("DIR")->expected(0, 1);
  runs->add_option("--sort", out.sort,
                   "Sort by name, status, epochs, steps, best, duration, a metric or a key of the config; -KEY: the "
                   "largest first")
      ->type_name("KEY");
  runs->add_option("--filter", out.filter,
                   "List only some runs: KEY OP VALUE, several joined by 'and'; OP: = != < <= > >= ~ (contains)")
      ->type_name("EXPR");
  runs->add_flag("--json", out.json, "Print the runs with all their metrics as JSON");
  runs->add_flag("--quiet", out.quiet, "Print only the run folders, one per line");
  CLI::App* compare = app.add_subcommand("compare", "Compare two runs")->fallthrough();
  compare->add_option("run", out.runs, "Two run folders")->required()->type_name("RUN")->expected(2);
  compare->add_flag("--json", out.json, "Print the comparison as JSON");
  CLI::App* report = app.add_subcommand("report", "Write an HTML page that shows runs")->fallthrough();
  report->add_option("run", out.runs, "Run folders, or folders with runs, of which all are shown")
      ->required()
      ->type_name("RUN")
      ->expected(1, -1);
  report->add_option("--output", out.output, "File to write; report.html in this folder if not given")
      ->type_name("FILE");
  report->add_flag("--quiet", out.quiet, "Do not print the name of the file");
  CLI::App* watch = app.add_subcommand("watch", "Follow a run until it ends")->fallthrough();
  watch
      ->add_option("run", out.runs,
                   "Run folder, or a folder with runs, of which the newest is followed; fulgur_logs if not given")
      ->type_name("RUN")
      ->expected(0, 1);
  watch->add_option("--every", out.every_s, "Seconds between two looks at the run")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.05, 3600.0));
  watch->add_flag("--quiet", out.quiet, "Print only how the run ended");
}

/// Verbs about the machine and the shell.
void add_machine(CLI::App& app, CommandLine& out, std::optional<std::string>& argument) {
  CLI::App* doctor =
      app.add_subcommand("doctor", "Check this machine, and a config if one is given; exit 1 if something is wrong")
          ->fallthrough();
  doctor->add_flag("--json", out.json, "Print the findings as JSON");
  CLI::App* env = app.add_subcommand("env", "Show versions and hardware, for a report of an error")->fallthrough();
  env->add_flag("--json", out.json, "Print them as JSON");
  app.add_subcommand("completion", "Print a script that completes commands in a shell")
      ->fallthrough()
      ->add_option("shell", argument, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL");
}

/// Measures the machine.
void add_bench(CLI::App& app, CommandLine& out, std::optional<std::string>& argument) {
  CLI::App* verb =
      app.add_subcommand("bench", "Measure exchanges between processes (comm), as a profile for plan")->fallthrough();
  verb->add_option("what", argument, "comm")->required()->type_name("WHAT");
  verb->add_option("--output", out.output, "Profile to write; it is printed if not given")->type_name("FILE");
  verb->add_flag("--force", out.force, "Replace the output if it exists");
}

/// Finds a learning rate or a batch size for a config.
void add_tune(CLI::App& app, CommandLine& out, std::optional<std::string>& argument) {
  TuneArguments& tune = out.tune;
  CLI::App* verb =
      app.add_subcommand("tune", "Find a learning rate (lr) or a batch size (batch_size) for a config")->fallthrough();
  verb->add_option("what", argument, "lr or batch_size")->required()->type_name("WHAT");
  verb->add_option("--mode", tune.mode,
                   "lr: exponential (default) or linear, how the rate grows; batch_size: power (default) doubles the "
                   "batch, binsearch then looks for the exact size")
      ->type_name("MODE");
  verb->add_option("--min_lr", tune.min_lr, "lr: the first learning rate; 1e-8 if not given")->type_name("RATE");
  verb->add_option("--max_lr", tune.max_lr, "lr: the last learning rate; 1 if not given")->type_name("RATE");
  verb->add_option("--steps", tune.steps, "lr: optimizer steps of the test; 100 if not given")->type_name("N");
  verb->add_option("--early_stop_threshold", tune.early_stop_threshold,
                   "lr: ends when the smoothed loss exceeds this many times its smallest value; 4 if not given, 0: "
                   "never")
      ->type_name("FACTOR");
  verb->add_option("--output", out.output,
                   "lr: the curve is written to NAME.csv and NAME.html; lr_range_test in this folder if not given")
      ->type_name("NAME");
  verb->add_option("--steps_per_trial", tune.steps_per_trial,
                   "batch_size: optimizer steps and validation batches of a trial; 3 if not given")
      ->type_name("N");
  verb->add_option("--init", tune.init, "batch_size: the first batch size; 2 if not given")->type_name("N");
  verb->add_option("--max_trials", tune.max_trials, "batch_size: trials at most; 25 if not given")->type_name("N");
  verb->add_option("--margin", tune.margin,
                   "batch_size, binsearch: the part of the greatest size that is left free; 0.05 if not given")
      ->type_name("PART");
}

/// `sweep`, which starts fits.
void add_sweep(CLI::App& app, SweepArguments& out) {
  constexpr int64_t kMost = 1'000'000;
  CLI::App* sweep =
      app.add_subcommand("sweep", "Train a config with many values of its options, and compare them")->fallthrough();
  CLI::Option* file = sweep->add_option("--sweep", out.file, "YAML file: method, metric, space, …");
  file->type_name("FILE");
  sweep->add_option("--dir", out.dir, "Folder of the sweep; sweeps/NAME if not given, for NAME.yaml")->type_name("DIR");
  sweep->add_option("--jobs", out.jobs, "Trials that run at the same time")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, kMost));
  sweep->add_option("--devices_per_trial", out.devices_per_trial, "GPUs of each running trial")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, kMost));
  sweep->add_option("--device_list", out.device_list, "GPUs to distribute, such as 0,1,2,3")->type_name("LIST");
  sweep->add_flag("--retry_failed", out.retry_failed, "Start failed trials again");
  sweep->add_option("--grace", out.grace_s, "Time of the trials to save and end after a signal")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6));
  CLI::Option* trial = sweep->add_option("--trial", out.trial, "Run only this trial, in an array job of a scheduler");
  CLI::Option* show = sweep->add_option("--show", out.show, "Print the table of a sweep, and write its page");
  CLI::Option* collect = sweep->add_option("--collect", out.collect, "The same, with the results of an array job");
  trial->type_name("I");
  show->type_name("DIR")->excludes(collect)->excludes(trial)->excludes(file);
  collect->type_name("DIR")->excludes(trial);
}

/// `tokenize`, which makes token files of texts.
void add_tokenize(CLI::App& app, CommandLine& out) {
  TokenizeArguments& tokenize = out.tokenize;
  CLI::App* verb =
      app.add_subcommand("tokenize", "Convert texts to a folder of tokens for TokenFilesDataModule")->fallthrough();
  verb->add_option("--input", tokenize.inputs, "Text files, or patterns such as 'data/*.txt'")
      ->required()
      ->type_name("FILE")
      ->expected(1, -1)
      ->take_all();
  verb->add_option("--output", out.output, "Folder to create")->required()->type_name("DIR");
  verb->add_option("--tokenizer", tokenize.tokenizer,
                   "A tokenizer.json, or a folder with one, with vocab.json and merges.txt, or with vocab.txt")
      ->type_name("PATH");
  verb->add_option("--train", tokenize.train, "Train a tokenizer on the inputs: bpe or wordpiece")
      ->check(CLI::IsMember({"bpe", "wordpiece"}))
      ->type_name("KIND");
  verb->add_option("--vocab_size", tokenize.vocab_size, "Tokens of the trained tokenizer; 30000 if not given")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  CLI::Option* const jsonl =
      verb->add_option("--jsonl", tokenize.jsonl, "The inputs are JSON lines, with the text in this field")
          ->type_name("FIELD");
  verb->add_option("--csv", tokenize.csv, "The inputs are CSV files with a header, with the text in this column")
      ->type_name("COLUMN")
      ->excludes(jsonl);
  // A function, since CLI11 takes an empty text for no value of an optional.
  verb->add_option_function<std::string>(
          "--separator", [&tokenize](const std::string& token) { tokenize.separator = token; },
          "Token between documents, and at the end of each; <|endoftext|> if the tokenizer has it; '': none")
      ->type_name("TOKEN");
  verb->add_option("--val_fraction", tokenize.val_fraction, "Fraction of the tokens, at the end, for validation")
      ->type_name("PART");
  verb->add_flag("--quiet", out.quiet, "Print only the folder");
}

/// `plan`, which predicts.
void add_plan(CLI::App& app, CommandLine& out) {
  PlanArguments& planning = out.planning;
  CLI::App* verb =
      app.add_subcommand("plan", "Predict memory, exchanges and time of a step on many machines")->fallthrough();
  verb->add_option("--nodes", planning.nodes, "Numbers of nodes: 4, 1,2,8 or 1..1024; 1 if not given")->type_name("N");
  verb->add_option("--devices", planning.devices, "Devices of a node; those of the profile if not given")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  verb->add_option("--profile", planning.profile,
                   "The machines: a100, h100, h200, xeon or a YAML file; h100 if not given")
      ->type_name("PROFILE");
  verb->add_option("--batch_size", planning.batch_size,
                   "Samples of a batch of one rank; the batch_size of the config's data if not given")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->add_option("--input", planning.inputs,
                   "Shape of one sample of an entry of a batch (3,32,32 or 2048:int64), instead of a batch of the "
                   "config's data; may be given several times")
      ->type_name("SHAPE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  verb->add_flag("--json", out.json, "Print all predictions as JSON");
}

/// `new`, which makes a project for components of the user's own.
void add_new(CLI::App& app, std::optional<std::string>& argument) {
  CLI::App* verb = app.add_subcommand("new", "Make a CMake project with a module, data, a callback, a config and tests")
                       ->fallthrough();
  verb->add_option("path", argument, "Folder to create; its last part names the project")
      ->required()
      ->type_name("PATH");
}

// What CLI11 fills in.
struct Values {
  std::vector<std::string> files, plugins;
  std::optional<std::string> report, argument;
};

void declare(CLI::App& app, CommandLine& out, Values& values) {
  app.set_help_all_flag("--help-all", "Print the whole help: all verbs and options, overrides and exit codes");
  app.set_help_flag("-h,--help", "Print a help that fits a screen");
  app.set_version_flag("--version", "fulgur " FULGUR_VERSION);
  app.require_subcommand(0, 1);
  app.add_option("-c,--config", values.files, "YAML file; may be given several times, later ones win")
      ->type_name("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--plugin", values.plugins, "Shared library with custom components; adds to `plugin` of the config")
      ->type_name("FILE.so")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--report", values.report, "Write metrics, counts, paths and times as JSON")
      ->type_name("FILE")
      ->take_last();
  app.add_option("--profile", out.profile_steps,
                 "fit: measure this many steps after a warm-up, say what bounds the run and what to try, and end; "
                 "nothing is saved")
      ->type_name("STEPS")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->take_last();
  // Read before CLI11 sees the arguments; declared for --help.
  const std::string print_help = "Print the config with all defaults and exit; =comments,skip_null";
  app.add_flag("--print_config", print_help);
  for (const Short& option : kShorts) {
    if (option.value != nullptr)
      app.add_flag(std::string("--") + option.name, option.doc);
    else
      app.add_option(std::string("--") + option.name, option.doc)->type_name("WHAT");
  }
  for (const VerbHelp& verb : kRuns) app.add_subcommand(verb.name, verb.doc)->fallthrough();
  CLI::App* list = app.add_subcommand("list", "List the components, of one kind or of all")->fallthrough();
  CLI::App* describe =
      app.add_subcommand("describe", "Show a component's options (also: config, trainer)")->fallthrough();
  list->add_option("kind", values.argument, "callback, model, data, …")->type_name("KIND");
  describe->add_option("name", values.argument, "Name of the component")->required()->type_name("NAME");
  add_exchange(app, out, values.argument);
  add_history(app, out);
  add_bench(app, out, values.argument);
  add_tune(app, out, values.argument);
  add_sweep(app, out.sweep);
  add_plan(app, out);
  add_tokenize(app, out);
  add_machine(app, out, values.argument);
  add_new(app, values.argument);
}

constexpr const char* kDescription = "Trains and evaluates LibTorch models from a YAML config.";

/// What `--help`, `--help-all` and `--version` print.
std::string requested_text(const CLI::Success& request, const CLI::App& app) {
  if (app.get_option("--version")->count() > 0) return "fulgur " FULGUR_VERSION "\n";
  const std::vector<CLI::App*> verbs = app.get_subcommands();
  const bool all = dynamic_cast<const CLI::CallForAllHelp*>(&request) != nullptr;
  if (verbs.empty()) return cat(all ? whole_program_help(app) : program_help(app), help_of_added_verbs());
  return all ? whole_verb_help(*verbs.front(), app) : verb_help(*verbs.front(), app);
}

}  // namespace

void with_declared_options(const std::function<void(const CLI::App&)>& use) {
  CLI::App app(kDescription, program_name());
  CommandLine out;
  Values values;
  declare(app, out, values);
  use(app);
}

namespace {

bool has_verb(const CLI::App& app, const std::string& name) {
  const std::vector<const CLI::App*> verbs = app.get_subcommands([](const CLI::App*) { return true; });
  return std::ranges::any_of(verbs, [&](const CLI::App* verb) { return verb->get_name() == name; });
}

/// The first argument is a verb or an option: what follows an unknown verb would be reported as wrong options.
void check_verb(const std::vector<std::string>& arguments, const CLI::App& app) {
  if (arguments.empty() || arguments.front().starts_with('-') || has_verb(app, arguments.front())) return;
  const std::string verb = escape_controls(arguments.front().substr(0, 200));
  throw ConfigError(cat("[cli] there is no verb '", verb, "'", as_sentence(hint_for_extra(verb, app)),
                        "`--help` lists the verbs; those of a plug-in need --plugin FILE.so."));
}

/// Whether the verb reads an option of the program: its help then shows it.
bool reads(const CLI::App& verb, const CLI::App& app, const char* option) {
  const auto options = options_of_verb(verb, app);
  return std::ranges::find(options, app.get_option(option)) != options.end();
}

/// Options of all verbs may stand anywhere, so CLI11 takes them for each. A verb without a config reads no option of a
/// run; `export` reads those of the model.
void refuse_what_is_not_read(const CommandLine& command, const CLI::App& verb, const CLI::App& app) {
  if (reads_keys(verb, app)) return;
  const bool takes_plugins = reads(verb, app, "--plugin");
  std::string unread;
  if (!command.sources.files.empty() && !reads(verb, app, "--config"))
    unread = "--config";
  else if (!command.sources.overrides.empty() && command.verb != "export")
    unread = "--" + command.sources.overrides.front().first;
  else if (command.report)
    unread = "--report";
  else if (!command.sources.plugins.empty() && !takes_plugins)
    unread = "--plugin";
  if (unread.empty()) return;
  throw ConfigError(
      cat("[cli.", command.verb, "] ", command.verb, " does not read ", escape_controls(unread),
          takes_plugins && unread == "--config" ? "; --plugin FILE.so loads the classes of a plug-in" : "", ". `",
          program_name(), " ", command.verb, " --help` lists its options."));
}

}  // namespace

bool is_built_in_verb(const std::string& name) {
  bool found = false;
  with_declared_options([&](const CLI::App& app) { found = has_verb(app, name); });
  return found;
}

CommandLine parse_command_line(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  CommandLine out;
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    if (equals != std::string::npos)
      out.sources.environment.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
  }
  CLI::App app(kDescription, program_name());
  Values values;
  declare(app, out, values);
  check_verb(arguments, app);
  std::vector<std::string> rest = take_overrides(arguments, out);
  try {
    std::reverse(rest.begin(), rest.end());
    app.parse(rest);
  } catch (const CLI::Success& request) {
    out.text = requested_text(request, app);
    return out;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(usage_message(error, app));
  }
  const std::vector<CLI::App*> verbs = app.get_subcommands();
  if (verbs.empty()) {
    out.text = cat("error: [cli] a verb is missing\n", program_help(app), help_of_added_verbs());
    out.is_error = true;
    return out;
  }
  out.verb = verbs.front()->get_name();
  if (out.resume && out.verb != "fit")
    throw ConfigError(
        cat("[cli] --resume is for fit", reads(*verbs.front(), app, "--ckpt_path")
                                             ? cat("; ", out.verb, " takes --ckpt_path last, best or a path")
                                             : ""));
  if (out.profile_steps > 0 && out.verb != "fit")
    throw ConfigError(cat("[cli] --profile is for fit; it does not measure ", out.verb,
                          ". For the time of each action, use --trainer.profiler simple"));
  if (out.profile_steps > 0 && out.resume)
    throw ConfigError(
        "[cli] --profile and --resume contradict each other: a run that is only measured resumes nothing. Leave out "
        "--resume; with --ckpt_path the weights of a checkpoint are used");
  if (out.resume && std::count_if(out.sources.overrides.begin(), out.sources.overrides.end(),
                                  [](const auto& o) { return o.first == "ckpt_path"; }) > 1)
    throw ConfigError(
        "[cli] --resume and --ckpt_path contradict each other: --resume finds the checkpoint itself. Give one of the "
        "two");
  if (out.verb == "bench" && values.argument != "comm")
    throw ConfigError(cat("[cli.bench] bench measures exchanges between processes; got '",
                          escape_controls(values.argument.value_or("").substr(0, 200)), "'. Use bench comm."));
  if (out.verb == "tune" && values.argument != "lr" && values.argument != "batch_size")
    throw ConfigError(cat("[cli.tune] tune finds a learning rate or a batch size; got '",
                          escape_controls(values.argument.value_or("").substr(0, 200)),
                          "'. Use tune lr or tune batch_size."));
  out.argument = values.argument;
  out.sources.files.assign(values.files.begin(), values.files.end());
  out.sources.plugins.assign(values.plugins.begin(), values.plugins.end());
  out.report = values.report;
  refuse_what_is_not_read(out, *verbs.front(), app);
  // CLI11's ranges accept NaN.
  for (const auto& [option, value] : {std::pair("--grace", out.sweep.grace_s), std::pair("--every", out.every_s)})
    if (std::isnan(value)) throw ConfigError(cat("[cli] ", option, " must be a number of seconds; got 'nan'."));
  return out;
}

}  // namespace fulgur::cli
