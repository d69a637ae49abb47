// What TensorBoard shows of pictures, histograms, texts and tables.
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fulgur/loggers/tensorboard_logger.h"
#include "loggers/event_reader.h"
#include "loggers/png_reader.h"
#include "loggers/tensorboard_python.h"
#include "loggers/warnings.h"
#include "media/histogram.h"

namespace tensorboard_media_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

Json texts_at(const std::vector<std::pair<int64_t, std::string>>& texts) {
  Json out = Json::array();
  for (const auto& [step, text] : texts) out.push_back(Json::array({step, Json::array({text})}));
  return out;
}

void check_same(const Json& read, const Json& expected) {
  for (const char* name : {"min", "max", "num", "sum", "sum_squares"})
    CHECK(read[name].get<double>() == Catch::Approx(expected[name].get<double>()).epsilon(1e-12));
  CHECK(read["counts"] == expected["counts"]);
  REQUIRE(read["limits"].size() == expected["limits"].size());
  for (size_t i = 0; i < read["limits"].size(); ++i)
    CHECK(read["limits"][i].get<double>() == Catch::Approx(expected["limits"][i].get<double>()).epsilon(1e-12));
}

}  // namespace

TEST_CASE("TensorBoard reads pictures, texts, tables and hyper-parameters beside scalars") {
  const TemporaryFolder folder;
  TensorBoardLogger::Options options;
  options.prefix = "p";
  TensorBoardLogger logger(options);
  logger.start(folder.path(), std::nullopt);
  logger.log_hyperparams(ConfigNode::map({{"lr", ConfigNode::number(0.5)}}));
  logger.log_metrics({{"loss", 1}}, 3);
  const Tensor gray = at::randint(256, {1, 4, 6}, at::kByte), rgb = at::randint(256, {3, 2, 5}, at::kByte);
  logger.log_media(ImageRecord{"gray", gray}, 3);
  logger.log_media(ImageRecord{"rgb", rgb}, 3);
  logger.log_media(ImageRecord{"rgb", rgb}, 4);
  logger.log_media(TextRecord{"note", "**ü** \xff"}, 5);
  const TableRecord table{"matrix", {"", "a|b"}, {{std::string("x"), int64_t{2}}}};
  logger.log_media(table, 6);
  logger.finalize(RunStatus::success);
  const Json read = tensorboard_reads(folder.path());
  CHECK(read["scalars"]["p-loss"] == Json::parse("[[3, 1.0]]"));
  CHECK(read["hparams"] == Json::parse(R"({"lr": 0.5})"));
  REQUIRE(read["images"]["p-gray"].size() == 1);
  REQUIRE(read["images"]["p-rgb"].size() == 2);
  const Json& one = read["images"]["p-gray"][0];
  CHECK(one[0] == 3);
  CHECK(one[1] == 6);
  CHECK(one[2] == 4);
  CHECK(read_png(from_hex(one[3])).equal(gray));
  CHECK(read_png(from_hex(read["images"]["p-rgb"][1][3])).equal(rgb));
  CHECK(read["served_images"]["p-rgb"] == Json::parse("[[3, 5, 2], [4, 5, 2]]"));
  CHECK(read["texts"]["p-note/text_summary"] == texts_at({{5, "**ü** \xef\xbf\xbd"}}));
  CHECK(read["texts"]["p-matrix/table"] == texts_at({{6, markdown_table(table)}}));
}

TEST_CASE("histograms equal those of torch.utils.tensorboard, as TensorBoard reads them") {
  const TemporaryFolder folder;
  const std::vector<std::vector<double>> all = {
      {0}, {1, 1, 1}, {-1e-13, 1e-13}, {-5, 0, 2.5, 1e-12, -1e-12, 1e19, 1.1e-12}, {-1e-5, -2, -3}};
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  for (size_t i = 0; i < all.size(); ++i) logger.log_media(HistogramRecord{std::to_string(i), at::tensor(all[i])}, 2);
  logger.finalize(RunStatus::success);
  const Json read = tensorboard_reads(folder.path(), Json(all).dump());
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const Json& found = read["histograms"][std::to_string(i)];
    REQUIRE(found.size() == 1);
    CHECK(found[0][0] == 2);
    check_same(found[0][1], read["torch"][i]);
    CHECK(read["served_histograms"][std::to_string(i)].size() == 1);
  }
}

TEST_CASE("a histogram counts each value once, in a bucket that contains it, in every type") {
  const Tensor values = at::randn({600000}).mul_(3);  // more than one block
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kInt, at::kBFloat16}) {
    const Tensor converted = values.to(type);
    const Histogram histogram = histogram_of(converted);
    CHECK(histogram.num == 600000);
    double counted = 0;
    for (const double count : histogram.counts) counted += count;
    CHECK(counted == 600000);
    const Tensor exact = converted.to(at::kDouble);
    CHECK(histogram.min == exact.min().item<double>());
    CHECK(histogram.max == exact.max().item<double>());
    REQUIRE(histogram.limits.size() == histogram.counts.size());
    CHECK(histogram.counts.front() == 0);
    for (size_t i : {size_t{1}, histogram.limits.size() / 2, histogram.limits.size() - 1}) {
      const Tensor in = exact.ge(histogram.limits[i - 1]).logical_and(exact.lt(histogram.limits[i]));
      CHECK(histogram.counts[i] == in.sum().item<double>());
    }
  }
  CHECK(histogram_of(at::tensor({1e30, -1e30})).num == 2);  // beyond the last limits
}

TEST_CASE("values of a histogram that are not finite are left out, with a warning") {
  const TemporaryFolder folder;
  const CollectedWarnings warnings;
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_media(HistogramRecord{"h", at::full({2}, std::nan(""))}, 1);
  CHECK(tags(folder.path()).empty());
  logger.log_media(HistogramRecord{"h", at::tensor({1.0, std::nan("")})}, 1);
  CHECK(tags(folder.path()) == std::vector<std::string>{"h"});
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.nonfinite_histogram"));
}

TEST_CASE("a picture that is larger than the room for waiting events is written") {
  const TemporaryFolder folder;
  TensorBoardLogger logger;
  logger.start(folder.path(), std::nullopt);
  logger.log_media(ImageRecord{"noise", at::randint(256, {3, 2600, 2600}, at::kByte)}, 1);
  logger.finalize(RunStatus::success);
  CHECK(std::filesystem::file_size(event_files(folder.path())[0]) > 17 << 20);
  CHECK(tags(folder.path()) == std::vector<std::string>{"noise"});
}

TEST_CASE("a resumed run truncates media where its checkpoint was made") {
  const TemporaryFolder folder;
  TensorBoardLogger first;
  first.start(folder.path(), std::nullopt);
  first.log_media(TextRecord{"a", "kept"}, 1);
  const StateTree state = first.state();
  first.log_media(TextRecord{"a", "cut"}, 1);
  first.finalize(RunStatus::interrupted);
  TensorBoardLogger second;
  second.load_state(state);
  second.start(folder.path(), 1);
  second.log_media(TextRecord{"a", "again"}, 1);
  second.finalize(RunStatus::success);
  CHECK(tags(folder.path()).size() == 2);
  const Json read = tensorboard_reads(folder.path());
  CHECK(read["texts"]["a/text_summary"] == texts_at({{1, "kept"}, {1, "again"}}));
}

}  // namespace tensorboard_media_test
