#include "fulgur/text/prompts_data_module.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "files/prompt_lines.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/sample_dataset.h"
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
  std::vector<Tensor> prompts;  // the tokens of each
  std::string loaded_tokenizer;

  void check_tokenizer() const {
    if (!tokenizer || loaded_tokenizer.empty() || tokenizer->fingerprint() == loaded_tokenizer) return;
    throw CheckpointError(cat("[text.PromptsDataModule] the tokenizer must be that of the checkpoint, ",
                              loaded_tokenizer, "; '", escape_controls(options.tokenizer.string()), "' is ",
                              tokenizer->fingerprint(), "."));
  }

  void open() {
    auto read = read_tokenizer(options.tokenizer);
    std::vector<Tensor> made;
    for (const detail::PromptLine& prompt : detail::read_prompt_lines(options.path, options.text_field)) {
      std::vector<int32_t> ids = read->encode(prompt.text);
      if (options.special_tokens) ids = read->with_special_tokens(std::move(ids));
      if (ids.empty())
        throw DataError(cat("[text.PromptsDataModule] a prompt must have a token; that of '",
                            escape_controls(options.path.string()), "', line ", prompt.line, " has none."));
      made.push_back(at::empty({static_cast<int64_t>(ids.size())}, at::kLong));
      std::ranges::copy(ids, made.back().mutable_data_ptr<int64_t>());
    }
    tokenizer = std::move(read);
    prompts = std::move(made);
  }
};

void PromptsDataModule::Options::fields(Fields& f) {
  f(path, "path", "The prompts: the lines of a text file, or the texts of a .jsonl file.").required();
  f(tokenizer, "tokenizer", "A tokenizer.json, a folder with one, or GPT-2's or BERT's vocabulary.").required();
  f(text_field, "text_field", "Field of a .jsonl file that has the text.");
  f(samples_per_prompt, "samples_per_prompt", "Texts to make from each prompt.").range(1, detail::kMostTextSamples);
  f(special_tokens, "special_tokens", "Whether prompts get the tokens that the tokenizer adds, such as a first one.");
  f(batch_size, "batch_size", "Prompts in a batch.").range(1, detail::kMostTextSamples);
  loading.fields(f);
}

PromptsDataModule::PromptsDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  for (const auto& [value, name] : {std::pair(&options.path, "path"), std::pair(&options.tokenizer, "tokenizer")})
    if (value->empty())
      throw ConfigError(cat("[text.PromptsDataModule] ", name, " must not be empty. Set data.init_args.", name, "."));
  impl_->options = detail::checked_options(options, "text.PromptsDataModule");
}

PromptsDataModule::~PromptsDataModule() = default;

void PromptsDataModule::setup(TrainerFn) {
  if (!impl_->tokenizer) impl_->open();
  impl_->check_tokenizer();
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
  return StateTree::map({{"vocab_size", impl_->tokenizer ? impl_->tokenizer->vocab_size() : int64_t{0}}});
}

StateTree PromptsDataModule::state() const {
  return StateTree::map({{"tokenizer", impl_->tokenizer ? impl_->tokenizer->fingerprint() : impl_->loaded_tokenizer}});
}

void PromptsDataModule::load_state(const StateTree& state) {
  if (!state.contains("tokenizer")) return;
  std::string before = std::exchange(impl_->loaded_tokenizer, state.at("tokenizer").as_string());
  try {
    impl_->check_tokenizer();
  } catch (...) {
    impl_->loaded_tokenizer = std::move(before);
    throw;
  }
}

std::shared_ptr<const Tokenizer> PromptsDataModule::tokenizer() const { return impl_->tokenizer; }

[[maybe_unused]] static const bool registered_prompts_data_module = Registry<DataModule>::add<PromptsDataModule>(
    "PromptsDataModule", "Beginnings of texts, one per line, which a model continues in trainer predict.");

}  // namespace fulgur
