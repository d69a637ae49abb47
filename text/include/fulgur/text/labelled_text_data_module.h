#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"
#include "fulgur/text/tokenizer.h"

namespace fulgur {

/// Texts with labels, for classification: a CSV file with a header, or JSON lines. Batches have `tokens` (N, L) int64,
/// `mask` (N, L) bool, which is true for tokens and false for padding, and `label` (N) int64. A text is tokenized when
/// it is read, with the tokens that the tokenizer's post-processor adds; the text's own tokens are cut to max_length
/// minus those.
///
/// Classes are the different labels of `path`, sorted: by number if all are whole numbers, else by bytes. They and the
/// tokenizer's fingerprint are saved in the checkpoint, whose classes are used instead, so that a class keeps its
/// number. If they are loaded before `setup`, validate, test and predict read only the file of their stage, and `path`
/// only if it has none. Batches of predict also have `index` (N) int64, the number of the text in its file, from 0;
/// those of `predict_path` have no labels. Exported values: `num_classes`, `classes`, `vocab_size`, `max_length`.
class FULGUR_API LabelledTextDataModule : public DataModule {
 public:
  enum class Padding { longest, max_length };
  friend constexpr auto enum_names(Padding) {
    return std::to_array<EnumName<Padding>>({{Padding::longest, "longest"}, {Padding::max_length, "max_length"}});
  }
  struct Options {
    std::filesystem::path path = {};
    std::optional<std::filesystem::path> val_path = {};
    std::optional<std::filesystem::path> test_path = {};
    std::optional<std::filesystem::path> predict_path = {};
    std::filesystem::path tokenizer = {};
    std::string text_field = "text";
    std::string label_field = "label";
    double val_fraction = 0.1;
    double test_fraction = 0;
    int64_t split_seed = 0;
    int64_t max_length = 128;
    Padding padding = Padding::longest;
    Auto<std::string> pad_token = {};
    int64_t batch_size = 32;
    Auto<int64_t> eval_batch_size = {};
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other.
  explicit LabelledTextDataModule(const Options& options);
  ~LabelledTextDataModule() override;

  /// Throws a DataError for a file that cannot be read, with file and row, and for a label of val_path or test_path
  /// that path does not have; a CheckpointError for a label that the checkpoint's classes do not have, or another
  /// tokenizer.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  static constexpr const char* kExports = "num_classes, classes, vocab_size, max_length";
  StateTree exported_values() const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  /// Available after setup.
  const std::vector<std::string>& classes() const;
  std::shared_ptr<const Tokenizer> tokenizer() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
