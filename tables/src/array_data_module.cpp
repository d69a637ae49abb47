#include "fulgur/tables/array_data_module.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <array>
#include <optional>

#include "arrays/array_file.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/options/checked_options.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/missing_classes.h"
#include "fulgur/data/tensor_dataset.h"
#include "option_bounds.h"

namespace fulgur {
namespace {

bool is_whole(const Tensor& values) { return at::isIntegralType(values.scalar_type(), /*includeBool=*/false); }
// Bools of one dimension are the labels 0 and 1.
bool is_labels(const Tensor& target) {
  return target.dim() == 1 && (is_whole(target) || target.scalar_type() == at::kBool);
}

/// The arrays of a set as the entries of its batches.
Batch read_set(const ArraySet& set, bool memory_map) {
  Batch batch;
  std::string first;
  const auto add = [&](const std::string& name, const std::string& text) {
    Tensor values = tables::read_array(tables::ArraySource::from(text), memory_map);
    if (values.dim() < 1 || values.size(0) == 0)
      throw DataError(cat("[data.ArrayDataModule] an array must have samples in its first dimension; '",
                          escape_controls(text), "' has the shape ", shape_text(values.sizes()), "."));
    if (first.empty())
      first = text;
    else if (values.size(0) != batch.size())
      throw DataError(cat("[data.ArrayDataModule] all arrays of a set must have the same number of samples; '",
                          escape_controls(first), "' has ", batch.size(), " and '", escape_controls(text), "' has ",
                          values.size(0), "."));
    if (name == "target" && is_labels(values)) values = values.to(at::kLong);
    if (name == "target" && values.is_floating_point()) values = values.to(at::kFloat);
    batch.add(name, std::move(values));
  };
  add("input", set.input);
  if (!set.target.empty()) add("target", set.target);
  for (const auto& [name, text] : set.more) add(name, text);
  return batch;
}

}  // namespace

struct ArrayDataModule::Impl {
  Options options;
  Batch train, val, test, predict;
  std::vector<int64_t> labels;  // of train; empty if its targets are none
  std::optional<std::array<std::vector<int64_t>, 3>> parts;
  int64_t num_classes = 0;

  void read();
  bool uses_parts(TrainerFn fn) const;
  void divide();
  void check_like_train(const Batch& set, const char* name, bool needs_target) const;
  bool converts(const Batch& set) const;
  std::shared_ptr<Dataset> dataset(RunningStage stage);
};

void ArraySet::fields(Fields& f) {
  f(input, "input", "The input: FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME; samples in the first dimension.");
  f(target, "target", "What is predicted, in the same way; empty: none.");
  f(more, "more", "Further entries of the batch by name, in the same way.");
}

void ArrayDataModule::Options::fields(Fields& f) {
  f(train, "train", "Arrays for training and all parts that have none.");
  f(val, "val", "Arrays for validation, in place of val_fraction.");
  f(test, "test", "Arrays for test and predict, in place of test_fraction.");
  f(predict, "predict", "Arrays for predict; by default those for test.");
  f(float_input, "float_input", "Whether batches have inputs of float32, whatever the dtype of the file is.");
  f(divide_by, "divide_by", "Inputs are divided by this number, such as 255 for bytes.").greater_than(0);
  f(memory_map, "memory_map", "Whether .npy files are mapped instead of read; pages are then read when they are used.");
  split.fields(f);
  f(stratify, "stratify", "Whether all parts have the same share of each label; auto: if targets are labels.");
  f(batch_size, "batch_size", "Samples in a training batch.").range(1, tables::kMostRows);
  f(eval_batch_size, "eval_batch_size", "Samples in a batch of validation, test and predict; auto: batch_size.")
      .range(1, tables::kMostRows);
  f(shuffle, "shuffle", "Whether training has a new order in each epoch.");
  f(drop_last, "drop_last", "Whether a last training batch that is not full is left out.");
  loading.fields(f);
}

ArrayDataModule::ArrayDataModule(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = detail::checked_options(options, "data.ArrayDataModule");
  const auto refuse = [](const auto&... what) { throw ConfigError(cat("[data.ArrayDataModule] ", what...)); };
  options.split.check("data.ArrayDataModule");
  if (options.train.empty()) refuse("train.input must name an array; it is empty. Set data.init_args.train.input.");
  for (const auto& [set, name] : {std::pair(&options.train, "train"),
                                  {&options.val, "val"},
                                  {&options.test, "test"},
                                  {&options.predict, "predict"}}) {
    if (set->empty()) continue;
    if (set->input.empty())
      refuse(name, ".input must name an array; it is empty. Set data.init_args.", name, ".input.");
    (void)tables::ArraySource::from(set->input);
    if (!set->target.empty()) (void)tables::ArraySource::from(set->target);
    for (const auto& [entry, text] : set->more) {
      if (entry == "input" || entry == "target") refuse(name, ".more must not have '", entry, "', which is an option.");
      (void)tables::ArraySource::from(text);
    }
  }
  if (!options.float_input && options.divide_by != 1)
    refuse("divide_by is for inputs of float32; float_input is false.");
  if (!options.split.fold.empty() && !options.val.empty())
    refuse("fold divides the training arrays, but val names arrays for validation. Remove one of them.");
  if (options.stratify.value.value_or(false) && options.train.target.empty())
    refuse("stratify needs labels; train.target is empty.");
}

ArrayDataModule::~ArrayDataModule() = default;

void ArrayDataModule::setup(TrainerFn fn) {
  if (impl_->train.empty()) impl_->read();
  if (fn == TrainerFn::fit && !impl_->labels.empty())
    detail::warn_missing_classes(impl_->options.train.target, impl_->labels, impl_->num_classes);
  if (impl_->uses_parts(fn)) impl_->divide();
}

/// Whether the verb reads a part of the arrays for training.
bool ArrayDataModule::Impl::uses_parts(TrainerFn fn) const {
  if (fn == TrainerFn::fit) return true;
  if (fn == TrainerFn::validate) return val.empty();
  return test.empty() && (fn == TrainerFn::test || predict.empty());
}

void ArrayDataModule::Impl::divide() {
  if (parts) return;
  SplitOptions split = options.split;
  if (!options.val.empty()) split.val_fraction = 0;
  if (!options.test.empty()) split.test_fraction = 0;
  parts = split.parts(train.size(), !labels.empty() && options.stratify.value.value_or(true) ? &labels : nullptr,
                      "data.ArrayDataModule");
}

void ArrayDataModule::Impl::check_like_train(const Batch& set, const char* name, bool needs_target) const {
  if (set.empty()) return;
  for (const auto& [entry, value] : train) {
    const Tensor& expected = std::get<Tensor>(value);
    if (!set.contains(entry)) {
      if (entry == "target" && !needs_target) continue;
      throw DataError(
          cat("[data.ArrayDataModule] all sets must have the same entries; '", entry, "' is missing in ", name, "."));
    }
    const Tensor& found = set[entry];
    // Batches are converted to one dtype.
    const bool is_converted =
        (entry == "input" && options.float_input) || (entry == "target" && is_whole(found) && is_whole(expected));
    if (found.sizes().slice(1) != expected.sizes().slice(1) ||
        (found.scalar_type() != expected.scalar_type() && !is_converted))
      throw DataError(cat("[data.ArrayDataModule] the samples of all sets must have the same shape and dtype; '", entry,
                          "' of ", name, " is ", c10::toString(found.scalar_type()), " of shape ",
                          shape_text(found.sizes()), ", that of train ", c10::toString(expected.scalar_type()),
                          " of shape ", shape_text(expected.sizes()), ". Convert one of the files",
                          entry == "input" && found.sizes().slice(1) == expected.sizes().slice(1)
                              ? ", or set float_input: true."
                              : "."));
  }
}

/// Whether batches of the set have other dtypes or values than its files.
bool ArrayDataModule::Impl::converts(const Batch& set) const {
  if (set.empty()) return false;
  if (options.float_input && (set["input"].scalar_type() != at::kFloat || options.divide_by != 1)) return true;
  return set.contains("target") && is_whole(set["target"]) && set["target"].scalar_type() != at::kLong;
}

void ArrayDataModule::Impl::read() {
  Batch read_train = read_set(options.train, options.memory_map);
  const bool has_labels = read_train.contains("target") && is_labels(read_train["target"]);
  if (options.stratify.value.value_or(false) && !has_labels)
    throw DataError(cat("[data.ArrayDataModule] stratify needs labels, integers of one dimension; train.target is ",
                        c10::toString(read_train["target"].scalar_type()), " of shape ",
                        shape_text(read_train["target"].sizes()), "."));
  if (has_labels) {
    const Tensor& target = read_train["target"];
    const auto* values = target.const_data_ptr<int64_t>();
    labels.assign(values, values + target.numel());
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] < 0)
        throw DataError(cat("[data.ArrayDataModule] labels must not be negative; sample ", i, " of '",
                            escape_controls(options.train.target), "' has ", labels[i], "."));
      num_classes = std::max(num_classes, labels[i] + 1);
    }
  }
  const auto other = [&](const ArraySet& set) { return set.empty() ? Batch() : read_set(set, options.memory_map); };
  val = other(options.val);
  test = other(options.test);
  predict = other(options.predict);
  train = std::move(read_train);
  check_like_train(val, "val", true);
  check_like_train(test, "test", true);
  check_like_train(predict, "predict", false);
}

std::shared_ptr<Dataset> ArrayDataModule::Impl::dataset(RunningStage stage) {
  const bool tests = stage == RunningStage::test || stage == RunningStage::predict;
  const Batch* own = stage == RunningStage::validate ? &val : tests ? &test : nullptr;
  if (stage == RunningStage::predict && !predict.empty()) own = &predict;
  const auto whole = [stage](Batch samples) {
    if (stage == RunningStage::predict && !samples.contains("index"))
      samples.add("index", at::arange(samples.size(), at::kLong));
    return std::make_shared<TensorDataset>(std::move(samples));
  };
  if (own && !own->empty()) return whole(*own);
  divide();
  const std::vector<int64_t>& part = (*parts)[stage == RunningStage::train      ? 0
                                              : stage == RunningStage::validate ? 1
                                                                                : 2];
  if (part.empty()) return nullptr;
  return std::make_shared<SubsetDataset>(whole(train), part);
}

std::vector<std::shared_ptr<Loader>> ArrayDataModule::loaders(RunningStage stage) {
  const Options& options = impl_->options;
  auto dataset = impl_->dataset(stage);
  if (!dataset) return {};
  const bool training = stage == RunningStage::train;
  DataLoaderOptions how;
  how.batch_size = training ? options.batch_size : options.eval_batch_size.value.value_or(options.batch_size);
  how.shuffle = training && options.shuffle;
  how.drop_last = training && options.drop_last;
  how.name = stage == RunningStage::validate ? "validation" : std::string(name_of(stage));
  options.loading.apply(how);
  const Impl& m = *impl_;
  if (m.converts(m.train) || m.converts(m.val) || m.converts(m.test) || m.converts(m.predict))
    how.transform = [float_input = options.float_input, divide_by = options.divide_by](Batch batch) {
      // Not in place: batches may share the memory of the file.
      for (size_t i = 0; i < batch.entries(); ++i) {
        const std::string& name = batch.entry(i).first;
        if (name == "input" && float_input) {
          Tensor input = batch[i].to(at::kFloat);
          if (divide_by != 1) input = input.div(divide_by);
          batch.set(i, std::move(input));
        } else if (name == "target" && is_whole(batch[i])) {
          batch.set(i, batch[i].to(at::kLong));
        }
      }
      return batch;
    };
  return {std::make_shared<DataLoader>(std::move(dataset), std::move(how))};
}

StateTree ArrayDataModule::exported_values() const {
  if (impl_->train.empty()) return {};
  const Tensor& input = impl_->train["input"];
  StateTree values = StateTree::map({{"num_features", input.numel() / input.size(0)}});
  if (input.dim() == 3) values["num_inputs"] = input.size(2);
  if (impl_->train.contains("target")) {
    const Tensor& target = impl_->train["target"];
    if (!impl_->labels.empty()) {
      values["task"] = "classification";
      values["num_classes"] = impl_->num_classes;
      values["num_outputs"] = impl_->num_classes;
    } else if (target.is_floating_point() && target.dim() <= 3) {
      values["task"] = "regression";
      values["num_outputs"] = target.dim() == 1 ? 1 : target.size(-1);
      if (target.dim() == 3) values["horizon"] = target.size(1);
    }
  }
  if (input.dim() == 4) {
    values["channels"] = input.size(1);
    values["height"] = input.size(2);
    values["width"] = input.size(3);
  }
  return values;
}

std::string ArrayDataModule::why_not_exported(std::string_view name) const {
  if ((name != "num_classes" && name != "num_outputs" && name != "task") || impl_->train.empty()) return {};
  if (!impl_->train.contains("target"))
    return "train.target is empty, so what is predicted is not known. Set data.init_args.train.target";
  const Tensor& target = impl_->train["target"];
  const std::string found = cat("the target '", escape_controls(impl_->options.train.target), "' is ",
                                c10::toString(target.scalar_type()), " of shape ", shape_text(target.sizes()));
  if (target.is_floating_point())
    return cat(found, ", numbers of a regression, and not labels, which are integers of one dimension. ",
               target.dim() == 1 ? "Convert labels in NumPy: y.astype('int64')"
                                 : "Convert one-hot rows in NumPy: y.argmax(axis=1)",
               ". For a regression use TabularMlp and link data.num_outputs");
  return cat(found, ", and labels of classes have one dimension. ",
             target.dim() == 2 && target.size(1) == 1 ? "Convert them in NumPy: y.reshape(-1)"
             : target.dim() == 2                      ? "Convert one-hot rows in NumPy: y.argmax(axis=1)"
                                                      : "How many classes masks have is not known",
             ", or remove the link and set the option");
}

[[maybe_unused]] static const bool registered_array_data_module =
    Registry<DataModule>::add<ArrayDataModule>("ArrayDataModule", "Arrays of .npy, .npz and safetensors files.");

}  // namespace fulgur
