#include <algorithm>

#include "config/weights_config.h"
#include "fulgur/checkpoint/key_prefix.h"
#include "fulgur/checkpoint/map_keys.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/core/text/hub_name.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "setup/setup_steps.h"

namespace fulgur::detail {
namespace {

// DataParallel, DDP and Lightning put something before the names. Empty if nothing like that helps.
std::string prefix_hint(const torch::nn::Module& model, const NamedTensors& in_file, const KeyMap* map,
                        const std::string& removed) {
  const std::optional<std::string> prefix = helpful_prefix(model, in_file, map);
  if (!prefix) return {};
  const std::string shown = escape_controls(*prefix);
  return cat("; names in the file begin with ", shown,
             ", which the model's do not have. Set pretrained.key_prefix: ", escape_controls(removed), shown,
             " (the differences without it follow)");
}

// config.json knows better than the names which key map the weights need. Empty if it does not, or names the same one.
std::string key_map_hint(const PretrainedWeights& pretrained) {
  const auto beside = config::key_map_beside(*pretrained.path);
  if (!beside || (pretrained.key_map && pretrained.key_map.class_path() == beside->second)) return {};
  return cat("; the config.json beside it says model_type: ", escape_controls(beside->first),
             ". Set pretrained.key_map: ", beside->second, " (the differences without it follow)");
}

// A link may have set options to other values than those of the weights.
std::string options_hint(const RunState& run, const KeyMap* map) {
  if (map == nullptr) return {};
  const auto unlike = config::options_unlike_config(*run.components.pretrained.path, *map, run.model->hparams());
  return unlike.empty() ? "" : cat("\nThe config.json beside it says other values: ", join(unlike, "; "), ".");
}

std::string first_lines(const std::string& text, size_t most) {
  const auto lines = split_text(text, '\n');
  if (lines.size() <= most) return text;
  return cat(join({lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(most)}, "\n"), "\n  … and ",
             lines.size() - most, " more");
}

void check_path(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return;
  throw CheckpointError(cat("[trainer.pretrained] pretrained.path must name a file or a folder that exists; ",
                            escape_controls(path.string()), " does not.", hub_name_hint(path)));
}

void check_key_map(const PretrainedWeights& pretrained, const NamedTensors& in_file, const KeyMap& map) {
  if (knows_a_name(in_file, map)) return;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : in_file) names.push_back(escape_controls(name));
  throw CheckpointError(
      cat("[trainer.pretrained] pretrained.key_map must fit the weights; ", pretrained.key_map.class_path(),
          " knows none of the names in ", escape_controls(pretrained.path->string()), ": ", join_some(names, 3),
          ". Set the key map of the program that wrote them, or key_map: null if the names are those of "
          "the model."));
}

}  // namespace

void load_pretrained(RunState& run) {
  const PretrainedWeights& pretrained = run.components.pretrained;
  if (!pretrained.path || run.keeps_weights) return;
  const std::string shown_path = escape_controls(pretrained.path->string());
  check_path(*pretrained.path);
  WeightsFile file = read_weights_file(*pretrained.path);
  if (!pretrained.key_prefix.empty()) file.tensors = without_prefix(file.tensors, pretrained.key_prefix);
  const std::shared_ptr<KeyMap> map = pretrained.key_map ? pretrained.key_map.create() : nullptr;
  const NamedTensors in_file = file.tensors;
  if (map) file.tensors = map_keys(file.tensors, *map, pretrained.key_map.class_path());
  const LoadReport report =
      load_module_state(*run.model, file.tensors,
                        {.strict = false, .key_prefixes = {}, .convert_formats = true, .ignore = pretrained.ignore});
  if (!report.differences.empty() && (pretrained.strict || report.loaded.empty())) {
    constexpr size_t kFirstDifferences = 5;  // with a key map they are others
    const std::string map_hint = key_map_hint(pretrained);
    throw CheckpointError(
        cat("[trainer.pretrained] ", shown_path, " does not fit the model",
            map_hint.empty() ? prefix_hint(*run.model, in_file, map.get(), pretrained.key_prefix) : map_hint, ":\n",
            map_hint.empty() ? report.differences : first_lines(report.differences, kFirstDifferences),
            options_hint(run, map.get()),
            "\nGive the model the options that the weights were created with; name the key map of the program that "
            "wrote them (pretrained.key_map); list weights that shall keep their initial values in pretrained.ignore",
            pretrained.strict ? ", or load what fits with pretrained.strict: false." : "."));
  }
  if (map) check_key_map(pretrained, in_file, *map);
  std::string line = cat("pretrained: ", report.loaded.size(), " weights from ", shown_path);
  if (!report.ignored.empty()) line += cat("; ignored: ", join_some({report.ignored.begin(), report.ignored.end()}, 5));
  if (!pretrained.from_config.empty()) line += cat("; options from config.json: ", join(pretrained.from_config));
  if (!report.converted.empty()) line += cat("; of another dtype: ", report.converted.size());
  if (!run.components.is_trial) run.print(line);
  if (!report.differences.empty())
    log::warn("trainer.pretrained_left_out", cat("from ", shown_path, ", ", report.loaded.size(),
                                                 " weights were loaded; the rest do not fit:\n", report.differences));
}

}  // namespace fulgur::detail
