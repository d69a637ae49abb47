#include "fulgur/checkpoint/map_keys.h"
#include "fulgur/checkpoint/module_state.h"
#include "fulgur/checkpoint/weights_file.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "setup/setup_steps.h"

namespace fulgur::detail {

void load_pretrained(RunState& run) {
  const PretrainedWeights& pretrained = run.components.pretrained;
  if (!pretrained.path || run.keeps_weights) return;
  const std::string shown_path = escape_controls(pretrained.path->string());
  WeightsFile file = read_weights_file(*pretrained.path);
  if (pretrained.key_map)
    file.tensors = map_keys(file.tensors, *pretrained.key_map.create(), pretrained.key_map.class_path());
  const LoadReport report =
      load_module_state(*run.model, file.tensors,
                        {.strict = false, .key_prefixes = {}, .convert_formats = true, .ignore = pretrained.ignore});
  if (!report.differences.empty() && (pretrained.strict || report.loaded.empty()))
    throw CheckpointError(
        cat("[trainer.pretrained] ", shown_path, " does not fit the model:\n", report.differences,
            "\nGive the model the options that the weights were created with; name the key map of the program that "
            "wrote them (pretrained.key_map); list weights that shall keep their initial values in pretrained.ignore",
            pretrained.strict ? ", or load what fits with pretrained.strict: false." : "."));
  std::string line = cat("pretrained: ", report.loaded.size(), " weights from ", shown_path);
  if (!report.ignored.empty()) line += cat("; ignored: ", join_some({report.ignored.begin(), report.ignored.end()}, 5));
  if (!report.converted.empty()) line += cat("; of another dtype: ", report.converted.size());
  if (!run.components.is_trial) run.print(line);
  if (!report.differences.empty())
    log::warn("trainer.pretrained_left_out", cat("from ", shown_path, ", ", report.loaded.size(),
                                                 " weights were loaded; the rest do not fit:\n", report.differences));
}

}  // namespace fulgur::detail
