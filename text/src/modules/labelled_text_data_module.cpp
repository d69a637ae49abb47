#include "fulgur/text/labelled_text_data_module.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/state/split_mix.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/labelled_rows.h"
#include "fulgur/data/sample_dataset.h"
#include "modules/checkpoint_tokenizer.h"
#include "modules/option_limits.h"
#include "modules/padded_samples.h"

namespace fulgur {
namespace {

/// The rows of a file, shared by the datasets of its parts.
struct LabelledFile {
  detail::LabelledRows rows;
  std::vector<int64_t> labels = {};  // classes of the rows
};

class LabelledTexts final : public SampleDataset {
 public:
  LabelledTexts(std::shared_ptr<const LabelledFile> file, std::vector<size_t> chosen,
                std::shared_ptr<const Tokenizer> tokenizer, int64_t max_length, bool with_index)
      : file_(std::move(file)),
        chosen_(std::move(chosen)),
        tokenizer_(std::move(tokenizer)),
        max_length_(max_length),
        with_index_(with_index) {}

  int64_t size() const override { return static_cast<int64_t>(chosen_.size()); }
  Sample get(int64_t index, const SampleContext&) const override {
    const size_t row = chosen_.at(static_cast<size_t>(index));
    std::vector<int32_t> ids = tokenizer_->encode(file_->rows.rows()[row].value);
    const auto most = static_cast<size_t>(max_length_ - tokenizer_->num_special_tokens());
    if (ids.size() > most) ids.resize(most);
    ids = tokenizer_->with_special_tokens(std::move(ids));
    if (ids.empty())
      throw DataError(cat("[text.LabelledTextDataModule] a text must have a token; that of ",
                          file_->rows.place_of(file_->rows.rows()[row]), " has none. Remove the row."));
    Tensor tokens = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
    std::ranges::copy(ids, tokens.mutable_data_ptr<int64_t>());
    Sample sample{{"tokens", std::move(tokens)}};
    if (!file_->labels.empty()) sample.add({"label", file_->labels[row]});
    if (with_index_) sample.add({"index", static_cast<int64_t>(row)});
    return sample;
  }

 private:
  std::shared_ptr<const LabelledFile> file_;
  std::vector<size_t> chosen_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int64_t max_length_;
  bool with_index_;
};

/// `length`: of all batches; 0: that of the longest sample of each.
std::function<Batch(Batch)> padding_to(int64_t length, int64_t pad_id, std::vector<std::string> numbers) {
  return [length, pad_id, numbers = std::move(numbers)](const Batch& samples) {
    return detail::padded_samples(samples, numbers, length, pad_id);
  };
}

}  // namespace

struct LabelledTextDataModule::Impl {
  Options options;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<LabelledFile> train, val, test, predict;  // null: not read, or there is none
  std::vector<std::string> classes;
  std::vector<std::string> loaded_classes;  // of the checkpoint; empty: none
  detail::CheckpointTokenizer checkpoint{"text.LabelledTextDataModule"};
  bool is_open = false;  // the tokenizer is read

  std::shared_ptr<LabelledFile> read(const std::filesystem::path& path, bool with_labels = true) const {
    const std::string kind = path.extension().string();
    if (kind != ".csv" && kind != ".jsonl")
      throw ConfigError(cat("[text.LabelledTextDataModule] a file must be .csv or .jsonl; got '",
                            escape_controls(path.string()), "'."));
    using Rows = detail::LabelledRows;
    return std::make_shared<LabelledFile>(
        LabelledFile{.rows = Rows(path, {.reader = "text.LabelledTextDataModule",
                                         .value_column = options.text_field,
                                         .label_column = options.label_field,
                                         .reads_labels = with_labels,
                                         .format = kind == ".csv" ? Rows::Format::csv : Rows::Format::jsonl})});
  }

  // The classes of a file's rows. Labels that are not in `names` are errors.
  std::vector<int64_t> labels_of(const LabelledFile& file, const std::vector<std::string>& names,
                                 bool from_checkpoint) const {
    return file.rows.labels_in(names, [&](const detail::LabelledRow& row) {
      const std::string message =
          cat("[text.LabelledTextDataModule] each label must be one of the ", names.size(), " classes of ",
              from_checkpoint ? "the checkpoint" : "path", ", ", escape_controls(join_some(names, 10)), "; that of ",
              file.rows.place_of(row), " is '", escape_controls(row.label), "'.");
      if (from_checkpoint) throw CheckpointError(message);
      throw DataError(message);
    });
  }

  // All or nothing.
  void use_classes(std::vector<std::string> names, bool from_checkpoint) {
    std::vector<std::pair<LabelledFile*, std::vector<int64_t>>> made;
    for (const auto* file : {&train, &val, &test})
      if (*file) made.emplace_back(file->get(), labels_of(**file, names, from_checkpoint));
    for (auto& [file, labels] : made) file->labels = std::move(labels);
    classes = std::move(names);
  }

  int64_t pad_id() const {
    if (options.pad_token.value) {
      if (const auto id = tokenizer->id_of(*options.pad_token.value)) return *id;
      throw ConfigError(cat("[text.LabelledTextDataModule] pad_token must be a token of the tokenizer; '",
                            escape_controls(*options.pad_token.value), "' is not one."));
    }
    for (const char* token : {"[PAD]", "<pad>"})
      if (const auto id = tokenizer->id_of(token)) return *id;
    return 0;
  }

  // The classes of a checkpoint replace the training file, so that validate, test and predict need only their own.
  void open(TrainerFn fn) {
    const bool loaded = !loaded_classes.empty(), all = fn == TrainerFn::fit || !loaded;
    const bool predicts = fn == TrainerFn::predict && options.predict_path;
    const bool tests = (fn == TrainerFn::test || fn == TrainerFn::predict) && options.test_path && !predicts;
    const bool validates = fn == TrainerFn::validate && options.val_path;
    if (!is_open) open_tokenizer();
    const std::shared_ptr<LabelledFile> none;
    auto new_train = !train && (all || !(predicts || tests || validates)) ? read(options.path) : none;
    auto new_val = !val && options.val_path && (all || validates) ? read(*options.val_path) : none;
    auto new_test = !test && options.test_path && (all || tests) ? read(*options.test_path) : none;
    if (options.predict_path && !predict && (all || predicts))
      predict = read(*options.predict_path, /*with_labels=*/false);
    const std::vector<std::string> names = loaded ? loaded_classes : train ? classes : new_train->rows.classes();
    for (const auto& file : {new_train, new_val, new_test})
      if (file) file->labels = labels_of(*file, names, loaded);
    if (new_train) train = std::move(new_train);
    if (new_val) val = std::move(new_val);
    if (new_test) test = std::move(new_test);
    classes = names;
  }

  void open_tokenizer() {
    auto read_tokens = read_tokenizer(options.tokenizer);
    if (read_tokens->num_special_tokens() >= options.max_length)
      throw ConfigError(cat("[text.LabelledTextDataModule] max_length must leave a token for the text beside the ",
                            read_tokens->num_special_tokens(), " that the tokenizer adds; it is ", options.max_length,
                            "."));
    tokenizer = std::move(read_tokens);
    pad_id();
    checkpoint.set_own(tokenizer->fingerprint(), options.tokenizer);
    is_open = true;
  }

  // The parts of `path` that the verb uses.
  void check_parts(TrainerFn fn) const {
    if (!train) return;
    const auto [first, second, third] = split();
    const std::string has = counted(static_cast<int64_t>(train->rows.rows().size()), "row");
    if (fn == TrainerFn::fit && first.empty())
      throw DataError(cat("[text.LabelledTextDataModule] a text must be left to train on; path has ", has,
                          ", of which val_fraction takes ", second.size(),
                          third.empty() ? "" : cat(" and test_fraction ", third.size()), "."));
    const auto check = [&](const std::vector<size_t>& part, const char* name, double fraction, const char* use) {
      if (fraction > 0 && part.empty())
        throw DataError(cat("[text.LabelledTextDataModule] each part must have a text; path has ", has, ", of which ",
                            name, " ", fraction, " takes 0. Use more texts, a larger ", name, ", or 0 for no ", use,
                            "."));
    };
    const bool validates = fn == TrainerFn::fit || fn == TrainerFn::validate;
    if (validates && !val) check(second, "val_fraction", options.val_fraction, "validation");
    if (!validates && !test && !(fn == TrainerFn::predict && predict))
      check(third, "test_fraction", options.test_fraction, "test");
  }

  // Rows of `path` for training, validation and test, each in the order of the file: a pure function of split_seed.
  std::array<std::vector<size_t>, 3> split() const {
    std::vector<size_t> order(train->rows.rows().size());
    std::iota(order.begin(), order.end(), size_t{0});
    const double val_fraction = val ? 0 : options.val_fraction;
    if (val_fraction == 0 && options.test_fraction == 0) return {order, {}, {}};
    SplitMix64 random(mix_bits(static_cast<uint64_t>(options.split_seed) + 0x9e3779b97f4a7c15u));
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    const auto count = static_cast<double>(order.size());
    const auto take = [&](double fraction) {
      const auto end = order.begin() + std::min(std::llround(fraction * count), std::ssize(order) + 0LL);
      std::vector<size_t> part(order.begin(), end);
      order.erase(order.begin(), end);
      std::ranges::sort(part);
      return part;
    };
    std::vector<size_t> second = take(val_fraction), third = take(options.test_fraction);
    std::ranges::sort(order);
    return {std::move(order), std::move(second), std::move(third)};
  }
};

void LabelledTextDataModule::Options::fields(Fields& f) {
  f(path, "path", "Training texts: a .csv file with a header, or a .jsonl file.").required();
  f(val_path, "val_path", "Texts for validation; null: a part of path (val_fraction).");
  f(test_path, "test_path", "Texts for test and predict; null: a part of path (test_fraction).");
  f(predict_path, "predict_path", "Texts for predict, whose labels are not read; null: the texts of test.");
  f(tokenizer, "tokenizer", "A tokenizer.json, a folder with one, or GPT-2's or BERT's vocabulary.").required();
  f(text_field, "text_field", "Column or field of the text.");
  f(label_field, "label_field", "Column or field of the label.");
  f(val_fraction, "val_fraction", "Fraction of the texts of path, drawn by split_seed, for validation; 0: none.")
      .at_least(0)
      .less_than(1);
  f(test_fraction, "test_fraction", "Fraction of the texts of path, drawn likewise, for test and predict; 0: none.")
      .at_least(0)
      .less_than(1);
  f(split_seed, "split_seed", "Decides which texts are for validation and test.");
  f(max_length, "max_length", "Tokens of a text at most, with those that the tokenizer adds; the rest is cut off.")
      .range(1, detail::kMostTextSamples);
  f(padding, "padding", "Length of a batch; longest: of its longest text; max_length: always max_length.");
  f(pad_token, "pad_token", "The token of padding; auto: [PAD] or <pad> if there is one, else the token of id 0.");
  f(batch_size, "batch_size", "Texts in a training batch.").range(1, detail::kMostTextSamples);
  f(eval_batch_size, "eval_batch_size", "Texts in a batch of validation, test and predict; auto: batch_size.")
      .range(1, detail::kMostTextSamples);
  loading.fields(f);
}

LabelledTextDataModule::LabelledTextDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  if (options.path.empty())
    throw ConfigError("[text.LabelledTextDataModule] path must name a file; it is empty. Set data.init_args.path.");
  if (options.tokenizer.empty())
    throw ConfigError(
        "[text.LabelledTextDataModule] tokenizer must name a file or a folder; it is empty. Set "
        "data.init_args.tokenizer.");
  if (options.label_field.empty())
    throw ConfigError("[text.LabelledTextDataModule] label_field must name a column or field; it is empty.");
  if (options.max_length < 1)
    throw ConfigError(
        cat("[text.LabelledTextDataModule] max_length must be at least 1; it is ", options.max_length, "."));
  if (options.test_path && options.test_fraction > 0)
    throw ConfigError(
        "[text.LabelledTextDataModule] test_path and test_fraction exclude each other; both are given. Remove one of "
        "them.");
  impl_->options = options;
}

LabelledTextDataModule::~LabelledTextDataModule() = default;

void LabelledTextDataModule::setup(TrainerFn fn) {
  impl_->open(fn);
  impl_->check_parts(fn);
}

std::vector<std::shared_ptr<Loader>> LabelledTextDataModule::loaders(RunningStage stage) {
  const Options& options = impl_->options;
  const bool training = stage == RunningStage::train, validating = stage == RunningStage::validate;
  const bool predicting = stage == RunningStage::predict;
  std::shared_ptr<LabelledFile> file = training                       ? nullptr
                                       : validating                   ? impl_->val
                                       : predicting && impl_->predict ? impl_->predict
                                                                      : impl_->test;
  std::vector<size_t> rows;
  if (file) {
    rows.resize(file->rows.rows().size());
    std::iota(rows.begin(), rows.end(), size_t{0});
  } else if (file = impl_->train; file) {
    rows = impl_->split()[training ? 0 : validating ? 1 : 2];
  }
  if (rows.empty()) return {};
  std::vector<std::string> numbers;
  if (!file->labels.empty()) numbers.emplace_back("label");
  if (predicting) numbers.emplace_back("index");
  DataLoaderOptions how;
  how.shuffle = training;
  how.batch_size = training ? options.batch_size : options.eval_batch_size.value.value_or(options.batch_size);
  how.name = validating ? "validation" : std::string(name_of(stage));
  how.collate =
      padding_to(options.padding == Padding::max_length ? options.max_length : 0, impl_->pad_id(), std::move(numbers));
  options.loading.apply(how);
  auto dataset = std::make_shared<LabelledTexts>(std::move(file), std::move(rows), impl_->tokenizer, options.max_length,
                                                 predicting);
  return {std::make_shared<DataLoader>(std::move(dataset), std::move(how))};
}

StateTree LabelledTextDataModule::exported_values() const {
  StateTree::List classes(impl_->classes.begin(), impl_->classes.end());
  return StateTree::map({{"num_classes", static_cast<int64_t>(impl_->classes.size())},
                         {"classes", std::move(classes)},
                         {"vocab_size", impl_->tokenizer ? impl_->tokenizer->vocab_size() : int64_t{0}},
                         {"max_length", impl_->options.max_length}});
}

StateTree LabelledTextDataModule::state() const {
  const std::vector<std::string>& names = impl_->classes.empty() ? impl_->loaded_classes : impl_->classes;
  return StateTree::map(
      {{"classes", StateTree::List(names.begin(), names.end())}, {"tokenizer", impl_->checkpoint.fingerprint()}});
}

void LabelledTextDataModule::load_state(const StateTree& state) {
  if (!state.contains("classes")) return;
  std::vector<std::string> names;
  for (const StateTree& name : state.at("classes").as_list()) names.push_back(name.as_string());
  detail::CheckpointTokenizer loaded = impl_->checkpoint;
  loaded.load(state.at("tokenizer").as_string());
  if (!impl_->classes.empty()) impl_->use_classes(names, /*from_checkpoint=*/true);
  impl_->checkpoint = std::move(loaded);
  impl_->loaded_classes = std::move(names);
}

const std::vector<std::string>& LabelledTextDataModule::classes() const { return impl_->classes; }
std::shared_ptr<const Tokenizer> LabelledTextDataModule::tokenizer() const { return impl_->tokenizer; }

[[maybe_unused]] static const bool registered_labelled_text_data_module =
    Registry<DataModule>::add<LabelledTextDataModule>("LabelledTextDataModule",
                                                      "Texts with labels from CSV or JSON lines, for classification.");

}  // namespace fulgur
