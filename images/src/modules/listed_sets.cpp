#include "modules/listed_sets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <system_error>
#include <utility>

#include "decoding/decode.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/splits.h"

namespace fulgur::detail {
namespace {

enum SplitPart : size_t { kTrainPart, kValPart, kTestPart };

class ListedSets final : public ImageSets {
 public:
  ListedSets(std::string module, ImageLister lister, const ImageSplitOptions& split, const ImageReadingOptions& reading)
      : module_(std::move(module)), lister_(std::move(lister)), reading_(reading), seed_(split.split_seed) {
    check_decode_options(reading_.dataset_options().decode);
    if (lister_.train.empty())
      throw ConfigError(cat("[images.", module_, "] train_", lister_.suffix, " must be a path; it is empty. Set it."));
    const auto refuse = [&](const char* part) {
      throw ConfigError(cat("[images.", module_, "] ", part, "_", lister_.suffix, " and ", part,
                            "_fraction exclude each other; both are given. Remove one of them."));
    };
    if (lister_.val && split.val_fraction.value.value_or(0) > 0) refuse("val");
    if (lister_.test && split.test_fraction > 0) refuse("test");
    val_fraction_ = split.val_fraction.value.value_or(lister_.val ? 0.0 : 0.1);
    test_fraction_ = split.test_fraction;
    if (!(val_fraction_ >= 0) || !(test_fraction_ >= 0) || !(val_fraction_ + test_fraction_ < 1))
      throw ConfigError(cat("[images.", module_,
                            "] val_fraction and test_fraction must leave something to train on; they are ",
                            val_fraction_, " and ", test_fraction_, "."));
  }

  std::optional<std::vector<std::string>> classes() override {
    std::error_code none;
    if (!std::filesystem::exists(lister_.train, none)) return std::nullopt;
    return lister_.classes();
  }

  std::filesystem::path source_of_classes() const override { return lister_.train; }

  ImageDatasetOptions reading() const override { return reading_.dataset_options(); }

  std::shared_ptr<ImageDataset> dataset(RunningStage stage, const std::vector<std::string>& classes,
                                        ImageDatasetOptions options) override {
    std::optional<ImageList> list = list_of(stage, classes);
    return list ? std::make_shared<ImageDataset>(std::move(*list), std::move(options)) : nullptr;
  }

 private:
  std::optional<ImageList> list_of(RunningStage stage, const std::vector<std::string>& classes) {
    switch (stage) {
      case RunningStage::train:
        return part(kTrainPart, classes);
      case RunningStage::validate:
        if (lister_.val) return lister_.labelled(*lister_.val, classes);
        return val_fraction_ > 0 ? std::optional(part(kValPart, classes)) : std::nullopt;
      case RunningStage::predict:
        if (lister_.predict) return lister_.unlabelled(*lister_.predict);
        [[fallthrough]];
      case RunningStage::test:
        if (lister_.test) return lister_.labelled(*lister_.test, classes);
        return test_fraction_ > 0 ? std::optional(part(kTestPart, classes)) : std::nullopt;
    }
    return std::nullopt;
  }

  /// A part of the training data, which are listed once.
  ImageList part(SplitPart which, const std::vector<std::string>& classes) {
    if (!parts_) {
      ImageList all = lister_.labelled(lister_.train, classes);
      const auto size_of = [&](double fraction) {
        return static_cast<int64_t>(std::llround(fraction * static_cast<double>(all.size())));
      };
      const int64_t val = size_of(val_fraction_), test = size_of(test_fraction_), train = all.size() - val - test;
      const std::array<int64_t, 3> sizes{train, val, test};
      const std::array<bool, 3> wanted{true, val_fraction_ > 0, test_fraction_ > 0};
      constexpr std::array kNames{"training", "validation", "test"};
      for (size_t i = 0; i < sizes.size(); ++i)
        if (wanted[i] && sizes[i] < 1)
          throw DataError(cat("[images.", module_, "] each part must have an image; ", kNames[i], " has none of the ",
                              counted(all.size(), "image"), " in ", escape_controls(lister_.train.string()),
                              ". Change val_fraction or test_fraction."));
      parts_.emplace();
      if (val == 0 && test == 0) {
        (*parts_)[kTrainPart] = std::move(all);
      } else {
        auto indices = stratified_split_indices(all.labels, {val, test, train}, static_cast<uint64_t>(seed_));
        for (auto& part : indices) std::sort(part.begin(), part.end());
        (*parts_)[kValPart] = all.select(indices[0]);
        (*parts_)[kTestPart] = all.select(indices[1]);
        (*parts_)[kTrainPart] = all.select(indices[2]);
      }
    }
    // The lists may be long, and those of training and validation are taken once.
    return which == kTestPart ? (*parts_)[which] : std::move((*parts_)[which]);
  }

  std::string module_;
  ImageLister lister_;
  ImageReadingOptions reading_;
  int64_t seed_;
  double val_fraction_ = 0, test_fraction_ = 0;
  std::optional<std::array<ImageList, 3>> parts_;
};

}  // namespace

std::unique_ptr<ImageSets> listed_sets(const std::string& module, ImageLister lister, const ImageSplitOptions& split,
                                       const ImageReadingOptions& reading) {
  return std::make_unique<ListedSets>(module, std::move(lister), split, reading);
}

}  // namespace fulgur::detail
