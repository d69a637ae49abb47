#include "fulgur/data/text_data_module.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "loading/option_bounds.h"

namespace fulgur {
namespace {

std::string read_all(const std::filesystem::path& path) {
  // Whether a folder can be opened depends on the file system.
  std::error_code none;
  const bool is_folder = std::filesystem::is_directory(path, none);
  errno = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || is_folder)
    throw DataError(
        cat("[data.TextDataModule] path must name a text file that can be read; '", escape_controls(path.string()),
            "' cannot be opened: ", is_folder ? "it is a folder" : std::strerror(errno), ". Set data.init_args.path."));
  std::string text(static_cast<size_t>(file.tellg()), '\0');
  file.seekg(0);
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size())))
    throw DataError(cat("[data.TextDataModule] the whole file must be readable; reading '",
                        escape_controls(path.string()), "' failed: ", std::strerror(errno), "."));
  if (text.empty())
    throw DataError(
        cat("[data.TextDataModule] the text must not be empty; file '", escape_controls(path.string()), "' is empty."));
  return text;
}

Tensor encode_with_loaded(const TextVocabulary& loaded, const std::string& text) {
  try {
    return loaded.encode(text);
  } catch (const DataError& error) {
    throw CheckpointError(
        cat("[data.TextDataModule] the text must not have characters missing from the checkpoint's vocabulary. ",
            error.what()));
  }
}

// Windows over tokens [begin, end) of a text: `input` and `target`, int64.
class TextWindows final : public Dataset {
 public:
  struct Cut {
    int64_t begin, end;  // with at least block + 1 tokens between them
    int64_t block;
    int64_t stride = 1;  // between windows
    int64_t random = 0;  // above 0: the number of windows that start anywhere, used instead of `stride`
  };
  // `tokens` (count) uint8 or int32, shared.
  TextWindows(Tensor tokens, const Cut& cut) : tokens_(std::move(tokens)), cut_(cut) {}

  int64_t size() const override {
    return cut_.random > 0 ? cut_.random : (cut_.end - cut_.begin - 1 - cut_.block) / cut_.stride + 1;
  }

  Batch prototype() const override {
    return Batch({Batch::Entry{"input", at::zeros({1, cut_.block}, at::kLong)},
                  Batch::Entry{"target", at::zeros({1, cut_.block}, at::kLong)}});
  }

  void read(c10::ArrayRef<int64_t> indices, int64_t first_row, Batch& out,
            const SampleContext& context) const override {
    const auto fill = [&](const auto* tokens) {
      for (size_t i = 0; i < indices.size(); ++i) {
        if (indices[i] < 0 || indices[i] >= size())
          throw DataError(cat("[data.TextDataModule] the index must be in [0, ", size(), "); got ", indices[i], "."));
        const auto* from = tokens + begin_of(indices[i], context);
        for (const size_t ahead : {size_t{0}, size_t{1}}) {
          auto* to =
              static_cast<int64_t*>(out[ahead].select(0, first_row + static_cast<int64_t>(i)).mutable_data_ptr());
          std::copy(from + ahead, from + ahead + cut_.block, to);
        }
      }
    };
    if (tokens_.scalar_type() == at::kByte)
      fill(tokens_.const_data_ptr<uint8_t>());
    else
      fill(tokens_.const_data_ptr<int32_t>());
  }

 private:
  int64_t begin_of(int64_t index, const SampleContext& context) const {
    if (cut_.random == 0) return cut_.begin + index * cut_.stride;
    return cut_.begin +
           static_cast<int64_t>(context.random(index).below(static_cast<uint64_t>(cut_.end - cut_.begin - cut_.block)));
  }

  Tensor tokens_;
  Cut cut_;
};

}  // namespace

struct TextDataModule::Impl {
  Options options;
  TextVocabulary vocabulary = TextVocabulary::bytes();
  bool vocabulary_is_loaded = false;  ///< from a checkpoint
  Tensor tokens;
  std::array<int64_t, 4> cuts{};  ///< positions at which training, validation and test begin, and the end

  bool by_bytes() const { return options.tokens == Tokens::bytes; }

  void read() {
    const std::string text = read_all(options.path);
    if (!by_bytes() && !vocabulary_is_loaded) vocabulary = TextVocabulary::characters_of(text);
    tokens = vocabulary_is_loaded ? encode_with_loaded(vocabulary, text) : vocabulary.encode(text);
    const int64_t count = tokens.numel();
    const auto part = [&](double fraction) {
      return static_cast<int64_t>(std::llround(fraction * static_cast<double>(count)));
    };
    const int64_t test = part(options.test_fraction), val = part(options.val_fraction);
    cuts = {0, count - val - test, count - test, count};
    constexpr std::array kParts{"training", "validation", "test"};
    const std::array<bool, 3> wanted{true, options.val_fraction > 0, options.test_fraction > 0};
    for (size_t i = 0; i < 3; ++i)
      if (wanted[i] && cuts[i + 1] - cuts[i] < options.block_size + 1)
        throw DataError(
            cat("[data.TextDataModule] each part must have a window, block_size + 1 = ", options.block_size + 1,
                " tokens; the part for ", kParts[i], " has ", cuts[i + 1] - cuts[i], " of the file's ", count,
                " tokens. Use a longer text, a smaller block_size, or another val_fraction or test_fraction."));
  }
};

void TextDataModule::Options::fields(Fields& f) {
  f(path, "path", "A plain text file.").required();
  f(tokens, "tokens", "Kind of token; char: a Unicode character; byte: a byte.");
  f(block_size, "block_size", "Tokens in a window; link the model's option to it.").range(1, detail::kMostSamples);
  f(windows, "windows", "Training windows; random: they start anywhere; strided: they start every stride tokens.");
  f(stride, "stride", "Tokens between the starts of strided training windows; auto: block_size.")
      .range(1, detail::kMostSamples);
  f(samples_per_epoch, "samples_per_epoch",
    "Random windows in an epoch; auto: as many as fit side by side in the training part.")
      .range(1, detail::kMostSamples);
  f(val_fraction, "val_fraction", "Fraction of the text, after the training part, for validation; 0: none.")
      .at_least(0)
      .less_than(1);
  f(test_fraction, "test_fraction", "Fraction of the text, at its end, for test and predict; 0: none.")
      .at_least(0)
      .less_than(1);
  f(batch_size, "batch_size", "Windows in a training batch.").range(1, detail::kMostSamples);
  f(eval_batch_size, "eval_batch_size", "Windows in a batch of validation, test and predict; auto: batch_size.")
      .range(1, detail::kMostSamples);
  loading.fields(f);
}

TextDataModule::TextDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  const bool random = options.windows == Windows::random;
  if (options.path.empty())
    throw ConfigError("[data.TextDataModule] path must name a text file; it is empty. Set data.init_args.path.");
  if (options.val_fraction + options.test_fraction >= 1)
    throw ConfigError(
        cat("[data.TextDataModule] val_fraction and test_fraction must leave something to train on; they are ",
            options.val_fraction, " and ", options.test_fraction, "."));
  if (random && options.stride.value)
    throw ConfigError(
        "[data.TextDataModule] stride is for strided windows; windows is random. Set windows to strided.");
  if (!random && options.samples_per_epoch.value)
    throw ConfigError(
        "[data.TextDataModule] samples_per_epoch is for random windows; windows is strided, so each window occurs "
        "once. Set windows to random.");
  detail::checked_options(options, "data.TextDataModule");
}

TextDataModule::~TextDataModule() = default;

void TextDataModule::setup(TrainerFn) {
  if (!impl_->tokens.defined()) impl_->read();
}

std::vector<std::shared_ptr<Loader>> TextDataModule::loaders(RunningStage stage) {
  const Options& options = impl_->options;
  const bool training = stage == RunningStage::train;
  const size_t part = training ? 0 : stage == RunningStage::validate ? 1 : 2;
  TextWindows::Cut cut{impl_->cuts[part], impl_->cuts[part + 1], options.block_size, options.block_size};
  if (cut.begin == cut.end) return {};
  DataLoaderOptions how;
  if (training && options.windows == Windows::random) {
    cut.random = options.samples_per_epoch.value.value_or((cut.end - cut.begin - 1) / options.block_size);
  } else if (training) {
    cut.stride = options.stride.value.value_or(options.block_size);
    how.shuffle = true;
  }
  how.batch_size = training ? options.batch_size : options.eval_batch_size.value.value_or(options.batch_size);
  how.name = stage == RunningStage::validate ? "validation" : std::string(name_of(stage));
  options.loading.apply(how);
  return {std::make_shared<DataLoader>(std::make_shared<TextWindows>(impl_->tokens, cut), std::move(how))};
}

StateTree TextDataModule::exported_values() const {
  return StateTree::map({{"vocab_size", impl_->vocabulary.size()},
                         {"block_size", impl_->options.block_size},
                         {"vocabulary", impl_->vocabulary.characters()}});
}

StateTree TextDataModule::state() const { return StateTree::map({{"vocabulary", impl_->vocabulary.characters()}}); }

void TextDataModule::load_state(const StateTree& state) {
  if (!state.contains("vocabulary")) return;
  const std::string& characters = state.at("vocabulary").as_string();
  if (characters.empty() != impl_->by_bytes())
    throw CheckpointError(cat("[data.TextDataModule] tokens must be the same as in the checkpoint (",
                              characters.empty() ? "byte" : "char", "); got ", enum_text(impl_->options.tokens), "."));
  if (characters == impl_->vocabulary.characters()) return;
  TextVocabulary loaded = TextVocabulary::characters_of(characters);
  if (impl_->tokens.defined()) {
    const Tensor numbers = encode_with_loaded(loaded, impl_->vocabulary.characters());
    // In place: existing loaders read the same tokens.
    const Tensor again = numbers.index_select(0, impl_->tokens.to(at::kInt));
    if (again.scalar_type() == impl_->tokens.scalar_type())
      impl_->tokens.copy_(again);
    else
      impl_->tokens.set_data(again);
  }
  impl_->vocabulary = std::move(loaded);
  impl_->vocabulary_is_loaded = true;
}

const TextVocabulary& TextDataModule::vocabulary() const { return impl_->vocabulary; }

[[maybe_unused]] static const bool registered_text_data_module = Registry<DataModule>::add<TextDataModule>(
    "TextDataModule", "A plain text file split into windows of characters or bytes, for language models.");

}  // namespace fulgur
