#include "fulgur/text/prompts_data_module.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "files/prompt_lines.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/sample_dataset.h"
#include "fulgur/data/text_vocabulary.h"
#include "modules/checkpoint_tokenizer.h"
#include "modules/option_limits.h"
#include "modules/padded_samples.h"

namespace fulgur {
namespace {

class TokenizedPrompts final : public SampleDataset {
 public:
  TokenizedPrompts(std::vector<Tensor> prompts, int64_t repeats) : prompts_(std::move(prompts)), repeats_(repeats) {}
  int64_t size() const override { return static_cast<int64_t>(prompts_.size()) * repeats_; }
  Sample get(int64_t index, const SampleContext&) const override {
    return {{"tokens", prompts_.at(static_cast<size_t>(index / repeats_))}, {"index", index}};
  }

 private:
  std::vector<Tensor> prompts_;
  int64_t repeats_;
};

}  // namespace

struct PromptsDataModule::Impl {
  Options options;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<TextVocabulary> vocabulary;  // of the checkpoint
  std::vector<Tensor> prompts;               // the tokens of each
  std::vector<std::string> texts;
  detail::CheckpointTokenizer checkpoint{"text.PromptsDataModule"};

  // Whether the words of the model are those of a tokenizer or of a vocabulary, and which.
  void check_source() const {
    if (options.tokenizer && vocabulary)
      throw ConfigError(cat("[text.PromptsDataModule] tokenizer must be null for a checkpoint whose data had the ",
                            vocabulary->is_bytes() ? "bytes" : "characters", " of a text as tokens; it is '",
                            escape_controls(options.tokenizer->string()), "'. Remove data.init_args.tokenizer."));
    if (!options.tokenizer && !vocabulary)
      throw ConfigError(
          "[text.PromptsDataModule] tokenizer must name a tokenizer, unless the run loads a checkpoint of a model of "
          "characters or bytes (TextDataModule), whose vocabulary is used; it is null. Set data.init_args.tokenizer to "
          "the tokenizer that the model was trained with (data.tokenizer of the run's config.yaml); only a model of "
          "characters or bytes needs none, and takes them from the checkpoint (--ckpt_path).");
  }

  Tensor encoded(const detail::PromptLine& prompt, const Tokenizer* with) const {
    const auto place = [&] { return cat("'", escape_controls(options.path.string()), "', line ", prompt.line); };
    if (with == nullptr) {
      try {
        return vocabulary->encode(prompt.text).to(at::kLong);
      } catch (const DataError& error) {
        throw DataError(
            cat("[text.PromptsDataModule] a prompt must have only characters of the checkpoint's vocabulary; that of ",
                place(), " has others. ", error.what()));
      }
    }
    std::vector<int32_t> ids = with->encode(prompt.text);
    if (options.special_tokens) ids = with->with_special_tokens(std::move(ids));
    if (ids.empty())
      throw DataError(cat("[text.PromptsDataModule] a prompt must have a token; that of ", place(), " has none."));
    const Tensor tokens = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
    std::ranges::copy(ids, tokens.mutable_data_ptr<int64_t>());
    return tokens;
  }

  void open() {
    check_source();
    auto read = options.tokenizer ? read_tokenizer(*options.tokenizer) : nullptr;
    std::vector<Tensor> made;
    std::vector<std::string> lines;
    for (const detail::PromptLine& prompt : detail::read_prompt_lines(options.path, options.text_field)) {
      made.push_back(encoded(prompt, read.get()));
      lines.push_back(prompt.text);
    }
    if (read) checkpoint.set_own(read->fingerprint(), *options.tokenizer);
    tokenizer = std::move(read);
    prompts = std::move(made);
    texts = std::move(lines);
  }

  // Ids without a token are left out: -1 follows a stop token, and a model may have more rows than the tokenizer.
  std::string decoded(const Tensor& ids) const {
    std::vector<int32_t> known;
    const int64_t* const data = ids.const_data_ptr<int64_t>();
    const int64_t size = tokenizer ? tokenizer->vocab_size() : vocabulary->size();
    for (int64_t i = 0; i < ids.numel(); ++i)
      if (data[i] >= 0 && data[i] < size) known.push_back(static_cast<int32_t>(data[i]));
    if (!tokenizer) return vocabulary->decode(at::tensor(known, at::kInt));
    try {
      return tokenizer->decode(known);
    } catch (const DataError&) {
      return {};  // an id inside the vocabulary that no token has
    }
  }
};

void PromptsDataModule::Options::fields(Fields& f) {
  f(path, "path", "The prompts: the lines of a text file, or the texts of a .jsonl file.").required();
  f(tokenizer, "tokenizer",
    "A tokenizer.json, a folder with one, or GPT-2's or BERT's vocabulary; null: the characters or bytes of the "
    "checkpoint's vocabulary.");
  f(text_field, "text_field", "Field of a .jsonl file that has the text.");
  f(samples_per_prompt, "samples_per_prompt", "Texts to make from each prompt.").range(1, detail::kMostTextSamples);
  f(special_tokens, "special_tokens", "Whether prompts get the tokens that the tokenizer adds, such as a first one.");
  f(batch_size, "batch_size", "Prompts in a batch.").range(1, detail::kMostTextSamples);
  loading.fields(f);
}

PromptsDataModule::PromptsDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  const auto refuse = [](const char* name) {
    throw ConfigError(cat("[text.PromptsDataModule] ", name, " must not be empty. Set data.init_args.", name, "."));
  };
  if (options.path.empty()) refuse("path");
  if (options.tokenizer && options.tokenizer->empty()) refuse("tokenizer");
  impl_->options = detail::checked_options(options, "text.PromptsDataModule");
}

PromptsDataModule::~PromptsDataModule() = default;

void PromptsDataModule::setup(TrainerFn) {
  if (impl_->prompts.empty()) impl_->open();
}

std::vector<std::shared_ptr<Loader>> PromptsDataModule::loaders(RunningStage stage) {
  if (stage != RunningStage::predict) return {};
  DataLoaderOptions how;
  how.shuffle = false;
  how.batch_size = impl_->options.batch_size;
  how.name = std::string(name_of(stage));
  how.collate = [](const Batch& samples) { return detail::padded_samples(samples, {"index"}, 0, 0); };
  impl_->options.loading.apply(how);
  auto prompts = std::make_shared<TokenizedPrompts>(impl_->prompts, impl_->options.samples_per_prompt);
  return {std::make_shared<DataLoader>(std::move(prompts), std::move(how))};
}

StateTree PromptsDataModule::exported_values() const {
  int64_t size = 0;
  if (impl_->tokenizer)
    size = impl_->tokenizer->vocab_size();
  else if (impl_->vocabulary)
    size = impl_->vocabulary->size();
  return StateTree::map({{"vocab_size", size}});
}

PredictionTexts PromptsDataModule::prediction_texts(const PredictedRow& row) const {
  // Lines are not in the order of the samples if each rank reads all of them.
  int64_t sample = row.row;
  if (row.values.contains("index") && row.values["index"].scalar_type() == at::kLong &&
      row.values["index"].numel() == 1)
    sample = *row.values["index"].const_data_ptr<int64_t>();
  const auto number = static_cast<size_t>(sample / impl_->options.samples_per_prompt);
  if (sample < 0 || number >= impl_->prompts.size()) return {};
  PredictionTexts texts = {{"prompt", impl_->texts[number]}};
  if (!row.values.contains("generated") || row.values["generated"].scalar_type() != at::kLong) return texts;
  texts.emplace_back("text", impl_->decoded(at::cat({impl_->prompts[number], row.values["generated"].reshape(-1)})));
  return texts;
}

StateTree PromptsDataModule::state() const {
  if (impl_->vocabulary) return StateTree::map({{"vocabulary", impl_->vocabulary->characters()}});
  return StateTree::map({{"tokenizer", impl_->checkpoint.fingerprint()}});
}

void PromptsDataModule::load_state(const StateTree& state) {
  if (state.contains("vocabulary")) {
    const std::string& characters = state.at("vocabulary").as_string();
    impl_->vocabulary = characters.empty() ? TextVocabulary::bytes() : TextVocabulary::characters_of(characters);
    return impl_->check_source();
  }
  if (state.contains("tokenizer")) impl_->checkpoint.load(state.at("tokenizer").as_string());
}

std::shared_ptr<const Tokenizer> PromptsDataModule::tokenizer() const { return impl_->tokenizer; }

[[maybe_unused]] static const bool registered_prompts_data_module = Registry<DataModule>::add<PromptsDataModule>(
    "PromptsDataModule", "Beginnings of texts, one per line, which a model continues in trainer predict.");

}  // namespace fulgur
