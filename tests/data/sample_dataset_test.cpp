#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <stdexcept>

#include "data_support.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/collate.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/sample_dataset.h"
#include "fulgur/data/subset_dataset.h"
#include "support/expect_error.h"

namespace sample_dataset_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A dataset of a function.
class Made : public SampleDataset {
 public:
  Made(int64_t size, std::function<Sample(int64_t, const SampleContext&)> make) : size_(size), make_(std::move(make)) {}
  int64_t size() const override { return size_; }
  Sample get(int64_t index, const SampleContext& context) const override { return make_(index, context); }

 private:
  int64_t size_;
  std::function<Sample(int64_t, const SampleContext&)> make_;
};

std::shared_ptr<Made> made(int64_t size, std::function<Sample(int64_t, const SampleContext&)> make) {
  return std::make_shared<Made>(size, std::move(make));
}
std::shared_ptr<Made> made(int64_t size, std::function<Sample(int64_t)> make) {
  return made(size, [make](int64_t i, const SampleContext&) { return make(i); });
}

Batch first_batch(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options) {
  DataLoader loader(std::move(dataset), std::move(options));
  loader.start_epoch(0);
  Batch batch;
  // Not within REQUIRE, which would catch the error that a test wants to see.
  if (!loader.next(batch)) FAIL("there is no batch");
  return batch;
}

}  // namespace

TEST_CASE("samples become a batch: tensors, numbers, texts and samples within samples") {
  const auto dataset = made(9, [](int64_t i) -> Sample {
    return {{"image", at::full({2, 3}, static_cast<double>(i), at::kByte)},
            {"label", static_cast<int>(i)},
            {"weight", 0.5 * static_cast<double>(i)},
            {"score", 1.5f},
            {"valid", i % 2 == 0},
            {"file", cat("f", i)},
            {"pair", Sample{{"left", at::arange(2)}, {"right", i + 1}}}};
  });
  for (const int64_t workers : {0, 2}) {
    const Batch batch = first_batch(dataset, {.batch_size = 4, .num_workers = workers});
    REQUIRE(batch.entries() == 8);
    CHECK(batch["image"].sizes() == at::IntArrayRef({4, 2, 3}));
    CHECK(batch["image"].scalar_type() == at::kByte);
    CHECK(at::equal(batch["image"].select(1, 0).select(1, 0), at::tensor({0, 1, 2, 3}, at::kByte)));
    CHECK(at::equal(batch["label"], at::arange(4)));
    CHECK(at::equal(batch["weight"], at::tensor({0.0, 0.5, 1.0, 1.5}, at::kDouble)));
    CHECK(batch["score"].scalar_type() == at::kFloat);
    CHECK(at::equal(batch["valid"], at::tensor({1, 0, 1, 0}, at::kLong).to(at::kBool)));
    CHECK(std::get<std::vector<std::string>>(batch.entry(5).second) ==
          std::vector<std::string>{"f0", "f1", "f2", "f3"});
    CHECK(batch["pair.left"].sizes() == at::IntArrayRef({4, 2}));
    CHECK(at::equal(batch["pair.right"], at::arange(1, 5)));
  }
}

TEST_CASE("samples may have a tensor without values") {
  const Batch batch = first_batch(made(2,
                                       [](int64_t i) -> Sample {
                                         return {{"none", at::full({0, 3}, 1.0)}, {"label", i}};
                                       }),
                                  {.batch_size = 2});
  CHECK(batch["none"].sizes() == at::IntArrayRef({2, 0, 3}));
  CHECK(at::equal(batch["label"], at::tensor({0, 1}, at::kLong)));
}

TEST_CASE("a tensor that is not contiguous, or of another autograd state, is copied by value") {
  const auto dataset = made(2, [](int64_t i) -> Sample {
    return {{"x", at::arange(6, at::kFloat).view({2, 3}).t().add(static_cast<double>(i)).requires_grad_(true)}};
  });
  const Batch batch = first_batch(dataset, {.batch_size = 2});
  CHECK(at::equal(batch["x"][1], at::arange(6, at::kFloat).view({2, 3}).t().add(1)));
  CHECK_FALSE(batch["x"].requires_grad());
}

TEST_CASE("ragged samples are an error with entry and both shapes, unless a collate function says how") {
  const auto ragged = made(4, [](int64_t i) -> Sample { return {{"tokens", at::arange(i + 1)}, {"id", i}}; });
  for (const int64_t workers : {0, 2}) {
    CHECK_THAT(
        message_of<DataError>([&] { first_batch(ragged, {.batch_size = 4, .name = "train", .num_workers = workers}); }),
        ContainsSubstring("entry 'tokens'") && ContainsSubstring("sample 1 has Long [2]") &&
            ContainsSubstring("the first one had Long [1]"));
    const Batch listed =
        first_batch(ragged, {.batch_size = 4, .collate = collate::stack_all_but({"tokens"}), .num_workers = workers});
    const auto& tokens = std::get<std::vector<Tensor>>(listed.entry(0).second);
    CHECK(at::equal(tokens.at(2), at::arange(3)));
    CHECK(at::equal(listed["id"], at::arange(4)));
    const Batch padded =
        first_batch(ragged, {.batch_size = 3, .collate = collate::pad({"tokens"}, -1), .num_workers = workers});
    CHECK(at::equal(padded["tokens"], at::tensor({0, -1, -1, 0, 1, -1, 0, 1, 2}, at::kLong).view({3, 3})));
    CHECK(at::equal(padded["tokens.length"], at::tensor({1, 2, 3}, at::kLong)));
  }
  CHECK_THAT(
      message_of<DataError>([&] { first_batch(ragged, {.batch_size = 4, .collate = collate::stack_all_but({"id"})}); }),
      ContainsSubstring("'tokens'") && ContainsSubstring("[1] and [2]"));
  CHECK_THAT(message_of<DataError>(
                 [&] { first_batch(ragged, {.batch_size = 4, .collate = collate::stack_all_but({"token"})}); }),
             ContainsSubstring("'token'") && ContainsSubstring("tokens, id"));
}

TEST_CASE("samples with other entries, kinds or dtypes than the first one are refused") {
  const auto at_two = [](std::function<Sample()> other) {
    return made(3, [other](int64_t i) -> Sample {
      return i == 2 ? other() : Sample{{"x", at::arange(2)}, {"name", "a"}};
    });
  };
  const auto message = [&](std::function<Sample()> other) {
    return message_of<DataError>([&] { first_batch(at_two(std::move(other)), {.batch_size = 3}); });
  };
  CHECK_THAT(message([] {
               return Sample{{"x", at::arange(2)}};
             }),
             ContainsSubstring("sample 2 has x instead of x, name"));
  CHECK_THAT(message([] {
               return Sample{{"y", at::arange(2)}, {"name", "a"}};
             }),
             ContainsSubstring("sample 2 has y, name"));
  CHECK_THAT(message([] { return Sample{{"x", "text"}, {"name", "a"}}; }), ContainsSubstring("of the same kinds"));
  CHECK_THAT(message([] {
               return Sample{{"x", at::arange(2, at::kFloat)}, {"name", "a"}};
             }),
             ContainsSubstring("sample 2 has Float [2]"));
  CHECK_THAT(message([] { return Sample{{"x", Tensor()}, {"name", "a"}}; }), ContainsSubstring("undefined tensor"));
  CHECK_THAT(message_of<Error>([] { Sample{{"x", 1}, {"x", 2}}; }), ContainsSubstring("'x' occurs twice"));
}

TEST_CASE("F36: the sample that fails is named, also within a subset, and is not read twice") {
  std::atomic<int> thrown{0};
  const auto dataset = made(30, [&](int64_t i) -> Sample {
    if (i == 17) {
      ++thrown;
      throw std::runtime_error("no such column");
    }
    return {{"x", i}};
  });
  CHECK_THAT(message_of<DataError>([&] { first_batch(dataset, {.batch_size = 30}); }),
             ContainsSubstring("sample 17") && ContainsSubstring("no such column"));
  CHECK(thrown == 1);
  const auto subset = std::make_shared<SubsetDataset>(dataset, std::vector<int64_t>{3, 17, 4});
  CHECK_THAT(message_of<DataError>([&] { first_batch(subset, {.batch_size = 3, .num_workers = 2}); }),
             ContainsSubstring("sample 17"));
}

TEST_CASE("random numbers of a sample depend on seed, epoch and index, not on the batch") {
  const auto dataset = made(64, [](int64_t i, const SampleContext& context) -> Sample {
    return {{"u", context.random(i).uniform()}};
  });
  const auto values = [&](uint64_t seed, int64_t epoch, int64_t batch_size, int64_t workers) {
    DataLoader loader(dataset, {.batch_size = batch_size, .num_workers = workers});
    loader.configure(seed, 0, 1);
    loader.start_epoch(epoch);
    std::vector<double> all;
    Batch batch;
    while (loader.next(batch)) {
      const auto* u = batch["u"].const_data_ptr<double>();
      all.insert(all.end(), u, u + batch.size());
    }
    return all;
  };
  const auto expected = values(1, 0, 8, 0);
  CHECK(values(1, 0, 5, 3) == expected);
  CHECK(values(1, 1, 8, 0) != expected);
  CHECK(values(2, 0, 8, 0) != expected);
  double mean = 0;
  for (const double u : expected) mean += u / 64;
  CHECK(std::abs(mean - 0.5) < 0.15);  // standard deviation 0.036
}

}  // namespace sample_dataset_test
