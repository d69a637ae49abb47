#include "fulgur/data/splits.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "sampling/permutation.h"

namespace fulgur {
namespace {

// Streams that no epoch of a RandomSampler and no split_indices uses.
constexpr uint64_t kStratifiedStream = 0x7374726174000000u, kFoldStream = 0x666f6c6400000000u;

/// An order in which each range of positions has nearly the same share of each label.
std::vector<int64_t> stratified_order(const std::vector<int64_t>& labels, uint64_t seed) {
  const auto count = static_cast<int64_t>(labels.size());
  const std::vector<int64_t> shuffled = random_permutation(count, seed, kStratifiedStream);
  std::map<int64_t, std::pair<int64_t, int64_t>> seen;  // how many samples a label has, and how many came already
  for (const int64_t label : labels) ++seen[label].first;
  struct Place {
    double position;  // in (0, 1): samples of a label are evenly spread
    int64_t index;
  };
  std::vector<Place> places;
  places.reserve(labels.size());
  for (const int64_t index : shuffled) {
    auto& [all, before] = seen[labels[static_cast<size_t>(index)]];
    places.push_back({(static_cast<double>(before++) + 0.5) / static_cast<double>(all), index});
  }
  std::ranges::stable_sort(places, {}, &Place::position);
  std::vector<int64_t> order;
  order.reserve(places.size());
  for (const Place& place : places) order.push_back(place.index);
  return order;
}

std::vector<std::vector<int64_t>> ranges_of(const std::vector<int64_t>& order, const std::vector<int64_t>& sizes) {
  auto left = static_cast<int64_t>(order.size());
  for (const int64_t size : sizes) {
    if (size < 0 || size > left)
      throw ConfigError(cat("[data.split] the parts must fit into the dataset of ", order.size(),
                            " samples; got a part of ", size, " with ", left, " left."));
    left -= size;
  }
  std::vector<std::vector<int64_t>> parts;
  auto from = order.begin();
  for (const int64_t size : sizes) {
    parts.emplace_back(from, from + size);
    std::ranges::sort(parts.back());
    from += size;
  }
  return parts;
}

std::vector<int64_t> fold_sizes(int64_t count, int64_t folds) {
  if (folds < 2 || folds > count)
    throw ConfigError(cat("[data.fold_indices] the number of folds must be in [2, ", count,
                          "], the number of samples; got ", folds, "."));
  std::vector<int64_t> sizes(static_cast<size_t>(folds), count / folds);
  for (int64_t i = 0; i < count % folds; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

int64_t fraction_of(double fraction, int64_t count) {
  return static_cast<int64_t>(std::llround(fraction * static_cast<double>(count)));
}

}  // namespace

std::vector<int64_t> part_sizes(int64_t count, const std::vector<double>& shares) {
  double sum = 0;
  std::vector<int64_t> sizes;
  int64_t left = count;
  for (const double share : shares) {
    if (!(share >= 0)) throw ConfigError(cat("[data.random_split] shares must not be negative; got ", share, "."));
    sum += share;
    sizes.push_back(static_cast<int64_t>(std::floor(share * static_cast<double>(count))));
    left -= sizes.back();
  }
  if (sizes.empty() || std::abs(sum - 1) > 1e-6)
    throw ConfigError(cat("[data.random_split] shares must add up to 1; got ", sum, "."));
  for (size_t i = 0; left > 0; i = (i + 1) % sizes.size(), --left) ++sizes[i];
  return sizes;
}

std::vector<std::vector<int64_t>> stratified_split_indices(const std::vector<int64_t>& labels,
                                                           const std::vector<int64_t>& sizes, uint64_t seed) {
  return ranges_of(stratified_order(labels, seed), sizes);
}

std::vector<std::shared_ptr<SubsetDataset>> stratified_split(const std::shared_ptr<const Dataset>& dataset,
                                                             const std::vector<int64_t>& labels,
                                                             const std::vector<double>& shares, uint64_t seed) {
  if (static_cast<int64_t>(labels.size()) != dataset->size())
    throw ConfigError(cat("[data.stratified_split] there must be one label per sample; got ", labels.size(),
                          " labels for ", dataset->size(), " samples."));
  std::vector<std::shared_ptr<SubsetDataset>> parts;
  for (auto& indices : stratified_split_indices(labels, part_sizes(dataset->size(), shares), seed))
    parts.push_back(std::make_shared<SubsetDataset>(dataset, std::move(indices)));
  return parts;
}

std::vector<std::vector<int64_t>> fold_indices(int64_t dataset_size, int64_t folds, uint64_t seed) {
  const std::vector<int64_t> sizes = fold_sizes(dataset_size, folds);
  return ranges_of(random_permutation(dataset_size, seed, kFoldStream), sizes);
}

std::vector<std::vector<int64_t>> stratified_fold_indices(const std::vector<int64_t>& labels, int64_t folds,
                                                          uint64_t seed) {
  const std::vector<int64_t> sizes = fold_sizes(static_cast<int64_t>(labels.size()), folds);
  return ranges_of(stratified_order(labels, seed), sizes);
}

std::optional<Fold> Fold::from(const std::string& text) {
  const std::vector<std::string> parts = split_text(text, '/');
  if (parts.size() != 2 || !all_digits(parts[0]) || !all_digits(parts[1])) return std::nullopt;
  const auto number = parse_whole<int64_t>(parts[0]), count = parse_whole<int64_t>(parts[1]);
  if (!number || !count || *count < 2 || *count > 1000 || *number < 1 || *number > *count) return std::nullopt;
  return Fold{*number, *count};
}

void SplitOptions::fields(Fields& f) {
  f(val_fraction, "val_fraction", "Fraction of the samples for validation; 0: none.").at_least(0).less_than(1);
  f(test_fraction, "test_fraction", "Fraction of the samples for test and predict; 0: none.").at_least(0).less_than(1);
  f(split_seed, "split_seed", "Chooses the parts; independent of the run's seed.").at_least(0);
  f(fold, "fold",
    "Cross validation: K/N divides the samples that are not for test into N folds and validates on the K-th, in place "
    "of val_fraction; empty: none.");
}

void SplitOptions::check(const std::string& component) const {
  if (!fold.empty() && !Fold::from(fold))
    throw ConfigError(cat("[", component, "] fold must be K/N with 1 <= K <= N and N in [2, 1000], such as 2/5; got '",
                          escape_controls(fold), "'."));
  if (fold.empty() && val_fraction + test_fraction >= 1)
    throw ConfigError(cat("[", component,
                          "] val_fraction and test_fraction must leave something to train on; they are ", val_fraction,
                          " and ", test_fraction, "."));
}

std::array<std::vector<int64_t>, 3> SplitOptions::parts(int64_t count, const std::vector<int64_t>* labels,
                                                        const std::string& component) const {
  check(component);
  const auto seed = static_cast<uint64_t>(split_seed);
  const int64_t test = fraction_of(test_fraction, count);
  const int64_t val = fold.empty() ? std::min(fraction_of(val_fraction, count), count - test) : 0;
  const std::vector<int64_t> sizes = {count - val - test, val, test};
  auto cut = labels ? stratified_split_indices(*labels, sizes, seed) : split_indices(count, sizes, seed);
  std::array<std::vector<int64_t>, 3> parts = {std::move(cut[0]), std::move(cut[1]), std::move(cut[2])};
  if (const auto chosen = fold.empty() ? std::nullopt : Fold::from(fold)) {
    const std::vector<int64_t> rest = std::move(parts[0]);
    if (static_cast<int64_t>(rest.size()) < chosen->count)
      throw DataError(cat("[", component, "] each fold must have a sample; ", rest.size(), " samples cannot have ",
                          chosen->count, " folds."));
    std::vector<int64_t> labels_of_rest;
    if (labels)
      for (const int64_t index : rest) labels_of_rest.push_back((*labels)[static_cast<size_t>(index)]);
    const auto folds = labels ? stratified_fold_indices(labels_of_rest, chosen->count, seed)
                              : fold_indices(static_cast<int64_t>(rest.size()), chosen->count, seed);
    parts[0].clear();
    for (size_t i = 0; i < folds.size(); ++i)
      for (const int64_t place : folds[i])
        parts[static_cast<int64_t>(i) + 1 == chosen->number ? 1 : 0].push_back(rest[static_cast<size_t>(place)]);
    std::ranges::sort(parts[0]);
  }
  constexpr std::array kNames{"training", "validation", "test"};
  const std::array<bool, 3> wanted{true, !fold.empty() || val_fraction > 0, test_fraction > 0};
  for (size_t i = 0; i < 3; ++i)
    if (wanted[i] && parts[i].empty())
      throw DataError(cat("[", component, "] each part must have a sample; the part for ", kNames[i], " has none of ",
                          count, ". Use more data, or other fractions."));
  return parts;
}

}  // namespace fulgur
