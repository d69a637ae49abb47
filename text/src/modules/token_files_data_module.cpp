#include "fulgur/text/token_files_data_module.h"

#include <cmath>
#include <utility>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/text/token_files.h"
#include "modules/checkpoint_tokenizer.h"
#include "modules/option_limits.h"
#include "modules/token_windows.h"

namespace fulgur {

struct TokenFilesDataModule::Impl {
  Options options;
  std::vector<std::shared_ptr<const TokenFiles>> files;  // empty before setup
  detail::CheckpointTokenizer checkpoint{"text.TokenFilesDataModule"};

  void open() {
    std::vector<std::shared_ptr<const TokenFiles>> opened;
    for (const std::filesystem::path& path : options.paths) {
      const auto one = std::make_shared<const TokenFiles>(path);
      if (options.verify) one->check_checksums();
      if (options.verify || !options.cross_documents) one->check_documents();
      if (!opened.empty() && opened[0]->info().tokenizer != one->info().tokenizer)
        throw DataError(cat("[text.TokenFilesDataModule] all folders must have the same tokenizer; '",
                            escape_controls(opened[0]->folder().string()), "' has ", opened[0]->info().tokenizer,
                            ", and '", escape_controls(path.string()), "' has ", one->info().tokenizer,
                            ". Tokenize both with the same tokenizer."));
      opened.push_back(one);
    }
    files = std::move(opened);
    try {
      for (size_t i = 0; i < files.size(); ++i) check_length(i);
      checkpoint.set_own(files[0]->info().tokenizer, files[0]->folder());
    } catch (...) {
      files.clear();
      throw;
    }
  }

  detail::TokenSpan span(size_t i, bool training) const {
    const TokenFilesInfo& info = files[i]->info();
    return {files[i], training ? 0 : info.train_tokens, training ? info.train_tokens : info.tokens};
  }

  // A folder that is drawn must have a window.
  void check_length(size_t i) const {
    const bool is_drawn = options.windows == Windows::random || (!options.weights.empty() && options.weights[i] > 0);
    const int64_t needed = options.windows == Windows::random ? options.block_size + 1 : 2;
    if (is_drawn && files[i]->info().train_tokens < needed)
      throw DataError(cat("[text.TokenFilesDataModule] the training part of each folder must have a window, ", needed,
                          " tokens; that of '", escape_controls(files[i]->folder().string()), "' has ",
                          files[i]->info().train_tokens, ". Use a smaller block_size or more text."));
  }
};

void TokenFilesDataModule::Options::fields(Fields& f) {
  f(paths, "paths", "Folders that `trainer tokenize` wrote.").required().min_items(1);
  f(weights, "weights",
    "How often training windows come from each folder, one number per folder; empty: in proportion to their windows.")
      .at_least(0);
  f(block_size, "block_size", "Tokens in a window; link the model's option to it.").range(1, detail::kMostTextSamples);
  f(windows, "windows",
    "Training windows; random: they start anywhere; packed: they lie side by side and cover the tokens once per "
    "epoch.");
  f(cross_documents, "cross_documents",
    "false: the target at the end of a document, which is the first token of the next one, is ignored (-100).");
  f(samples_per_epoch, "samples_per_epoch",
    "Windows drawn in an epoch, for random windows or weights; auto: as many as lie side by side in all folders.")
      .range(1, detail::kMostTextSamples);
  f(verify, "verify", "Compares the files with their checksums at the start, which reads them.");
  f(batch_size, "batch_size", "Windows in a training batch.").range(1, detail::kMostTextSamples);
  f(eval_batch_size, "eval_batch_size", "Windows in a batch of validation; auto: batch_size.")
      .range(1, detail::kMostTextSamples);
  loading.fields(f);
}

TokenFilesDataModule::TokenFilesDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  if (options.paths.empty())
    throw ConfigError(
        "[text.TokenFilesDataModule] paths must name a folder of `trainer tokenize`; it is empty. Set "
        "data.init_args.paths.");
  double sum = 0;
  for (const double weight : options.weights) {
    if (!std::isfinite(weight) || weight < 0)
      throw ConfigError(
          cat("[text.TokenFilesDataModule] weights must be finite and at least 0; one of them is ", weight, "."));
    sum += weight;
  }
  if (!options.weights.empty() && options.weights.size() != options.paths.size())
    throw ConfigError(cat("[text.TokenFilesDataModule] weights must have a number for each of the ",
                          counted(static_cast<int64_t>(options.paths.size()), "folder"), "; it has ",
                          options.weights.size(), "."));
  if (!options.weights.empty() && !(sum > 0 && std::isfinite(sum)))
    throw ConfigError("[text.TokenFilesDataModule] the sum of weights must be above 0 and finite; it is not.");
  if (options.windows == Windows::packed && options.weights.empty() && options.samples_per_epoch.value)
    throw ConfigError(
        "[text.TokenFilesDataModule] samples_per_epoch is for windows that are drawn; windows is packed without "
        "weights, "
        "so each window occurs once. Set windows to random, or give weights.");
  impl_->options = options;
}

TokenFilesDataModule::~TokenFilesDataModule() = default;

void TokenFilesDataModule::setup(TrainerFn) {
  if (impl_->files.empty()) impl_->open();
}

std::vector<std::shared_ptr<Loader>> TokenFilesDataModule::loaders(RunningStage stage) {
  const Options& options = impl_->options;
  const bool training = stage == RunningStage::train;
  if (!training && stage != RunningStage::validate) return {};
  std::vector<detail::TokenSpan> spans;
  int64_t side_by_side = 0;
  for (size_t i = 0; i < impl_->files.size(); ++i) {
    spans.push_back(impl_->span(i, training));
    side_by_side += spans.back().packed_windows(options.block_size);
  }
  if (side_by_side == 0) return {};
  detail::TokenWindows::How windows{.block = options.block_size, .cross_documents = options.cross_documents};
  DataLoaderOptions how;
  if (training && (options.windows == Windows::random || !options.weights.empty())) {
    windows.random = options.windows == Windows::random;
    windows.weights = options.weights;
    windows.draws = options.samples_per_epoch.value.value_or(side_by_side);
  } else {
    how.shuffle = training;
  }
  how.batch_size = training ? options.batch_size : options.eval_batch_size.value.value_or(options.batch_size);
  how.name = training ? std::string(name_of(stage)) : "validation";
  options.loading.apply(how);
  auto dataset = std::make_shared<detail::TokenWindows>(std::move(spans), std::move(windows));
  return {std::make_shared<DataLoader>(std::move(dataset), std::move(how))};
}

StateTree TokenFilesDataModule::exported_values() const {
  const int64_t vocab_size = impl_->files.empty() ? 0 : impl_->files[0]->info().vocab_size;
  return StateTree::map({{"vocab_size", vocab_size}, {"block_size", impl_->options.block_size}});
}

StateTree TokenFilesDataModule::state() const {
  return StateTree::map({{"tokenizer", impl_->checkpoint.fingerprint()}});
}

void TokenFilesDataModule::load_state(const StateTree& state) {
  if (state.contains("tokenizer")) impl_->checkpoint.load(state.at("tokenizer").as_string());
}

std::shared_ptr<const Tokenizer> TokenFilesDataModule::tokenizer() const {
  if (impl_->files.empty())
    throw Error("[text.TokenFilesDataModule] the tokenizer is available after setup, which has not run.");
  return impl_->files[0]->tokenizer();
}

[[maybe_unused]] static const bool registered_token_files_data_module = Registry<DataModule>::add<TokenFilesDataModule>(
    "TokenFilesDataModule", "Tokens that `trainer tokenize` wrote, in windows for language models.");

}  // namespace fulgur
