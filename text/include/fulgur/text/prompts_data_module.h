#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"
#include "fulgur/text/tokenizer.h"

namespace fulgur {

/// Beginnings of texts, for `trainer predict` with a model that continues them: the lines of a text file, or the texts
/// of a file of JSON lines. Batches have `tokens` (N, L) int64, `mask` (N, L) bool, which is true for tokens and false
/// for the padding after them, and `index` (N) int64, the number of the sample. The only stage with data is predict.
///
/// Each prompt has `samples_per_prompt` samples with different indices, one after the other, so that a model that draws
/// its tokens by index gives different texts. If the run loads a checkpoint whose data had a tokenizer, this one must
/// be the same. Without `tokenizer`, the prompts have the characters or bytes of the vocabulary of the checkpoint,
/// whose data was a TextDataModule's. Exported value: `vocab_size`.
///
/// Lines of predictions.jsonl get `prompt`, as in the file, and, if the model returns `generated`, `text`: the prompt
/// with its continuation.
class FULGUR_API PromptsDataModule : public DataModule {
 public:
  struct Options {
    std::filesystem::path path = {};
    std::optional<std::filesystem::path> tokenizer = {};
    std::string text_field = "text";
    int64_t samples_per_prompt = 1;
    bool special_tokens = true;
    int64_t batch_size = 16;
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError if path or tokenizer is empty, or for options out of range.
  explicit PromptsDataModule(const Options& options);
  ~PromptsDataModule() override;

  /// Throws a DataError for a file that cannot be read, is not UTF-8 or has no prompt, with file and line; a
  /// CheckpointError for another tokenizer than the checkpoint's; a ConfigError if there is neither a tokenizer nor a
  /// checkpoint with a vocabulary.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  static constexpr const char* kExports = "vocab_size";
  StateTree exported_values() const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  PredictionTexts prediction_texts(const PredictedRow& row) const override;

  /// Available after setup; null without a tokenizer.
  std::shared_ptr<const Tokenizer> tokenizer() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
