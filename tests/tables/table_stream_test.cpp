#include "columns/table_stream.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "fulgur/core/text/errors.h"
#include "fulgur/data/iterable_loader.h"
#include "fulgur/tables/table_data_module.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace table_stream_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;

namespace {

std::string numbered(int64_t begin, int64_t end) {
  std::string text = "id,kind,y\n";
  for (int64_t i = begin; i < end; ++i)
    text += std::to_string(i) + (i % 2 ? ",odd," : ",even,") + std::to_string(2 * i) + "\n";
  return text;
}

/// 500 rows in two files, with their numbers as they are.
struct Stream {
  TemporaryFolder folder;
  TableDataModule::Options options;
  Stream() {
    write_text(folder / "1.csv", numbered(0, 300));
    write_text(folder / "2.csv", numbered(300, 500));
    options.paths = {folder / "1.csv", folder / "2.csv"};
    options.target = {"y"};
    options.standardize = false;
    options.stream = true;
    options.shuffle_buffer = 64;
    options.batch_size = 10;
    options.loading.num_workers = int64_t{0};
    options.split = {.val_fraction = 0.2, .test_fraction = 0.1};
  }
  std::unique_ptr<TableDataModule> made() const {
    auto data = std::make_unique<TableDataModule>(options);
    data->setup(TrainerFn::fit);
    return data;
  }
};

void add_ids(const Batch& batch, std::vector<int64_t>& ids) {
  const Tensor column = batch["numbers"].select(1, 0).contiguous();
  for (int64_t i = 0; i < column.numel(); ++i) ids.push_back(std::lround(column.const_data_ptr<float>()[i]));
  CHECK(at::equal(batch["target"], batch["numbers"].select(1, 0) * 2));
}

std::vector<int64_t> ids_of(Loader& loader, int64_t epoch = 0) {
  loader.start_epoch(epoch);
  std::vector<int64_t> ids;
  for (Batch batch; loader.next(batch);) add_ids(batch, ids);
  return ids;
}

std::shared_ptr<Loader> loader_of(TableDataModule& data, RunningStage stage, int64_t rank = 0, int64_t world = 1,
                                  uint64_t seed = 5) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(seed, rank, world);
  return loaders[0];
}

std::set<int64_t> as_set(const std::vector<int64_t>& ids) {
  const std::set<int64_t> set(ids.begin(), ids.end());
  CHECK(set.size() == ids.size());
  return set;
}

int64_t peak_memory_kb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  return -1;
}

}  // namespace

TEST_CASE("a stream has each row of its part once per epoch, in an order of seed and epoch") {
  const Stream stream;
  const auto data = stream.made();
  const auto train = loader_of(*data, RunningStage::train);
  const auto first = ids_of(*train), second = ids_of(*train, 1);
  const auto val = ids_of(*loader_of(*data, RunningStage::validate)),
             test = ids_of(*loader_of(*data, RunningStage::test));
  std::set<int64_t> all = as_set(first);
  CHECK(all == as_set(second));
  CHECK(first != second);
  CHECK(first == ids_of(*train));
  CHECK(first != ids_of(*loader_of(*data, RunningStage::train, 0, 1, 6)));
  all.merge(as_set(val));
  all.merge(as_set(test));
  CHECK(all.size() == 500);
  CHECK(first.size() + val.size() + test.size() == 500);
  // The parts are near their fractions, and evaluation has the order of the files.
  CHECK(std::abs(static_cast<double>(val.size()) - 100) < 40);
  CHECK(std::abs(static_cast<double>(test.size()) - 50) < 30);
  CHECK(std::ranges::is_sorted(val));
  CHECK_FALSE(std::ranges::is_sorted(first));
  // Rows are shuffled inside a buffer.
  CHECK(*std::max_element(first.begin(), first.begin() + 64) < 200);
}

TEST_CASE("a stream knows how many samples it has, and predict the rows of the file") {
  const Stream stream;
  const auto data = stream.made();
  for (const RunningStage stage : {RunningStage::train, RunningStage::validate, RunningStage::test})
    for (const int64_t rank : {0, 1, 2}) {
      const auto loader = loader_of(*data, stage, rank, 3);
      CHECK(loader->samples() == static_cast<int64_t>(ids_of(*loader).size()));
    }
  const auto predict = loader_of(*data, RunningStage::predict, 1, 2);
  predict->start_epoch(0);
  int64_t rows = 0;
  for (Batch batch; predict->next(batch); rows += batch.size())
    CHECK(at::equal(batch["index"].to(at::kFloat), batch["numbers"].select(1, 0)));
  CHECK(rows > 10);
}

TEST_CASE("a shuffle buffer of 1 keeps the order of the files, and folds divide a stream") {
  Stream stream;
  stream.options.shuffle_buffer = 1;
  CHECK(std::ranges::is_sorted(ids_of(*loader_of(*stream.made(), RunningStage::train))));
  std::set<int64_t> validated;
  const auto tested = ids_of(*loader_of(*stream.made(), RunningStage::test));
  for (const char* const fold : {"1/3", "2/3", "3/3"}) {
    stream.options.split.fold = fold;
    const auto data = stream.made();
    for (const int64_t id : ids_of(*loader_of(*data, RunningStage::validate))) CHECK(validated.insert(id).second);
    CHECK(ids_of(*loader_of(*data, RunningStage::test)) == tested);
  }
  CHECK(validated.size() + tested.size() == 500);
}

TEST_CASE("a stream resumes after each batch as if it had not stopped, with and without a thread") {
  for (const int64_t workers : {0, 1}) {
    Stream stream;
    stream.options.loading.num_workers = workers;
    const auto data = stream.made();
    const auto whole = ids_of(*loader_of(*data, RunningStage::train), 2);
    const auto stopped = loader_of(*data, RunningStage::train);
    stopped->start_epoch(2);
    std::vector<int64_t> before;
    for (Batch batch; stopped->next(batch);) {
      add_ids(batch, before);
      const auto resumed = loader_of(*data, RunningStage::train);
      resumed->load_state(stopped->state());
      std::vector<int64_t> ids = before;
      const auto rest = ids_of(*resumed, 2);
      ids.insert(ids.end(), rest.begin(), rest.end());
      if (ids != whole) FAIL("another order after " << before.size() << " rows");
    }
    CHECK(before == whole);
    stream.options.shuffle_buffer = 32;
    const auto other = stream.made();
    const auto refused = loader_of(*other, RunningStage::train);
    stopped->start_epoch(2);
    Batch batch;
    REQUIRE(stopped->next(batch));
    refused->load_state(stopped->state());
    CHECK_THAT(message_of<CheckpointError>([&] { refused->start_epoch(2); }), ContainsSubstring("shuffle_buffer 64"));
  }
}

TEST_CASE("the ranks of a run read disjoint rows of a stream, nearly as many each") {
  const Stream stream;
  const auto data = stream.made();
  const auto alone = as_set(ids_of(*loader_of(*data, RunningStage::train)));
  std::set<int64_t> together;
  size_t least = 1000, most = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto share = ids_of(*loader_of(*data, RunningStage::train, rank, 3));
    least = std::min(least, share.size());
    most = std::max(most, share.size());
    for (const int64_t id : share) CHECK(together.insert(id).second);
  }
  CHECK(together == alone);
  CHECK(most - least <= 1);
}

TEST_CASE("the statistics of a stream are those of its training part, as in memory") {
  Stream stream;
  stream.options.standardize = true;
  const auto data = stream.made();
  const auto loader = loader_of(*data, RunningStage::train);
  loader->start_epoch(0);
  std::vector<Tensor> numbers;
  for (Batch batch; loader->next(batch);) numbers.push_back(batch["numbers"].clone());
  const Tensor all = at::cat(numbers).to(at::kDouble);
  CHECK(std::abs(all.mean().item<double>()) < 1e-6);
  CHECK(std::abs(all.square().mean().item<double>() - 1) < 1e-6);
  CHECK(data->exported_values().at("cardinalities").as_list()[0].as_int() == 3);
}

TEST_CASE("F37: a stream whose files change is an error and no other rows") {
  const Stream stream;
  const auto data = stream.made();
  const auto loader = loader_of(*data, RunningStage::train);
  loader->start_epoch(0);
  Batch batch;
  for (int i = 0; i < 9; ++i) REQUIRE(loader->next(batch));
  const StateTree state = loader->state();
  write_text(stream.folder / "1.csv", numbered(0, 20));
  write_text(stream.folder / "2.csv", numbered(20, 22));
  const auto resumed = loader_of(*data, RunningStage::train);
  resumed->load_state(state);
  CHECK_THROWS_AS(resumed->start_epoch(0), Error);
  std::filesystem::remove(stream.folder / "2.csv");
  CHECK_THROWS_AS(ids_of(*loader_of(*data, RunningStage::train)), DataError);
}

TEST_CASE("a part of a stream that would have no row is an error when it is used") {
  Stream stream;
  write_text(stream.folder / "1.csv", numbered(0, 4));
  stream.options.paths = {stream.folder / "1.csv"};
  stream.options.split = {.val_fraction = 1e-9, .test_fraction = 0};
  const auto data = stream.made();
  CHECK(ids_of(*loader_of(*data, RunningStage::train)).size() == 4);
  CHECK(data->loaders(RunningStage::test).empty());
  CHECK_THAT(message_of<DataError>([&] { static_cast<void>(data->loaders(RunningStage::validate)); }),
             ContainsSubstring("the part for validation has none of 4"));
}

TEST_CASE("F37: a stream is not resumed with other files of the same sizes, or in another order") {
  Stream stream;
  write_text(stream.folder / "2.csv", numbered(300, 600));
  const auto state_of = [&] {
    const auto loader = loader_of(*stream.made(), RunningStage::train);
    loader->start_epoch(0);
    Batch batch;
    for (int i = 0; i < 3; ++i) REQUIRE(loader->next(batch));
    return loader->state();
  };
  const StateTree state = state_of();
  const auto resume = [&] {
    const auto resumed = loader_of(*stream.made(), RunningStage::train);
    resumed->load_state(state);
    resumed->start_epoch(0);
  };
  CHECK_NOTHROW(resume());
  std::swap(stream.options.paths[0], stream.options.paths[1]);
  CHECK_THAT(message_of<CheckpointError>(resume),
             ContainsSubstring("[tables.stream]") && ContainsSubstring("their order must not change"));
  std::swap(stream.options.paths[0], stream.options.paths[1]);
  std::string text = numbered(300, 600);
  text.at(text.size() - 2) = '7';  // 1198 becomes 1197
  write_text(stream.folder / "2.csv", text);
  CHECK_THAT(message_of<CheckpointError>(resume), ContainsSubstring("1.csv"));
  // The same contents, written again.
  write_text(stream.folder / "2.csv", numbered(300, 600));
  CHECK_NOTHROW(resume());
}

TEST_CASE("a stream needs the memory of its buffer, however long the files are") {
  const TemporaryFolder folder;
  const auto read_rows = [&](int64_t rows) {
    {
      std::ofstream file(folder / "long.csv", std::ios::binary);
      file << "a,b,c,d,kind,y\n";
      for (int64_t i = 0; i < rows; ++i)
        file << i % 977 << ".125," << i % 1009 << ".5," << i % 31 << ',' << i % 7 << ".0625,kind" << i % 5 << ','
             << i % 100 << '\n';
    }
    TableDataModule::Options options;
    options.paths = {folder / "long.csv"};
    options.target = {"y"};
    options.stream = true;
    options.shuffle_buffer = 4096;
    options.batch_size = 1024;
    options.split.val_fraction = options.split.test_fraction = 0;
    TableDataModule data(options);
    data.setup(TrainerFn::fit);
    const auto loader = loader_of(data, RunningStage::train);
    loader->start_epoch(0);
    int64_t found = 0;
    for (Batch batch; loader->next(batch);) found += batch.size();
    CHECK(found == rows);
  };
  // The first time, code is loaded and buffers are made.
  read_rows(60000);
  const int64_t before = peak_memory_kb();
  read_rows(600000);
  // As tensors the table has 16.8 MB, as a file 19 MB: neither is in memory.
  CHECK(std::filesystem::file_size(folder / "long.csv") > 16'000'000);
  REQUIRE(before > 0);
  CHECK(peak_memory_kb() - before < 4096);
}

}  // namespace table_stream_test
