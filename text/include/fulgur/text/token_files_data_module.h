#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <vector>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"
#include "fulgur/text/tokenizer.h"

namespace fulgur {

/// Folders of tokens that `trainer tokenize` wrote, mapped into memory. A sample is a window of block_size tokens and
/// their successors: batches have `input` and `target`, both (N, block_size) int64, target shifted by one token. Every
/// window is a function of seed, epoch and index.
///
/// `random` windows start anywhere in the training part. `packed` windows lie side by side and cover it, so each token
/// is read once per epoch; the last window of a part is filled up with input 0 and target -100. If `cross_documents` is
/// false, the target after the last token of a document, which belongs to the next document, is -100. -100 is ignored
/// by `cross_entropy`.
///
/// Of several folders with `weights`, each training window is drawn: first the folder, by weight, then a window of it,
/// with replacement. Validation windows are packed, those of all folders one after the other.
///
/// Exported values: `vocab_size`, `block_size`. The fingerprint of the tokenizer is saved in the checkpoint.
class FULGUR_API TokenFilesDataModule : public DataModule {
 public:
  enum class Windows { random, packed };
  friend constexpr auto enum_names(Windows) {
    return std::to_array<EnumName<Windows>>({{Windows::random, "random"}, {Windows::packed, "packed"}});
  }
  struct Options {
    std::vector<std::filesystem::path> paths = {};
    std::vector<double> weights = {};
    int64_t block_size = 128;
    Windows windows = Windows::random;
    bool cross_documents = true;
    Auto<int64_t> samples_per_epoch = {};
    bool verify = false;
    int64_t batch_size = 64;
    Auto<int64_t> eval_batch_size = {};
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other.
  explicit TokenFilesDataModule(const Options& options);
  ~TokenFilesDataModule() override;

  /// Throws a DataError for a folder that is damaged, for folders with different tokenizers, and for a training part
  /// that is too short for a window; a CheckpointError if the checkpoint's tokenizer is another one.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  static constexpr const char* kExports = "vocab_size, block_size";
  StateTree exported_values() const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

  /// The tokenizer of the folders, for texts of a model. Available after setup.
  std::shared_ptr<const Tokenizer> tokenizer() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
