// Predictions of several ranks: the files of one process, in the memory of one rank's share.
#include "predictions/predictions.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <mutex>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/text/errors.h"
#include "support/live_memory.h"
#include "support/temporary_folder.h"
#include "support/thread_collectives.h"

namespace predictions_test {

using namespace fulgur;
using namespace fulgur::test;
using namespace fulgur::detail;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Files {
  std::string binary, lines;
  bool operator==(const Files&) const = default;
};

Files files_of(const std::filesystem::path& folder) {
  return {read_text(folder / "predictions.safetensors"), read_text(folder / "predictions.jsonl")};
}

Outputs all_rows(int64_t rows) {
  Outputs outputs;
  Tensor numbers = at::arange(rows * 6).to(at::kDouble).div(7).reshape({rows, 2, 3});
  if (rows > 1) numbers[1][0][1] = std::numeric_limits<double>::quiet_NaN();
  outputs.add("numbers", numbers);
  outputs.add("index", at::arange(rows));
  outputs.add("half", at::arange(rows * 3).reshape({rows, 3}).to(at::kHalf));
  outputs.add("short", at::arange(rows).to(at::kShort));
  outputs.add("odd", at::arange(rows).remainder(2).to(at::kBool));
  outputs.add("nothing", at::empty({rows, 0}));
  return outputs;
}

// The samples of one rank of a data set.
PredictedShare share_of(int64_t rows, int64_t rank, int64_t world_size) {
  PredictedShare share;
  share.in_turns = true;
  for (const auto& [name, value] : all_rows(rows)) {
    const Tensor own = value.slice(0, std::min(rank, rows), rows, world_size).contiguous();
    share.samples = own.size(0);
    share.outputs.add(name, own);
  }
  if (share.samples == 0) {
    share.outputs = {};
    return share;
  }
  share.texts = {{"file", {}}, {"who", {}}};
  for (int64_t i = rank; i < rows; i += world_size) {
    share.texts[0].second.push_back("folder/" + std::to_string(i) + ".png");
    share.texts[1].second.push_back(i % 2 == 0 ? "" : std::string(static_cast<size_t>(i), '"') + "\xc3\xa9");
  }
  return share;
}

// Counts what its rank receives.
class Counted final : public Collectives {
 public:
  explicit Counted(Collectives& inner) : inner_(inner) {}
  int64_t rank() const override { return inner_.rank(); }
  int64_t world_size() const override { return inner_.world_size(); }
  Tensor all_reduce(const Tensor& value, ReduceOp op) override { return inner_.all_reduce(value, op); }
  std::vector<Tensor> all_gather(const Tensor& value, bool g) override { return inner_.all_gather(value, g); }
  Tensor broadcast(const Tensor& value, int64_t source) override {
    largest = std::max(largest, static_cast<int64_t>(value.nbytes()));
    // Threads free each other's copies, which are not the rank's.
    const auto sent = [&] {
      const LiveMemory uncounted;
      return inner_.broadcast(value, source);
    }();
    return sent.clone();
  }
  bool any(bool value) override { return inner_.any(value); }
  void barrier(std::string_view reason) override { inner_.barrier(reason); }
  std::vector<std::string> gather_text(std::string_view text) override {
    largest = std::max(largest, static_cast<int64_t>(text.size()));
    return inner_.gather_text(text);
  }
  std::string broadcast_text(std::string_view text, int64_t s) override { return inner_.broadcast_text(text, s); }
  std::unique_ptr<PendingReduction> start_max(std::vector<int64_t> v) override { return inner_.start_max(v); }
  int64_t largest = 0;

 private:
  Collectives& inner_;
};

Files of_one_process(const std::vector<PredictedShare>& shares) {
  const TemporaryFolder folder;
  SingleProcessCollectives alone;
  write_predictions(alone, folder.path(), shares);
  return files_of(folder.path());
}

}  // namespace

TEST_CASE("predictions of several ranks are those of one process to the byte") {
  const int64_t world = GENERATE(1, 2, 3);
  const int64_t rows = GENERATE(11, 2, 1, 0);
  const int64_t block = GENERATE(int64_t{1}, int64_t{300}, int64_t{1} << 20);
  const bool two_loaders = GENERATE(false, true);
  CAPTURE(world, rows, block, two_loaders);
  std::vector<PredictedShare> one{share_of(rows, 0, 1)};
  if (two_loaders) one.push_back(share_of(5, 0, 1));
  const Files expected = of_one_process(one);
  const TemporaryFolder folder;
  run_ranks(world, [&](Collectives& collectives) {
    std::vector<PredictedShare> shares{share_of(rows, collectives.rank(), world)};
    if (two_loaders) shares.push_back(share_of(5, collectives.rank(), world));
    const auto paths = write_predictions(collectives, folder.path(), shares, block);
    if (paths.size() != (collectives.rank() == 0 ? 2 : 0)) throw std::runtime_error("rank 0 has the files");
  });
  CHECK(files_of(folder.path()) == expected);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("predictions of ranks that do not read in turns come rank by rank") {
  const std::vector<int64_t> rows{2, 0, 5};
  std::vector<PredictedShare> shares;
  PredictedShare one;
  const Tensor all = at::arange(14).reshape({7, 2});
  for (int64_t begin = 0; const int64_t count : rows) {
    PredictedShare share;
    share.samples = count;
    if (count > 0) share.outputs.add("y", all.narrow(0, begin, count).contiguous());
    begin += count;
    shares.push_back(share);
  }
  one.samples = 7;
  one.outputs.add("y", all);
  const Files expected = of_one_process({one});
  for (const int64_t block : {1, 40, 1000}) {
    const TemporaryFolder folder;
    run_ranks(3, [&](Collectives& collectives) {
      write_predictions(collectives, folder.path(), {shares[static_cast<size_t>(collectives.rank())]}, block);
    });
    CHECK(files_of(folder.path()) == expected);
  }
}

TEST_CASE("lines have the texts of the samples, and the names of the classes that a classifier predicts") {
  PredictedShare share;
  share.samples = 2;
  share.texts = {{"file", {"a.png", "b.png"}}};
  share.outputs.add("probabilities", at::tensor({0.25, 0.75, 1.0, 0.0}, at::kDouble).view({2, 2}));
  share.outputs.add("prediction", at::tensor({1, 0}, at::kLong));
  SingleProcessCollectives alone;
  const auto lines = [&](const std::vector<std::string>& classes) {
    const TemporaryFolder folder;
    write_predictions(alone, folder.path(), {share}, kPredictionBlock, classes);
    return files_of(folder.path()).lines;
  };
  CHECK(lines({"cat", "dog"}) ==
        "{\"file\":\"a.png\",\"class\":\"dog\",\"probabilities\":[0.25,0.75],\"prediction\":1}\n"
        "{\"file\":\"b.png\",\"class\":\"cat\",\"probabilities\":[1.0,0.0],\"prediction\":0}\n");
  // Names of other classes than those that are predicted, or no names.
  CHECK_THAT(lines({"a", "b", "c"}), !ContainsSubstring("class"));
  CHECK_THAT(lines({}), !ContainsSubstring("class"));
  // An output of the module keeps its name.
  share.outputs.add("class", at::tensor({7, 8}, at::kLong));
  CHECK_THAT(lines({"cat", "dog"}), ContainsSubstring("\"class\":7") && !ContainsSubstring("dog"));
}

TEST_CASE("ranks whose batches have other texts fail the same way") {
  const TemporaryFolder folder;
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(2, [&](Collectives& collectives) {
    PredictedShare share;
    share.samples = 1;
    share.outputs.add("y", at::full({1}, 1.0));
    if (collectives.rank() == 1) share.texts = {{"file", {"a"}}};
    try {
      write_predictions(collectives, folder.path(), {share});
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      errors.emplace_back(error.what());
    }
  });
  REQUIRE(errors.size() == 2);
  for (const std::string& error : errors)
    CHECK_THAT(error,
               ContainsSubstring("every rank must have the same texts in its batches; rank 1 has file while rank "
                                 "0 has none"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("merging predictions needs blocks of bounded size in addition to a rank's share") {
  const int64_t world = GENERATE(1, 2, 3);
  constexpr int64_t kRows = 3000, kRow = 128 * 8, kBlock = 16 << 10;
  const TemporaryFolder folder;
  std::mutex mutex;
  std::vector<int64_t> received, held;
  run_ranks(world, [&](Collectives& collectives) {
    PredictedShare share;
    share.in_turns = true;
    share.samples = kRows / world;
    share.outputs.add("y", at::full({share.samples, 128}, collectives.rank(), at::kDouble));
    Counted counted(collectives);
    const LiveMemory memory;
    write_predictions(counted, folder.path(), {share}, kBlock);
    const std::lock_guard lock(mutex);
    received.push_back(counted.largest);
    held.push_back(memory.peak());
  });
  CHECK(std::filesystem::file_size(folder / "predictions.safetensors") > kRows * kRow);
  for (const int64_t bytes : received) CHECK(bytes <= kBlock);
  for (const int64_t bytes : held) CHECK(bytes <= 3 * kBlock);
}

TEST_CASE("ranks whose predictions differ fail the same way, and leave no file") {
  const std::string what = GENERATE("name", "dtype", "shape", "more", "none");
  CAPTURE(what);
  const TemporaryFolder folder;
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(3, [&](Collectives& collectives) {
    PredictedShare share;
    share.samples = 4;
    const bool other = collectives.rank() == 2;
    share.outputs.add(other && what == "name" ? "z" : "y", at::full({4, other && what == "shape" ? 3 : 2}, 1,
                                                                    other && what == "dtype" ? at::kLong : at::kFloat));
    if (other && what == "more") share.outputs.add("z", at::full({4}, 1.0));
    if (other && what == "none") share.outputs = {};
    try {
      write_predictions(collectives, folder.path(), {share});
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      errors.emplace_back(error.what());
    }
  });
  REQUIRE(errors.size() == 3);
  for (const std::string& error : errors) {
    CHECK(error == errors.front());
    CHECK_THAT(error, ContainsSubstring("every rank must return the same outputs; rank 2 has"));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("predictions that cannot be written leave neither file") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "predictions.jsonl");
  SingleProcessCollectives alone;
  CHECK_THROWS_WITH(write_predictions(alone, folder.path(), {share_of(4, 0, 1)}),
                    ContainsSubstring("predictions.jsonl") && ContainsSubstring("could not be written"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  std::filesystem::remove(folder / "predictions.jsonl");
  PredictedShare complex;
  complex.samples = 2;
  complex.outputs.add("y", at::full({2}, 1.0).to(at::kComplexFloat));
  CHECK_THROWS_WITH(write_predictions(alone, folder.path(), {complex}),
                    ContainsSubstring("which the format cannot hold"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("outputs of batches are put together; what differs from the first batch is an error") {
  const auto rows = [](int64_t count, at::ScalarType dtype = at::kFloat) { return at::full({count, 2}, count, dtype); };
  PredictedBatches batches;
  batches.add({{"y", rows(3)}}, 3);
  batches.add({{"y", rows(2)}}, 2);
  CHECK_THROWS_WITH(batches.add({{"y", rows(2, at::kLong)}}, 2), ContainsSubstring("Long [2]"));
  CHECK_THROWS_WITH(batches.add({{"z", rows(2)}}, 2), ContainsSubstring("got 'z', but the first batch had 'y'"));
  CHECK_THROWS_WITH(batches.add({{"y", rows(1)}}, 2), ContainsSubstring("one row per sample (2); got 1 rows"));
  CHECK_THROWS_WITH(batches.add({}, 2), ContainsSubstring("'y', which the first batch had, is missing"));
  const PredictedShare share = batches.take(true);
  CHECK(share.samples == 5);
  CHECK(share.outputs["y"].equal(at::cat({rows(3), rows(2)})));

  // What joins a prediction to its input: texts, and the index. An output of that name counts more.
  using Texts = std::vector<std::string>;
  const Batch first{{"x", rows(2)}, {"file", Texts{"a", "b"}}, {"index", at::tensor({5, 3}, at::kLong)}};
  const Batch second{{"x", rows(1)}, {"file", Texts{"c"}}, {"index", at::tensor({1}, at::kLong)}};
  PredictedBatches joined;
  joined.add({{"y", rows(2)}}, 2, first);
  joined.add({{"y", rows(1)}}, 1, second);
  PredictedBatches without;
  without.add({{"y", rows(2)}}, 2, first);
  CHECK_THROWS_WITH(without.add({{"y", rows(1)}}, 1, Batch{{"index", at::tensor({1}, at::kLong)}}),
                    ContainsSubstring("'file', which the first batch had, is missing"));
  const PredictedShare with_texts = joined.take(true);
  CHECK(with_texts.texts == std::vector<std::pair<std::string, Texts>>{{"file", {"a", "b", "c"}}});
  CHECK(with_texts.outputs["index"].equal(at::tensor({5, 3, 1}, at::kLong)));
  PredictedBatches own;
  own.add({{"index", rows(2)}, {"file", rows(2)}}, 2, first);
  const PredictedShare of_module = own.take(true);
  CHECK(of_module.texts.empty());
  CHECK(of_module.outputs.size() == 2);
  CHECK(of_module.outputs["index"].equal(rows(2)));

  PredictedBatches none;
  none.add({}, 2);
  CHECK_THROWS_WITH(none.add({{"y", rows(2)}}, 2), ContainsSubstring("the first batch had 'nothing'"));
}

}  // namespace predictions_test
