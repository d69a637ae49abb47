#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulgur/core/options/options.h"
#include "fulgur/data/subset_dataset.h"

namespace fulgur {

/// Sizes of parts that are `shares` of `count` samples: rounded down, and the remaining samples go to the first parts,
/// one each. Throws a ConfigError if a share is negative or they do not add up to 1.
FULGUR_API std::vector<int64_t> part_sizes(int64_t count, const std::vector<double>& shares);

/// Like split_indices, but each part has nearly the same share of each label. `labels` has one number per sample.
FULGUR_API std::vector<std::vector<int64_t>> stratified_split_indices(const std::vector<int64_t>& labels,
                                                                      const std::vector<int64_t>& sizes, uint64_t seed);

/// Parts as fractions of the whole, like random_split, with nearly the same share of each label in each part. Throws a
/// ConfigError unless there is one label per sample.
FULGUR_API std::vector<std::shared_ptr<SubsetDataset>> stratified_split(const std::shared_ptr<const Dataset>& dataset,
                                                                        const std::vector<int64_t>& labels,
                                                                        const std::vector<double>& shares,
                                                                        uint64_t seed);

/// `folds` disjoint parts of 0 … dataset_size - 1 whose sizes differ by at most one, each in ascending order. Throws a
/// ConfigError for fewer than 2 folds, or for more folds than samples.
FULGUR_API std::vector<std::vector<int64_t>> fold_indices(int64_t dataset_size, int64_t folds, uint64_t seed);

/// The same with nearly the same share of each label in each fold.
FULGUR_API std::vector<std::vector<int64_t>> stratified_fold_indices(const std::vector<int64_t>& labels, int64_t folds,
                                                                     uint64_t seed);

/// Which fold of a cross validation is the validation part: `2/5` is the second of five.
struct FULGUR_API Fold {
  int64_t number = 1, count = 2;
  /// nullopt for a text that is not K/N with 1 ≤ K ≤ N and 2 ≤ N ≤ 1000.
  static std::optional<Fold> from(const std::string& text);
};

/// How data modules divide one set of samples into parts for training, validation and test. Their options contain this
/// struct and include its fields.
struct FULGUR_API SplitOptions {
  double val_fraction = 0.1;
  double test_fraction = 0.1;
  int64_t split_seed = 0;
  std::string fold = {};  ///< `K/N`; replaces val_fraction

  void fields(Fields& f);
  /// Throws a ConfigError that names `component` for a fold that is not one, and fractions that leave nothing to train
  /// on.
  void check(const std::string& component) const;
  /// Indices for training, validation and test, each ascending: a pure function of the options, `count` and `labels`.
  /// With `labels` (one per sample) each part has nearly the same share of each label. The test part is the same for
  /// all folds. Throws a DataError that names `component` if there is no sample to train on, or none for a part that
  /// is wanted.
  std::array<std::vector<int64_t>, 3> parts(int64_t count, const std::vector<int64_t>* labels,
                                            const std::string& component) const;
};

}  // namespace fulgur
