#pragma once

#include <filesystem>
#include <memory>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"
#include "fulgur/data/text_vocabulary.h"

namespace fulgur {

/// A plain text file for language models. The text is split into a training part, then a validation part, then one for
/// test and predict. A sample is a window of block_size tokens and their successors: batches have `input` and `target`,
/// both (N, block_size) int64, target shifted by one token. Tokens are in memory as one byte each (four if the
/// vocabulary has more than 256); windows are cut when they are read.
///
/// Training windows start anywhere (`random`: a pure function of seed, epoch and index), samples_per_epoch of them per
/// epoch, or every `stride` tokens (`strided`, in a new order each epoch). Windows of validation and test do not
/// overlap; the remainder of a part is not used.
///
/// Exported values: `vocab_size`, `block_size`, `vocabulary` (the characters; empty for bytes). The vocabulary is that
/// of the whole file and is saved in the checkpoint; a vocabulary that is loaded from a checkpoint, before or after
/// `setup`, is used instead.
class FULGUR_API TextDataModule : public DataModule {
 public:
  enum class Tokens { characters, bytes };
  friend constexpr auto enum_names(Tokens) {
    return std::to_array<EnumName<Tokens>>({{Tokens::characters, "char"}, {Tokens::bytes, "byte"}});
  }
  enum class Windows { random, strided };
  friend constexpr auto enum_names(Windows) {
    return std::to_array<EnumName<Windows>>({{Windows::random, "random"}, {Windows::strided, "strided"}});
  }
  struct Options {
    std::filesystem::path path = {};
    Tokens tokens = Tokens::characters;
    int64_t block_size = 128;
    Windows windows = Windows::random;
    Auto<int64_t> stride = {};
    Auto<int64_t> samples_per_epoch = {};
    double val_fraction = 0.1;
    double test_fraction = 0.0;
    int64_t batch_size = 64;
    Auto<int64_t> eval_batch_size = {};
    LoadingOptions loading = {};
    void fields(Fields& f);
  };
  /// Throws a ConfigError for options that contradict each other.
  explicit TextDataModule(const Options& options);
  ~TextDataModule() override;

  /// Throws a DataError for a file that cannot be read, is empty, is not UTF-8 (`tokens: char`), or is too short for a
  /// window in each part, and a CheckpointError if a vocabulary was loaded that lacks characters of the file.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  static constexpr const char* kExports = "vocab_size, block_size, vocabulary";
  StateTree exported_values() const override;
  StateTree state() const override;
  /// Throws a CheckpointError if the vocabulary lacks characters of the file, or is of the other kind.
  void load_state(const StateTree& state) override;

  /// Available after setup.
  const TextVocabulary& vocabulary() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
