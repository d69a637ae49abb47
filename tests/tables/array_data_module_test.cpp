#include "fulgur/tables/array_data_module.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <catch2/generators/catch_generators.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "arrays/array_file.h"
#include "arrays/npy_header.h"
#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/shown_lines.h"
#include "support/temporary_folder.h"

namespace array_data_module_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using tables::ArraySource;
using tables::read_array;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;

namespace {

std::string fixture(const std::string& name) {
  return (std::filesystem::path(__FILE__).parent_path() / "fixtures" / name).string();
}

Tensor read(const std::string& name, bool memory_map = true) {
  return read_array(ArraySource::from(fixture(name)), memory_map);
}

/// A .npy file of version 1 with this dict and these bytes of values.
std::string npy(std::string dict, const std::string& values) {
  dict += '\n';
  std::string text = "\x93NUMPY";
  text += {'\1', '\0', static_cast<char>(dict.size() % 256), static_cast<char>(dict.size() / 256)};
  return text + dict + values;
}

ArrayDataModule::Options options_of(const std::string& input, const std::string& target) {
  ArrayDataModule::Options options;
  options.train = {.input = fixture(input), .target = fixture(target)};
  options.batch_size = 4;
  return options;
}

Batch whole(DataModule& data, RunningStage stage) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(1, 0, 1);
  loaders[0]->start_epoch(0);
  std::vector<Tensor> inputs, targets;
  for (Batch batch; loaders[0]->next(batch);) {
    inputs.push_back(batch["input"].clone());
    if (batch.contains("target")) targets.push_back(batch["target"].clone());
  }
  Batch all{{"input", at::cat(inputs)}};
  if (!targets.empty()) all.add("target", at::cat(targets));
  return all;
}

std::unique_ptr<ArrayDataModule> made(const ArrayDataModule::Options& options) {
  auto data = std::make_unique<ArrayDataModule>(options);
  data->setup(TrainerFn::fit);
  return data;
}

}  // namespace

TEST_CASE("arrays of NumPy have the values that NumPy wrote") {
  std::ifstream file(fixture("values.json"));
  const auto values = nlohmann::json::parse(file);
  REQUIRE(values.size() == 14);
  for (const auto& [name, expected] : values.items())
    for (const bool memory_map : {true, false}) {
      CAPTURE(name);
      const Tensor found = read(name, memory_map);
      CHECK(found.is_contiguous());
      CHECK(found.sizes().vec() == expected.at("shape").get<std::vector<int64_t>>());
      CHECK(at::equal(found.to(at::kDouble).reshape(-1),
                      at::tensor(expected.at("values").get<std::vector<double>>(), at::kDouble)));
    }
  const auto dtype = [](const std::string& name) { return read("dtypes.npz:" + name).scalar_type(); };
  CHECK(dtype("bool") == at::kBool);
  CHECK(dtype("int8") == at::kChar);
  CHECK(dtype("uint8") == at::kByte);
  CHECK(dtype("int16") == at::kShort);
  CHECK(dtype("uint16") == at::kInt);
  CHECK(dtype("uint32") == at::kLong);
  CHECK(dtype("uint64") == at::kLong);
  CHECK(dtype("float16") == at::kHalf);
  CHECK(dtype("float64") == at::kDouble);
  CHECK(read("scalar.npy").item<float>() == 3.5F);
  CHECK(read("nothing.npy").sizes() == at::IntArrayRef({0, 3}));
}

TEST_CASE("stored and compressed archives and safetensors have the same arrays") {
  const Tensor x = read("x.npy"), y = read("y.npy");
  for (const std::string name : {"stored.npz", "deflated.npz", "pair.safetensors"}) {
    CHECK(at::equal(read(name + ":x").to(at::kFloat), x));
    CHECK(at::equal(read(name + ":y").to(at::kLong), y.to(at::kLong)));
    CHECK_THAT(message_of<DataError>([&] { read(name + ":xx"); }),
               ContainsSubstring("'xx'") && (ContainsSubstring("It has x, y") || ContainsSubstring("It has y, x")));
  }
}

TEST_CASE("masks become int64, and sets may have other dtypes that batches do not keep") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& values) {
    write_text(folder / name,
               npy("{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (" + shape + "), }", values));
    return (folder / name).string();
  };
  ArrayDataModule::Options options;
  options.train = {.input = write("x.npy", "|u1", "2, 1, 1, 2", {1, 2, 3, 4}),
                   .target = write("m.npy", "|u1", "2, 1, 2", {0, 1, 1, 0})};
  const std::string doubles("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40", 16);  // 1.0, 2.0
  const std::string whole_numbers("\1\0\0\0\0\0\0\0", 8);                   // 1, 0
  options.test = {.input = write("tx.npy", "<f8", "1, 1, 1, 2", doubles),
                  .target = write("tm.npy", "<i4", "1, 1, 2", whole_numbers)};
  options.split.val_fraction = 0;
  options.shuffle = false;
  options.memory_map = GENERATE(true, false);
  const auto data = made(options);
  const Batch train = whole(*data, RunningStage::train), test = whole(*data, RunningStage::test);
  CHECK(train["input"].scalar_type() == at::kFloat);
  CHECK(at::equal(train["target"], at::tensor({0, 1, 1, 0}, at::kLong).view({2, 1, 2})));
  CHECK(at::equal(test["input"].flatten(), at::tensor({1.0F, 2.0F})));
  CHECK(at::equal(test["target"].flatten(), at::tensor({1, 0}, at::kLong)));
  options.float_input = false;
  CHECK_THAT(message_of<DataError>([&] { made(options); }),
             ContainsSubstring("'input' of test is Double") && ContainsSubstring("set float_input: true"));
}

TEST_CASE("a write into a mapped array does not reach the file") {
  const TemporaryFolder folder;
  std::filesystem::copy_file(fixture("x.npy"), folder / "x.npy");
  const std::string before = test::read_text(folder / "x.npy");
  const Tensor mapped = read_array(ArraySource::from((folder / "x.npy").string()), true);
  mapped.fill_(7);
  CHECK(test::read_text(folder / "x.npy") == before);
}

TEST_CASE("F37: arrays that are damaged or of other dtypes are named") {
  for (const auto& [name, why] : {std::pair("big_endian.npy", "dtype '>i4'"),
                                  {"complex.npy", "dtype '<c8'"},
                                  {"fields.npy", "structured array"},
                                  {"huge_unsigned.npy", "2^63 or more"}})
    CHECK_THAT(message_of<DataError>([&, file = std::string(name)] { read(file); }),
               ContainsSubstring(name) && ContainsSubstring(why));
  const auto error = [](const std::string& bytes) {
    return message_of<DataError>([&] { tables::read_npy_header(bytes, "it"); });
  };
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  CHECK(tables::read_npy_header(npy(dict, "12345678"), "it").shape == std::vector<int64_t>{2});
  CHECK_THAT(error(""), ContainsSubstring("it is no array in NumPy's format"));
  CHECK_THAT(error(npy(dict, "1234567")), ContainsSubstring("must have 8 bytes of values by its shape; it has 7"));
  CHECK_THAT(error(npy(dict, "123456789")), ContainsSubstring("it has 9"));
  CHECK_THAT(error(npy(dict, "").substr(0, 20)), ContainsSubstring("truncated"));
  CHECK_THAT(error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 16), }", "")),
             ContainsSubstring("2^63"));
  CHECK_THAT(error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4), }", "")),
             ContainsSubstring("2^63"));
  CHECK(tables::read_npy_header(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 0, 4), }", ""), "it")
            .count() == 0);
  CHECK_THAT(error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "")),
             ContainsSubstring("no number"));
  CHECK_THAT(error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "")),
             ContainsSubstring("no number"));
  CHECK_THAT(error(npy("{'descr': '<f4', 'fortran_order': 1, 'shape': (1,), }", "")),
             ContainsSubstring("fortran_order"));
  CHECK_THAT(error(npy("{'descr': '<f4', 'shape': (1,), }", "")),
             ContainsSubstring("without descr, fortran_order or shape"));
  CHECK_THAT(error(npy("{'descr': '<f4', 'descr': '<f4', 'shape': (1,), }", "")),
             ContainsSubstring("unknown key, or one twice"));
  CHECK_THAT(error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", "")),
             ContainsSubstring("text after"));
  CHECK_THAT(error(npy("{'descr': '<f4", "")), ContainsSubstring("no end"));
  CHECK_THAT(error(npy("{'descr': '<f3', 'fortran_order': False, 'shape': (1,), }", "")), ContainsSubstring("'<f3'"));
  CHECK_THAT(error(npy("{'descr': '<f1', 'fortran_order': False, 'shape': (1,), }", "")), ContainsSubstring("'<f1'"));
  std::string version = npy(dict, "12345678");
  version[6] = 9;
  CHECK_THAT(error(version), ContainsSubstring("version 9"));
  // Each beginning of a file is refused, and nothing else happens.
  const std::string good = npy(dict, "12345678");
  for (size_t i = 0; i < good.size(); ++i) CHECK_THROWS_AS(tables::read_npy_header(good.substr(0, i), "it"), DataError);

  const TemporaryFolder folder;
  const auto file_error = [&](const std::string& name) {
    return message_of<DataError>([&] { read_array(ArraySource::from((folder / name).string()), true); });
  };
  CHECK_THAT(file_error("none.npy"), ContainsSubstring("No such file"));
  write_text(folder / "empty.npy", "");
  CHECK_THAT(file_error("empty.npy"), ContainsSubstring("no array in NumPy's format"));
  write_text(folder / "bad.npz", test::read_text(fixture("deflated.npz")).substr(0, 300));
  CHECK_THAT(file_error("bad.npz:x"), ContainsSubstring("bad.npz") && ContainsSubstring("tables.npz"));
  std::string flipped = test::read_text(fixture("stored.npz"));
  flipped[200] = static_cast<char>(flipped[200] ^ 1);
  write_text(folder / "flipped.npz", flipped);
  CHECK_THAT(file_error("flipped.npz:x"), ContainsSubstring("flipped.npz"));
  for (const char* const text : {"x.txt", "x.npz", "x.npz:", "x.safetensors", ""})
    CHECK_THAT(message_of<ConfigError>([&] { ArraySource::from(text); }), ContainsSubstring("FILE.npz:NAME"));
}

TEST_CASE("arrays are divided into parts with each label in its share") {
  auto options = options_of("x.npy", "y.npy");
  options.split = {.val_fraction = 0.2, .test_fraction = 0.2};
  const auto data = made(options);
  std::set<float> seen;
  for (const auto& [stage, count] :
       {std::pair(RunningStage::train, 12), {RunningStage::validate, 4}, {RunningStage::test, 4}}) {
    const Batch part = whole(*data, stage);
    REQUIRE(part["input"].sizes() == at::IntArrayRef({count, 3}));
    CHECK(part["input"].scalar_type() == at::kFloat);
    CHECK(part["target"].scalar_type() == at::kLong);
    for (int64_t label = 0; label < 4; ++label) CHECK(part["target"].eq(label).sum().item<int64_t>() == count / 4);
    // Row i of x begins with 3 i, and its label is i modulo 4.
    CHECK(at::equal(part["input"].select(1, 0).to(at::kLong).div(3, "trunc").remainder(4), part["target"]));
    for (int64_t i = 0; i < count; ++i) seen.insert(part["input"][i][0].item<float>());
  }
  CHECK(seen.size() == 20);
  CHECK(data->exported_values().at("num_classes").as_int() == 4);
  CHECK(data->exported_values().at("num_features").as_int() == 3);
  CHECK(at::equal(whole(*data, RunningStage::predict)["target"], whole(*data, RunningStage::test)["target"]));
  options.stratify = false;
  options.split.split_seed = 3;
  CHECK_FALSE(
      at::equal(whole(*made(options), RunningStage::validate)["input"], whole(*data, RunningStage::validate)["input"]));
  options.split.fold = "1/2";
  CHECK(whole(*made(options), RunningStage::validate)["input"].size(0) == 8);
}

TEST_CASE("what arrays export follows their targets, and a missing value has a reason") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& values) {
    write_text(folder / name,
               npy("{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (" + shape + "), }", values));
    return (folder / name).string();
  };
  const std::string floats(16 * 4, '\0');
  const std::string x = write("x.npy", "<f4", "4, 2, 2", floats);
  const auto with_target = [&](const std::string& target) {
    ArrayDataModule::Options options;
    options.train = {.input = x, .target = target};
    options.split.val_fraction = options.split.test_fraction = 0;
    return made(options);
  };
  const auto one = with_target(write("one.npy", "<f4", "4,", floats.substr(0, 16)));
  CHECK(one->exported_values().at("task").as_string() == "regression");
  CHECK(one->exported_values().at("num_outputs").as_int() == 1);
  CHECK(one->exported_values().at("num_features").as_int() == 4);
  CHECK(one->exported_values().at("num_inputs").as_int() == 2);
  CHECK_FALSE(one->exported_values().contains("num_classes"));
  CHECK_THAT(
      one->why_not_exported("num_classes"),
      ContainsSubstring("is Float of shape [4], numbers of a regression") && ContainsSubstring("y.astype('int64')"));
  CHECK(one->why_not_exported("other").empty());
  const auto hot = with_target(write("hot.npy", "<f4", "4, 3", floats.substr(0, 48)));
  CHECK(hot->exported_values().at("num_outputs").as_int() == 3);
  CHECK_THAT(hot->why_not_exported("num_classes"), ContainsSubstring("y.argmax(axis=1)"));
  const auto series = with_target(write("series.npy", "<f4", "4, 2, 1", floats.substr(0, 32)));
  CHECK(series->exported_values().at("horizon").as_int() == 2);
  CHECK(series->exported_values().at("num_outputs").as_int() == 1);
  const auto column = with_target(write("column.npy", "|u1", "4, 1", std::string("\0\1\0\1", 4)));
  CHECK_FALSE(column->exported_values().contains("num_classes"));
  CHECK_THAT(column->why_not_exported("num_classes"),
             ContainsSubstring("is Byte of shape [4, 1]") && ContainsSubstring("y.reshape(-1)"));
  CHECK_THAT(with_target("")->why_not_exported("num_classes"), ContainsSubstring("train.target is empty"));
  // Labels that no sample has.
  const std::string gaps = write("gaps.npy", "|u1", "4,", std::string("\1\2\5\2", 4));
  CHECK_THAT(test::shown_lines([&] { (void)with_target(gaps); }),
             ContainsSubstring("so there are 6 classes, but no sample has the label 0, 3, 4."));
  // Bools of one dimension are labels.
  const auto bools = with_target(write("bools.npy", "|b1", "4,", std::string("\0\1\1\0", 4)));
  CHECK(bools->exported_values().at("num_classes").as_int() == 2);
  CHECK(bools->exported_values().at("num_outputs").as_int() == 2);
  CHECK(bools->exported_values().at("task").as_string() == "classification");
  CHECK(whole(*bools, RunningStage::train)["target"].scalar_type() == at::kLong);
}

TEST_CASE("arrays for training that are too few for the fractions are an error only if the verb divides them") {
  const TemporaryFolder folder;
  write_text(folder / "two.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "12345678"));
  ArrayDataModule::Options options;
  options.train.input = options.predict.input = (folder / "two.npy").string();
  ArrayDataModule data(options);
  CHECK_NOTHROW(data.setup(TrainerFn::predict));
  CHECK(whole(data, RunningStage::predict)["input"].size(0) == 2);
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::test); }),
             ContainsSubstring("each part must have a sample"));
  CHECK_THROWS_AS(data.setup(TrainerFn::fit), DataError);
  options.test.input = options.predict.input;
  CHECK_NOTHROW(ArrayDataModule(options).setup(TrainerFn::test));
  CHECK_THROWS_AS(ArrayDataModule(options).setup(TrainerFn::validate), DataError);
}

TEST_CASE("options of arrays have their effects") {
  auto options = options_of("deflated.npz:x", "deflated.npz:y");
  options.train.more = {{"weight", fixture("x.npy")}};
  options.val = options.test = {
      .input = fixture("stored.npz:x"), .target = fixture("stored.npz:y"), .more = {{"weight", fixture("x.npy")}}};
  options.predict = {.input = fixture("stored.npz:x"), .more = {{"weight", fixture("x.npy")}}};
  options.divide_by = 2;
  options.shuffle = false;
  options.memory_map = false;
  const auto data = made(options);
  const Batch train = whole(*data, RunningStage::train);
  CHECK(at::equal(train["input"], at::arange(60, at::kFloat).view({20, 3}) / 2));
  CHECK(whole(*data, RunningStage::validate)["input"].size(0) == 20);
  CHECK_FALSE(whole(*data, RunningStage::predict).contains("target"));
  const auto loader = data->loaders(RunningStage::train)[0];
  loader->configure(1, 0, 1);
  loader->start_epoch(0);
  Batch batch;
  REQUIRE(loader->next(batch));
  CHECK(batch["weight"].sizes() == at::IntArrayRef({4, 3}));
  options.drop_last = true;
  options.batch_size = 7;
  CHECK(made(options)->loaders(RunningStage::train)[0]->size() == 2);
  CHECK(made(options)->loaders(RunningStage::validate)[0]->batch_size() == 7);
  options.eval_batch_size = int64_t{5};
  CHECK(made(options)->loaders(RunningStage::validate)[0]->batch_size() == 5);
  options.divide_by = 1;
  options.float_input = false;
  CHECK(whole(*made(options), RunningStage::train)["input"].scalar_type() == at::kDouble);
  options.shuffle = true;
  options.drop_last = false;
  CHECK_FALSE(at::equal(whole(*made(options), RunningStage::train)["input"], train["input"].to(at::kDouble) * 2));
}

TEST_CASE("arrays and options that do not fit together are named") {
  const auto refused = [](auto change) {
    auto options = options_of("x.npy", "y.npy");
    change(options);
    return message_of<ConfigError>([&] { ArrayDataModule data(options); });
  };
  CHECK_THAT(refused([](auto& o) { o.train = {}; }), ContainsSubstring("train.input"));
  CHECK_THAT(refused([](auto& o) { o.val.target = "y.npy"; }), ContainsSubstring("val.input"));
  CHECK_THAT(refused([](auto& o) {
               o.train.more = {{"input", "x.npy"}};
             }),
             ContainsSubstring("more must not have 'input'"));
  CHECK_THAT(refused([](auto& o) { o.divide_by = 0; }), ContainsSubstring("divide_by"));
  CHECK_THAT(refused([](auto& o) {
               o.divide_by = 2;
               o.float_input = false;
             }),
             ContainsSubstring("float_input is false"));
  CHECK_THAT(refused([](auto& o) {
               o.stratify = true;
               o.train.target.clear();
             }),
             ContainsSubstring("stratify needs labels"));
  const auto error = [](const ArrayDataModule::Options& options) {
    return message_of<DataError>([&] { made(options); });
  };
  CHECK_THAT(error(options_of("x.npy", "version2.npy")), ContainsSubstring("has 20 and") && ContainsSubstring("has 5"));
  CHECK_THAT(error(options_of("scalar.npy", "y.npy")), ContainsSubstring("samples in its first dimension"));
  CHECK_THAT(error(options_of("nothing.npy", "y.npy")), ContainsSubstring("samples in its first dimension"));
  auto other = options_of("x.npy", "y.npy");
  other.val = {.input = fixture("y.npy"), .target = fixture("y.npy")};
  CHECK_THAT(error(other), ContainsSubstring("'input' of val"));
  auto floats = options_of("x.npy", "x.npy");
  floats.stratify = true;
  CHECK_THAT(error(floats), ContainsSubstring("stratify needs labels"));
  CHECK(Registry<DataModule>::instance().find("ArrayDataModule") != nullptr);
}

}  // namespace array_data_module_test
