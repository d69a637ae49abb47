// F38 and F39: data that is changed, deleted or slow while a run reads it.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include "data_support.h"
#include "file_dataset.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/data/data_loader.h"
#include "fulgur/data/iterable_loader.h"
#include "fulgur/data/mnist.h"
#include "idx_files.h"
#include "support/expect_error.h"

namespace changing_data_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

Tensor all_bytes(Loader& loader) {
  std::vector<Tensor> parts;
  Batch batch;
  while (loader.next(batch)) parts.push_back(batch[0].clone());
  return at::cat(parts);
}

/// The DataError of `next`, whose exit code is checked.
std::string data_error_of_next(Loader& loader) {
  Batch batch;
  try {
    loader.next(batch);
  } catch (const DataError& error) {
    CHECK(static_cast<int>(error.code()) == 3);
    return error.what();
  }
  FAIL("nothing was thrown");
  return {};
}

/// One batch ahead, so that the files after it are still to be read.
DataLoaderOptions in_pairs(int64_t workers) {
  return {.batch_size = 2, .name = "train", .num_workers = workers, .prefetch_factor = 1};
}

}  // namespace

TEST_CASE("F38: what is done to idx files after setup does not reach the run, F39: nor that they are deleted") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  MnistDataModule::Options options;
  options.data_dir = folder.path();
  options.batch_size = 8;
  options.val_size = 6;
  MnistDataModule whole(options), data(options);
  whole.setup(TrainerFn::fit);
  data.setup(TrainerFn::fit);
  const auto expected = whole.loaders(RunningStage::train).at(0), loader = data.loaders(RunningStage::train).at(0);
  expected->start_epoch(0);
  const Tensor images = all_bytes(*expected);
  loader->start_epoch(0);
  Batch batch;
  REQUIRE(loader->next(batch));
  std::vector<Tensor> seen = {batch[0].clone()};
  write_text(folder / "train-images-idx3-ubyte", idx_text({30, 4, 3}, std::string(360, '\7')));
  REQUIRE(loader->next(batch));
  seen.push_back(batch[0].clone());
  for (const auto& entry : fs::directory_iterator(folder.path())) fs::remove(entry);
  seen.push_back(all_bytes(*loader));
  CHECK(at::equal(at::cat(seen), images));
  loader->start_epoch(0);
  CHECK(at::equal(all_bytes(*loader), images));

  // What was not read yet is missed, by name.
  const std::string missing = message_of<DataError>([&] { data.setup(TrainerFn::test); });
  CHECK_THAT(missing, ContainsSubstring(folder.path().string()) && ContainsSubstring("t10k-images-idx3-ubyte"));
}

TEST_CASE("F38: idx files that are other ones when the next part is read are found by size and label") {
  const TemporaryFolder folder;
  write_small_mnist(folder.path(), 30, 12);
  MnistDataModule::Options options;
  options.data_dir = folder.path();
  options.val_size = 6;
  MnistDataModule data(options);
  data.setup(TrainerFn::fit);
  write_text(folder / "t10k-labels-idx1-ubyte", idx_text({12}, std::string(11, '\3') + '\12'));
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::test); }),
             ContainsSubstring("got 10 at index 11") && ContainsSubstring("t10k-labels-idx1-ubyte"));
  write_small_mnist(folder.path(), 30, 12);
  data.setup(TrainerFn::test);
  CHECK(data.loaders(RunningStage::test).at(0)->samples() == 12);
}

TEST_CASE("F38: a file that has another size when it is read again is named by sample, with both shapes") {
  for (const int64_t workers : {0, 2}) {
    const TemporaryFolder folder;
    write_files(folder.path(), 8);
    DataLoader loader(std::make_shared<FileDataset>(folder.path(), 8), in_pairs(workers));
    CHECK((loader.start_epoch(0), all_bytes(loader)).numel() == 32);
    write_text(folder / file_name(5), "short");
    loader.start_epoch(1);
    Batch batch;
    REQUIRE(loader.next(batch));
    REQUIRE(loader.next(batch));
    CHECK_THAT(data_error_of_next(loader),
               ContainsSubstring("sample 5") && ContainsSubstring("[5]") && ContainsSubstring("[4]"));
    CHECK(loader.state().at("batches").as_int() == 2);
  }
}

TEST_CASE("F39: a file that is deleted during the run is named, and the run can continue once it is back") {
  for (const int64_t workers : {0, 2}) {
    const TemporaryFolder folder;
    write_files(folder.path(), 8);
    DataLoader loader(std::make_shared<FileDataset>(folder.path(), 8), in_pairs(workers));
    loader.start_epoch(0);
    Batch batch;
    // Two workers have read up to sample 5 at most.
    REQUIRE(loader.next(batch));
    fs::remove(folder / file_name(7));
    REQUIRE(loader.next(batch));
    REQUIRE(loader.next(batch));
    const std::string message = data_error_of_next(loader);
    CHECK_THAT(message, ContainsSubstring((folder / file_name(7)).string()) &&
                            ContainsSubstring("sample 7 could not be read") && ContainsSubstring("No such file"));
    CHECK(loader.state().at("batches").as_int() == 3);
    write_files(folder.path(), 8);
    REQUIRE(loader.next(batch));
    CHECK(batch[0][1][0].item<int64_t>() == 7);
  }
}

TEST_CASE("F39: a data folder that is gone is reported at the first sample that is read of it") {
  for (const int64_t workers : {0, 2}) {
    const TemporaryFolder folder;
    DataLoader loader(std::make_shared<FileDataset>(folder / "gone", 8), in_pairs(workers));
    try {
      loader.start_epoch(0);
      FAIL("nothing was thrown");
    } catch (const DataError& error) {
      CHECK(static_cast<int>(error.code()) == 3);
      CHECK_THAT(error.what(), ContainsSubstring((folder / "gone").string()) && ContainsSubstring("sample 0"));
      CHECK_THROWS_AS(std::rethrow_if_nested(error), fs::filesystem_error);
    }
  }
}

TEST_CASE("F39: a stream whose file is deleted during the run ends with path and batch, in order") {
  for (const int64_t workers : {0, 1}) {
    const TemporaryFolder folder;
    write_files(folder.path(), 6);
    fs::remove(folder / file_name(4));
    IterableLoader loader(std::make_shared<FileStream>(folder.path(), 6),
                          {.batch_size = 2, .name = "train", .num_workers = workers});
    loader.start_epoch(0);
    Batch batch;
    REQUIRE(loader.next(batch));
    REQUIRE(loader.next(batch));
    CHECK_THAT(data_error_of_next(loader),
               ContainsSubstring((folder / file_name(4)).string()) && ContainsSubstring("batch 2 of the train set"));
    CHECK(loader.state().at("batches").as_int() == 2);
    write_files(folder.path(), 6);
    REQUIRE(loader.next(batch));
    CHECK(batch[0][0][0].item<int64_t>() == 4);
  }
}

TEST_CASE("F39: slow reading is warned about and continues, also without workers") {
  const auto epoch_with = [](double slow_after_s, bool stream) {
    LogLines lines;
    const TemporaryFolder folder;
    write_files(folder.path(), 6);
    std::unique_ptr<Loader> loader;
    if (stream)
      loader = std::make_unique<IterableLoader>(
          std::make_shared<FileStream>(folder.path(), 6),
          IterableLoaderOptions{.batch_size = 2, .name = "train", .slow_after_s = slow_after_s});
    else
      loader = std::make_unique<DataLoader>(
          std::make_shared<FileDataset>(folder.path(), 6),
          DataLoaderOptions{.batch_size = 2, .name = "train", .slow_after_s = slow_after_s});
    loader->start_epoch(0);
    CHECK(all_bytes(*loader).size(0) == 6);
    return lines.text();
  };
  for (const bool stream : {false, true}) {
    // Whatever the machine: each batch takes longer than that, and none longer than this.
    CHECK_THAT(epoch_with(1e-12, stream), ContainsSubstring("data.slow_batch") &&
                                              ContainsSubstring("batch of the train set took") &&
                                              ContainsSubstring(stream ? "batch 0 of epoch 0" : "samples 0, 1"));
    CHECK(epoch_with(1e6, stream).empty());
    CHECK(epoch_with(0, stream).empty());
  }
}

TEST_CASE("F39: a stream that is slow on its thread is warned about with what is waited for, and not given up") {
  LogLines lines;
  const auto gate = std::make_shared<Gate>();
  struct Slow : FileStream {
    std::shared_ptr<Gate> gate;
    Slow(fs::path folder, std::shared_ptr<Gate> g) : FileStream(std::move(folder), 6), gate(std::move(g)) {}
    std::optional<Batch> next(int64_t count, const SampleContext& context) override {
      gate->pass();
      return FileStream::next(count, context);
    }
  };
  const TemporaryFolder folder;
  write_files(folder.path(), 6);
  IterableLoader loader(std::make_shared<Slow>(folder.path(), gate),
                        {.batch_size = 2, .name = "train", .num_workers = 1, .slow_after_s = 0.01});
  loader.start_epoch(0);
  std::thread opener([&] {
    for (int i = 0; i < 6000 && lines.text().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    gate->open();
  });
  const Tensor bytes = all_bytes(loader);
  opener.join();
  CHECK(bytes.size(0) == 6);
  CHECK_THAT(lines.text(), ContainsSubstring("data.slow_batch") &&
                               ContainsSubstring("waiting for a batch of the train set") &&
                               ContainsSubstring("batch 0, being read for"));
}

}  // namespace changing_data_test
