#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/trainer/config.h"
#include "planning/plan_arguments.h"
#include "sweep/sweep_arguments.h"
#include "tokenizing/tokenize_arguments.h"
#include "tuning/tune_arguments.h"

namespace CLI {
class App;
}

namespace fulgur::cli {

/// What the user requested.
struct CommandLine {
  std::string verb;                     ///< `fit`, `list`, …; empty if `text` is all there is to do
  std::optional<std::string> argument;  ///< of list, describe, export, import, inspect, tune, completion and new
  ConfigSources sources;
  std::optional<std::filesystem::path> report;
  std::optional<YamlStyle> print_config;
  std::optional<std::string> format;            ///< of export: `safetensors`, `pt` or `torchscript`
  std::optional<std::filesystem::path> output;  ///< of export, import, report, bench, tune and tokenize
  std::optional<uint64_t> max_shard_size;       ///< of export: bytes of a file of a folder
  bool force = false;                           ///< of export: replace the output
  bool averaged = false;                        ///< of export: the weights of WeightAveraging
  bool only_adapters = false;                   ///< of export: without the other weights
  std::vector<std::string> inputs;              ///< of export: shapes of one sample
  bool strict = true;                           ///< of import
  bool convert = false;                         ///< of import
  std::vector<std::string> key_prefixes;        ///< of import: `OLD=NEW`
  bool json = false;                            ///< of inspect, runs, compare, doctor, env and plan
  std::vector<std::string> runs;                ///< run folders: of runs, compare, report and watch
  std::string sort, filter;                     ///< of runs
  double every_s = 1;                           ///< of watch
  TuneArguments tune;
  SweepArguments sweep;
  PlanArguments planning;
  TokenizeArguments tokenize;
  bool quiet = false;         ///< of runs, report, watch and tokenize
  int64_t profile_steps = 0;  ///< of fit: measure so many steps; 0: train
  bool resume = false;        ///< becomes `ckpt_path: auto` in the overrides
  std::string text;           ///< help or version, to be printed instead of running anything
  bool is_error = false;      ///< no verb was given: `text` goes to stderr, exit code 2
};

/// Reads the arguments and the environment; options may come before or after the verb. Throws a ConfigError that
/// suggests the nearest option for an unknown one.
CommandLine parse_command_line(const std::vector<std::string>& arguments, const std::vector<std::string>& environment);

/// Calls `use` with the verbs and options of the program, as they are declared; for completion.
void with_declared_options(const std::function<void(const CLI::App&)>& use);
/// Whether one of the verbs of `fulgur::main` has this name.
bool is_built_in_verb(const std::string& name);

}  // namespace fulgur::cli
