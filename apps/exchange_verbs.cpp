#include "exchange_verbs.h"

#include <memory>
#include <sstream>
#include <utility>

#include "exporting/export_torchscript.h"
#include "fulgur/checkpoint/adapters.h"
#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/checkpoint/export_safetensors.h"
#include "fulgur/checkpoint/key_prefix.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/checkpoint/weights_reader.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/checkpoint_keys.h"
#include "prepared_run.h"
#include "print.h"

namespace fulgur::cli {
namespace fs = std::filesystem;
namespace keys = detail::checkpoint_keys;

namespace {

constexpr const char* kSafetensors = ".safetensors";
constexpr const char* kTorchscript = ".ts";

/// The name of `path` in this folder, with another extension.
fs::path named_after(const fs::path& path, const char* extension) {
  // `folder/` has no file name.
  const fs::path named = path.has_filename() ? path : path.parent_path();
  fs::path name = named.filename();
  return name.replace_extension(extension);
}

enum class ExportFormat { safetensors, pytorch, torchscript };

ExportFormat format_of(const CommandLine& command) {
  if (command.format == "pt") return ExportFormat::pytorch;
  if (command.max_shard_size && !command.format) return ExportFormat::safetensors;
  if (command.format) return *command.format == "torchscript" ? ExportFormat::torchscript : ExportFormat::safetensors;
  const fs::path end = command.output ? command.output->extension() : fs::path();
  if (end == kSafetensors) return ExportFormat::safetensors;
  if (end == ".pt" || end == ".pth") return ExportFormat::pytorch;
  if (end == kTorchscript) return ExportFormat::torchscript;
  throw ConfigError(
      "[cli.export] the format is unknown; neither --format nor the name of --output gives it. Give --format "
      "safetensors or --format pt, for weights, or --format torchscript, for a program with its weights.");
}

const char* extension_of(ExportFormat format) {
  if (format == ExportFormat::pytorch) return ".pt";
  return format == ExportFormat::torchscript ? kTorchscript : kSafetensors;
}

std::map<std::string, std::string> prefixes_of(const std::vector<std::string>& pairs) {
  std::map<std::string, std::string> prefixes;
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos)
      throw ConfigError(cat("[cli.import] --key_prefix must be OLD=NEW; got '", escape_controls(pair),
                            "'. Leave NEW empty to drop OLD."));
    if (!prefixes.emplace(pair.substr(0, equals), pair.substr(equals + 1)).second)
      throw ConfigError(cat("[cli.import] --key_prefix names '", escape_controls(pair.substr(0, equals)), "' twice."));
  }
  return prefixes;
}

/// The state for a run that starts with these weights, and for load_from_checkpoint.
StateTree state_of(LightningModule& module, const Config& config, const fs::path& file) {
  StateTree state;
  state[keys::kImported] = file.filename().string();
  state[keys::kWeightsOnly] = true;
  state[keys::kProgress] = StateTree::map({{"epoch", 0}, {"global_step", 0}});
  state[keys::kHparams] = module.hparams().is_null() ? "{}\n" : to_yaml(module.hparams());
  state[keys::kConfig] = to_yaml(config.write());
  state[keys::kMetrics] = StateTree();
  module.on_save_checkpoint(state);
  return state;
}

/// Replaces weights by their averages, in the dtype of the weights.
void take_averages(CheckpointContent& content, const fs::path& checkpoint) {
  constexpr const char* kCallback = "WeightAveraging";
  const StateTree none;
  const StateTree& callbacks = content.state.contains(keys::kCallbacks) ? content.state.at(keys::kCallbacks) : none;
  if (!callbacks.contains(kCallback) || callbacks.at(kCallback).at("average").as_map().empty())
    throw CheckpointError(
        cat("[cli.export] --averaged needs a checkpoint of a run with the callback WeightAveraging, "
            "after its first update; ",
            escape_controls(checkpoint.string()), " has no averages. Leave out --averaged to export its weights."));
  const StateTree& state = callbacks.at(kCallback);
  // Recomputed statistics replace averaged ones.
  for (const char* part : {"average", "buffers", "recomputed"})
    for (auto& [name, value] : content.module)
      if (state.at(part).contains(name)) value = state.at(part).at(name).tensor().to(value.scalar_type());
}

/// Writes the adapters of a checkpoint as a folder.
ExitCode export_adapters(const CommandLine& command) {
  const fs::path checkpoint = *command.argument;
  if (command.format)
    throw ConfigError(
        "[cli.export] --only_adapters writes a folder with a safetensors file; --format has no effect. Leave it out.");
  if (command.max_shard_size)
    throw ConfigError("[cli.export] --only_adapters writes one file; --max_shard_size has no effect. Leave it out.");
  if (command.output)
    for (const char* end : {kSafetensors, kTorchscript, ".pt", ".pth", ".bin"})
      if (command.output->extension() == end)
        throw ConfigError(cat("[cli.export] --only_adapters writes a folder; --output ",
                              escape_controls(command.output->string()),
                              " has the name of a file. Name a folder, such as ",
                              escape_controls(fs::path(*command.output).replace_extension().string()), "."));
  CheckpointContent content = read_checkpoint(checkpoint, CheckpointParts::weights_and_state);
  const auto adapters = adapters_of(content.state);
  if (!adapters)
    throw CheckpointError(cat("[cli.export] --only_adapters needs a checkpoint of a run with adapters; ",
                              escape_controls(checkpoint.string()), " has none. Leave it out to export all weights."));
  if (command.averaged) take_averages(content, checkpoint);
  const fs::path output = command.output.value_or(named_after(checkpoint, "").string() + "-adapters");
  write_adapters(output, content.module, *adapters, command.force);
  print(escape_controls(output.string()) + "\n");
  return ExitCode::ok;
}

/// Weights that are in memory.
TensorSource source_of(CheckpointContent content) {
  TensorSource source;
  for (const auto& [name, tensor] : content.module)
    source.tensors.push_back({name, safetensors_dtype(tensor.scalar_type()), tensor.sizes().vec(), tensor.nbytes()});
  source.aliases = std::move(content.aliases);
  source.read = [tensors = std::move(content.module)](size_t index) { return tensors[index].second; };
  return source;
}

/// The weights of a checkpoint, one in memory at a time.
TensorSource source_of(const fs::path& checkpoint) {
  const auto reader = std::make_shared<const WeightsReader>(checkpoint);
  return {.tensors = reader->tensors(),
          .read = [reader](size_t index) { return reader->read(index); },
          .aliases = reader->aliases()};
}

/// Averages and adapters need all weights at once.
ExitCode export_safetensors(const CommandLine& command, const fs::path& checkpoint) {
  const auto adapters = adapters_of(read_checkpoint_state(checkpoint));
  TensorSource source;
  if (command.averaged || adapters) {
    CheckpointContent content = read_checkpoint(checkpoint, CheckpointParts::weights_and_state);
    if (command.averaged) take_averages(content, checkpoint);
    if (adapters) merge_adapters(content.module, *adapters);
    source = source_of(std::move(content));
  } else {
    source = source_of(checkpoint);
  }
  const fs::path output = command.output.value_or(named_after(checkpoint, command.max_shard_size ? "" : kSafetensors));
  if (command.max_shard_size)
    for (const char* end : {kSafetensors, kTorchscript, ".pt", ".pth", ".bin"})
      if (output.extension() == end)
        throw ConfigError(cat("[cli.export] --max_shard_size writes a folder; --output ",
                              escape_controls(output.string()), " has the name of a file. Name a folder, such as ",
                              escape_controls(fs::path(output).replace_extension().string()), "."));
  if (command.max_shard_size)
    write_safetensors_shards(output, source, *command.max_shard_size, command.force);
  else
    write_safetensors_from(output, source, command.force);
  print(escape_controls(output.string()) + "\n");
  return ExitCode::ok;
}

// The option that would remove a beginning of the names in the file; empty if none helps.
std::string prefix_option(const LightningModule& module, const NamedTensors& tensors,
                          const std::vector<std::string>& given) {
  if (!given.empty()) return {};
  const std::optional<std::string> prefix = detail::helpful_prefix(module, tensors, nullptr);
  if (!prefix) return {};
  const std::string shown = escape_controls(*prefix);
  return cat("; names in the file begin with ", shown, ", which the module's do not have. Add --key_prefix ", shown,
             "= (the differences without it follow)");
}

}  // namespace

ExitCode export_checkpoint(const CommandLine& command) {
  if (command.only_adapters) return export_adapters(command);
  const fs::path checkpoint = *command.argument;
  const ExportFormat format = format_of(command);
  if (format != ExportFormat::torchscript && !command.inputs.empty())
    throw ConfigError("[cli.export] --input is for --format torchscript, which records a program. Leave it out.");
  if (format == ExportFormat::safetensors) return export_safetensors(command, checkpoint);
  if (command.max_shard_size)
    throw ConfigError("[cli.export] --max_shard_size is for --format safetensors. Leave it out.");
  const fs::path output = command.output.value_or(named_after(checkpoint, extension_of(format)));
  CheckpointContent content = read_checkpoint(checkpoint, CheckpointParts::weights_and_state);
  if (command.averaged) take_averages(content, checkpoint);
  if (const auto adapters = adapters_of(content.state)) merge_adapters(content.module, *adapters);
  if (format == ExportFormat::torchscript) {
    export_torchscript(command, content, output);
  } else {
    WeightsFile weights;
    weights.format = WeightsFormat::pytorch;
    weights.tensors = std::move(content.module);
    weights.aliases = std::move(content.aliases);
    write_weights_file(output, weights, command.force);
  }
  print(escape_controls(output.string()) + "\n");
  return ExitCode::ok;
}

ExitCode import_weights(const CommandLine& command, const Config& config) {
  const fs::path file = *command.argument;
  const fs::path output = command.output.value_or(named_after(file, run_layout::kExtension));
  // Not strict, since this verb reports the differences itself; the module is then discarded.
  const LoadOptions options{
      .strict = false, .key_prefixes = prefixes_of(command.key_prefixes), .convert_formats = command.convert};
  if (output.extension() != run_layout::kExtension)
    throw ConfigError(cat("[cli.import] a checkpoint's name must end in .ckpt; --output is '",
                          escape_controls(output.string()), "'."));
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(output, ignored)))
    throw CheckpointError(cat("[cli.import] the output ", escape_controls(output.string()),
                              " exists already. Name another one with --output."));
  const WeightsFile weights = read_weights_file(file);
  if (!weights.left_out.empty())
    log::info(cat("left out of ", escape_controls(file.string()), ": ", join(weights.left_out),
                  ". Resuming a Python run is not possible; its weights are imported."));
  // The module's weights come from the file, so nothing is taken from a checkpoint that the config names.
  Config without_checkpoint = config;
  without_checkpoint.ckpt_path.reset();
  const PreparedRun run = prepare(std::move(without_checkpoint), TrainerFn::fit);
  run.module->configure_model();
  std::string line;
  const LoadReport report = load_module_state(*run.module, weights.tensors, options);
  if (!report.differences.empty() && (command.strict || report.loaded.empty()))
    throw CheckpointError(
        cat("[cli.import] ", escape_controls(file.string()), " does not fit the module",
            prefix_option(*run.module, weights.tensors, command.key_prefixes), ":\n", report.differences,
            "\nGive the model the options that the weights were created with, replace prefixes of names with "
            "--key_prefix OLD=NEW, convert floating-point weights of another dtype with --convert",
            command.strict ? ", or load what fits with --strict false." : "."));
  for (std::istringstream lines(report.differences); std::getline(lines, line);) log::info(cat("not loaded: ", line));
  if (!report.converted.empty())
    log::info(cat("converted: ", report.converted.size(), " weights, such as ", report.converted.front()));
  CheckpointContent content;
  content.module = module_state(*run.module);
  content.aliases = parameter_aliases(*run.module);
  content.optimizers = nullptr;
  content.state = state_of(*run.module, config, file);
  print(escape_controls(write_checkpoint(output, content).string()) + "\n");
  return ExitCode::ok;
}

}  // namespace fulgur::cli
