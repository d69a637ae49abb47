#include "fulgur/tables/table_data_module.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/text/errors.h"
#include "support/expect_error.h"
#include "support/shown_lines.h"
#include "support/temporary_folder.h"

namespace table_data_module_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
using test::TemporaryFolder;
using test::write_text;
using Task = TableDataModule::Task;
using Blanks = TableDataModule::Blanks;

namespace {

struct Table {
  TemporaryFolder folder;
  TableDataModule::Options options;
  explicit Table(std::string_view text) {
    write_text(folder / "t.csv", text);
    options.paths = {folder / "t.csv"};
    options.target = {"y"};
    options.batch_size = 4;
    options.split.val_fraction = options.split.test_fraction = 0;
  }
  std::unique_ptr<TableDataModule> made() const {
    auto data = std::make_unique<TableDataModule>(options);
    data->setup(TrainerFn::fit);
    return data;
  }
  std::string error() const {
    return message_of<DataError>([&] { made(); });
  }
};

struct Rows {
  Tensor numbers, categories, target;
};

Rows rows_of(DataModule& data, RunningStage stage) {
  const auto loaders = data.loaders(stage);
  REQUIRE(loaders.size() == 1);
  loaders[0]->configure(1, 0, 1);
  loaders[0]->start_epoch(0);
  std::vector<Tensor> numbers, categories, targets;
  for (Batch batch; loaders[0]->next(batch);) {
    numbers.push_back(batch["numbers"].clone());
    categories.push_back(batch["categories"].clone());
    if (batch.contains("target")) targets.push_back(batch["target"].clone());
  }
  return {at::cat(numbers), at::cat(categories), targets.empty() ? Tensor() : at::cat(targets)};
}

/// Rows of the training part in the order of their first number.
Rows sorted_training(DataModule& data) {
  Rows rows = rows_of(data, RunningStage::train);
  const Tensor order = rows.numbers.select(1, 0).argsort(/*stable=*/true);
  return {rows.numbers.index_select(0, order), rows.categories.index_select(0, order),
          rows.target.index_select(0, order)};
}

std::vector<double> doubles(const StateTree& list) {
  std::vector<double> values;
  for (const StateTree& item : list.as_list()) values.push_back(item.as_double());
  return values;
}

/// `rows` rows: an identifier, a colour, and a target.
std::string made_text(int rows, int classes = 0) {
  std::string text = "id,colour,y\n";
  for (int i = 0; i < rows; ++i)
    text += std::to_string(i) + "," + (i % 3 == 0 ? "red" : "blue") + "," +
            (classes > 0 ? "c" + std::to_string(i % classes) : std::to_string(10 * i)) + "\n";
  return text;
}

std::set<int64_t> identifiers(DataModule& data, RunningStage stage) {
  std::set<int64_t> found;
  const Tensor ids = rows_of(data, stage).numbers.select(1, 0).contiguous();
  for (int64_t i = 0; i < ids.numel(); ++i) found.insert(std::lround(ids.const_data_ptr<float>()[i]));
  return found;
}

}  // namespace

TEST_CASE("types of columns are those of their cells, and numbers are standardised") {
  const Table table("a, b ,c,y,note\n1, x ,10,5,\"hello, you\"\n2,NA,NA,7,\n4,w,30,9,hi\n5,x,20,3,hi\n");
  const auto data = table.made();
  const Rows rows = sorted_training(*data);
  REQUIRE(rows.numbers.sizes() == at::IntArrayRef({4, 2}));
  // Column a: mean 3, deviation √2.5. Column c: mean 20, deviation √(200/3), and the blank becomes the mean.
  const double a = std::sqrt(2.5), c = std::sqrt(200.0 / 3);
  CHECK(at::allclose(
      rows.numbers, at::tensor({-2 / a, -10 / c, -1 / a, 0.0, 1 / a, 10 / c, 2 / a, 0.0}).view({4, 2}).to(at::kFloat)));
  // Categories from 1 in the order of their texts: blank, w, x; blank, "hello, you", hi.
  CHECK(at::equal(rows.categories, at::tensor({3, 2, 1, 1, 2, 3, 3, 3}, at::kLong).view({4, 2})));
  CHECK(at::equal(rows.target, at::tensor({5.0F, 7.0F, 9.0F, 3.0F})));
  const StateTree facts = data->exported_values();
  CHECK(facts.at("num_numbers").as_int() == 2);
  CHECK(doubles(facts.at("cardinalities")) == std::vector<double>{4, 4});
  CHECK(facts.at("num_outputs").as_int() == 1);
  CHECK(facts.at("num_classes").as_int() == 0);
  CHECK(facts.at("task").as_string() == "regression");
  CHECK(doubles(facts.at("target_mean")) == std::vector<double>{6});
  CHECK(std::abs(doubles(facts.at("target_std"))[0] - std::sqrt(5.0)) < 1e-12);
  CHECK(data->loaders(RunningStage::validate).empty());
  CHECK(data->loaders(RunningStage::test).empty());
}

TEST_CASE("types may be given, and blanks are filled as the options say") {
  Table table("a,b,when,y\n1,1,1970-01-11,1\n2,,1970-01-12,2\n9,3,1970-01-13,3\n4,8,1970-01-14,4\n");
  table.options.standardize = false;
  table.options.types = {{"a", ColumnType::category}, {"when", ColumnType::datetime}};
  const auto column = [&] { return sorted_training(*table.made()).numbers; };
  table.options.types["b"] = ColumnType::ignore;
  CHECK(at::equal(column(), at::tensor({10.0F, 11.0F, 12.0F, 13.0F}).view({4, 1})));
  CHECK(at::equal(sorted_training(*table.made()).categories, at::tensor({1, 2, 4, 3}, at::kLong).view({4, 1})));
  table.options.types = {{"a", ColumnType::number}, {"when", ColumnType::ignore}};
  table.options.standardize = false;
  table.options.blank_numbers = Blanks::mean;
  CHECK(at::equal(column(), at::tensor({1.0F, 1.0F, 2.0F, 4.0F, 4.0F, 8.0F, 9.0F, 3.0F}).view({4, 2})));
  table.options.blank_numbers = Blanks::median;
  CHECK(at::equal(column().select(1, 1), at::tensor({1.0F, 3.0F, 8.0F, 3.0F})));
  table.options.blank_numbers = Blanks::indicator;
  const auto with_indicator = table.made();
  CHECK(with_indicator->exported_values().at("num_numbers").as_int() == 3);
  CHECK(at::equal(sorted_training(*with_indicator).numbers.narrow(1, 1, 2),
                  at::tensor({1.0F, 0.0F, 4.0F, 1.0F, 8.0F, 0.0F, 3.0F, 0.0F}).view({4, 2})));
  table.options.blank_numbers = Blanks::error;
  CHECK_THAT(table.error(),
             ContainsSubstring("line 3 of") && ContainsSubstring("column 'b'") && ContainsSubstring("blank"));
  // Texts that stand for a blank.
  Table other("a;y\n?;1\n3;2\n");
  other.options.delimiter = ";";
  other.options.standardize = false;
  CHECK(rows_of(*other.made(), RunningStage::train).categories.size(1) == 1);
  other.options.blank_values = {"?"};
  CHECK(at::equal(sorted_training(*other.made()).numbers, at::tensor({3.0F, 3.0F}).view({2, 1})));
}

TEST_CASE("targets of a regression stay in the units of the file") {
  Table table("a,y,z\n1,100,5\n2,300,5\n");
  table.options.target = {"z", "y"};
  const auto data = table.made();
  CHECK(at::equal(sorted_training(*data).target, at::tensor({5.0F, 100.0F, 5.0F, 300.0F}).view({2, 2})));
  CHECK(data->exported_values().at("num_outputs").as_int() == 2);
  // A constant has the deviation 1, so that nothing is divided by 0.
  CHECK(doubles(data->exported_values().at("target_mean")) == std::vector<double>{5, 200});
  CHECK(doubles(data->exported_values().at("target_std")) == std::vector<double>{1, 100});
  table.options.standardize_target = false;
  CHECK(doubles(table.made()->exported_values().at("target_mean")) == std::vector<double>{0, 0});
  CHECK(doubles(table.made()->exported_values().at("target_std")) == std::vector<double>{1, 1});
}

TEST_CASE("classes are numbered by value or by text, and each part has its share of them") {
  Table numbers("a,y\n1,10\n2,9\n3,10\n4,-1\n");
  numbers.options.task = Task::classification;
  const auto data = numbers.made();
  CHECK(at::equal(sorted_training(*data).target, at::tensor({2, 1, 2, 0}, at::kLong)));
  CHECK(data->exported_values().at("num_outputs").as_int() == 3);
  CHECK(data->exported_values().at("num_classes").as_int() == 3);
  CHECK(data->exported_values().at("target_mean").as_list().empty());
  CHECK(data->exported_values().at("classes").as_list()[0].as_string() == "-1");

  Table table(made_text(100, 5));
  table.options.task = Task::classification;
  table.options.split = {.val_fraction = 0.2, .test_fraction = 0.1};
  const auto stratified = table.made();
  for (const auto& [stage, count] :
       {std::pair(RunningStage::validate, 4), {RunningStage::test, 2}, {RunningStage::train, 14}}) {
    const Tensor labels = rows_of(*stratified, stage).target;
    for (int64_t label = 0; label < 5; ++label) CHECK(labels.eq(label).sum().item<int64_t>() == count);
  }
  CHECK(identifiers(*stratified, RunningStage::validate) == identifiers(*table.made(), RunningStage::validate));
  table.options.stratify = false;
  CHECK(rows_of(*table.made(), RunningStage::validate).target.size(0) == 20);
  CHECK_FALSE(at::equal(rows_of(*table.made(), RunningStage::validate).numbers,
                        rows_of(*stratified, RunningStage::validate).numbers));
}

TEST_CASE("numbers that are classes in large numbers are warned about") {
  const auto warnings = [](int rows, int different, const char* text) {
    std::string table = "a,y\n";
    for (int i = 0; i < rows; ++i) table += std::to_string(i) + "," + std::to_string(i % different) + text + "\n";
    Table made(table);
    made.options.task = Task::classification;
    made.options.split = {.val_fraction = 0, .test_fraction = 0};
    return fulgur::test::shown_lines([&] { (void)made.made(); });
  };
  CHECK_THAT(warnings(60, 50, ""),
             ContainsSubstring("the 50 different numbers of column 'y' in 60 rows are its classes") &&
                 ContainsSubstring("data.init_args.task: regression"));
  CHECK_THAT(warnings(100, 25, ".5"), ContainsSubstring("the 25 different numbers"));
  CHECK(warnings(100, 25, "").empty());
  CHECK(warnings(100, 3, ".5").empty());
  CHECK(warnings(60, 50, "km").empty());
}

TEST_CASE("categories that the training part does not have are warned about if most rows of a file have them") {
  const auto warnings = [](const std::string& rows) {
    Table table("a,city,y\n1,Oslo,1\n2,Bergen,2\n3,Oslo,3\n4,Bergen,4\n");
    table.options.split = {.val_fraction = 0, .test_fraction = 0};
    write_text(table.folder / "p.csv", "a,city\n" + rows);
    table.options.predict_paths = {table.folder / "p.csv"};
    return fulgur::test::shown_lines([&] { (void)rows_of(*table.made(), RunningStage::predict); });
  };
  CHECK_THAT(warnings("1,oslo\n2,bergen\n3,Oslo\n"),
             ContainsSubstring("column 'city'") && ContainsSubstring("2 of 3 rows") &&
                 ContainsSubstring("known are Bergen, Oslo") && ContainsSubstring("tables.unknown_categories"));
  CHECK(warnings("1,oslo\n2,Bergen\n3,Oslo\n").empty());
  CHECK(warnings("1,Trondheim\n").empty());
}

TEST_CASE("a column of numbers that becomes a category by a few texts is warned about") {
  const auto warnings = [](int rows, const std::set<int>& texts, const auto& change) {
    std::string table = "a,b,y\n";
    for (int i = 0; i < rows; ++i)
      table += (texts.contains(i) ? "?" : std::to_string(i)) + (i == 0 ? ",," : ",red,") + std::to_string(i) + "\n";
    Table made(table);
    change(made.options);
    return fulgur::test::shown_lines([&] { (void)made.made(); });
  };
  const auto nothing = [](auto&) {};
  const std::string shown = warnings(20, {3, 5}, nothing);
  CHECK_THAT(shown, ContainsSubstring("'a' has 18 numbers and 2 other texts, first '?' in line 5 of '") &&
                        ContainsSubstring("data.init_args.blank_values") &&
                        ContainsSubstring("data.init_args.types: {a: category}") &&
                        ContainsSubstring("tables.mixed_column"));
  CHECK_THAT(warnings(20, {19}, nothing), ContainsSubstring("19 numbers and 1 other text, '?' in line 21"));
  CHECK(warnings(20, {3, 5, 7}, nothing).empty());
  CHECK(warnings(20, {}, nothing).empty());
  CHECK(warnings(20, {3}, [](auto& options) { options.blank_values.emplace_back("?"); }).empty());
  CHECK(warnings(20, {3}, [](auto& options) { options.types["a"] = ColumnType::category; }).empty());
}

TEST_CASE("parts are disjoint, chosen by seed or fold, or have files of their own") {
  Table table(made_text(50));
  table.options.standardize = false;
  table.options.split = {.val_fraction = 0.2, .test_fraction = 0.1};
  const auto data = table.made();
  const auto train = identifiers(*data, RunningStage::train), val = identifiers(*data, RunningStage::validate),
             test = identifiers(*data, RunningStage::test);
  CHECK(train.size() == 35);
  CHECK(val.size() == 10);
  CHECK(test.size() == 5);
  std::set<int64_t> all = train;
  all.insert(val.begin(), val.end());
  all.insert(test.begin(), test.end());
  CHECK(all.size() == 50);
  CHECK(identifiers(*data, RunningStage::predict) == test);
  // Predictions are joined to the rows of the file by their numbers.
  const auto loaders = data->loaders(RunningStage::predict);
  loaders[0]->configure(1, 0, 1);
  loaders[0]->start_epoch(0);
  std::set<int64_t> rows;
  for (Batch batch; loaders[0]->next(batch);)
    for (int64_t i = 0; i < batch.size(); ++i) rows.insert(batch["index"][i].item<int64_t>());
  CHECK(rows == test);
  table.options.split.split_seed = 1;
  CHECK(identifiers(*table.made(), RunningStage::validate) != val);
  table.options.split.fold = "2/3";
  CHECK(identifiers(*table.made(), RunningStage::validate).size() == 15);

  write_text(table.folder / "v.csv", "y,colour,id\n7,green,1000\n");
  write_text(table.folder / "p.csv", "colour,id\nred,2000\nred,2001\n");
  table.options.split.fold = "";
  table.options.val_paths = table.options.test_paths = {table.folder / "v.csv"};
  table.options.predict_paths = {table.folder / "p.csv"};
  const auto files = table.made();
  CHECK(identifiers(*files, RunningStage::train).size() == 50);
  CHECK(identifiers(*files, RunningStage::validate) == std::set<int64_t>{1000});
  CHECK(identifiers(*files, RunningStage::test) == std::set<int64_t>{1000});
  // Green is no category of the training part.
  CHECK(rows_of(*files, RunningStage::validate).categories.item<int64_t>() == 0);
  CHECK(rows_of(*files, RunningStage::validate).target.item<float>() == 7);
  CHECK(identifiers(*files, RunningStage::predict) == std::set<int64_t>{2000, 2001});
  CHECK_FALSE(rows_of(*files, RunningStage::predict).target.defined());
}

TEST_CASE("statistics are those of the training part only") {
  Table table(made_text(40));
  table.options.split = {.val_fraction = 0.5, .test_fraction = 0};
  const auto data = table.made();
  const Tensor numbers = rows_of(*data, RunningStage::train).numbers.to(at::kDouble);
  CHECK(std::abs(numbers.mean().item<double>()) < 1e-6);
  CHECK(std::abs(numbers.square().mean().item<double>() - 1) < 1e-6);
  CHECK(std::abs(rows_of(*data, RunningStage::validate).numbers.mean().item<double>()) > 1e-4);
}

TEST_CASE("the columns of a checkpoint are used for another table, before and after setup") {
  Table table("a,b,y\n1,x,1\n3,z,3\n");
  const auto trained = table.made();
  const StateTree state = trained->state();
  CHECK(doubles(trained->exported_values().at("cardinalities")) == std::vector<double>{3});
  Table other("b,extra,a,y\nz,q,5,7\nw,q,1,9\nz,q,1,9\n");
  other.options.types = {{"extra", ColumnType::ignore}};
  const auto check = [&](TableDataModule& data) {
    const Rows rows = rows_of(data, RunningStage::train);
    CHECK(rows.numbers.sum().item<float>() == 1.0F);  // (5 - 2) / 1 and twice (1 - 2) / 1
    CHECK(rows.categories.eq(2).sum().item<int64_t>() == 2);
    CHECK(rows.categories.eq(0).sum().item<int64_t>() == 1);
    CHECK(doubles(data.exported_values().at("target_mean")) == std::vector<double>{2});
  };
  TableDataModule before(other.options);
  before.load_state(state);
  before.setup(TrainerFn::test);
  check(before);
  TableDataModule after(other.options);
  after.setup(TrainerFn::fit);
  const auto loaders = after.loaders(RunningStage::train);
  after.load_state(state);
  check(after);
  // A loader that existed reads the same tensors.
  loaders[0]->configure(1, 0, 1);
  loaders[0]->start_epoch(0);
  Batch batch;
  REQUIRE(loaders[0]->next(batch));
  CHECK(batch["numbers"].sum().item<float>() == 1.0F);
  // A column that the checkpoint does not know is left out, whatever its cells are.
  other.options.types.clear();
  TableDataModule extra(other.options);
  extra.load_state(state);
  extra.setup(TrainerFn::test);
  check(extra);
  TableDataModule wider(other.options);
  wider.setup(TrainerFn::fit);
  CHECK_THAT(message_of<CheckpointError>([&] { wider.load_state(state); }),
             ContainsSubstring("columns of the checkpoint"));

  const auto refused = [&](auto change) {
    auto options = other.options;
    change(options);
    TableDataModule data(options);
    return message_of<CheckpointError>([&] { data.load_state(state); });
  };
  CHECK_THAT(refused([](auto& o) { o.target = {"extra"}; }),
             ContainsSubstring("target must be that of the checkpoint"));
  CHECK_THAT(refused([](auto& o) { o.task = Task::classification; }), ContainsSubstring("task must be"));
  CHECK_THAT(refused([](auto& o) { o.types["a"] = ColumnType::category; }), ContainsSubstring("'a' is a number"));
  Table lacking("b,y\nz,5\n");
  TableDataModule data(lacking.options);
  data.load_state(state);
  CHECK_THAT(message_of<DataError>([&] { data.setup(TrainerFn::test); }), ContainsSubstring("column 'a'"));
}

TEST_CASE("with the columns of a checkpoint, predict, test and validate read only the files of their stage") {
  Table table("a,b,y\n1,x,1\n3,z,3\n");
  const StateTree state = table.made()->state();
  write_text(table.folder / "new.csv", "b,a\nz,5\nw,1\n");
  write_text(table.folder / "held.csv", "a,b,y\n5,z,7\n");
  std::filesystem::remove(table.folder / "t.csv");
  const auto used = [&](auto change, TrainerFn fn, RunningStage stage, bool stream) {
    auto options = table.options;
    options.stream = stream;
    change(options);
    TableDataModule data(options);
    data.load_state(state);
    data.setup(fn);
    CHECK(data.exported_values().at("num_numbers").as_int() == 1);
    CHECK(data.loaders(RunningStage::train).empty());
    const Rows rows = rows_of(data, stage);
    // Column a has the mean 2 and the deviation 1.
    CHECK(rows.numbers[0][0].item<float>() == 3.0F);
    CHECK(rows.categories[0][0].item<int64_t>() == 2);
    return rows;
  };
  for (const bool stream : {false, true}) {
    INFO(stream);
    const auto new_rows = [&](auto& o) { o.predict_paths = {table.folder / "new.csv"}; };
    CHECK_FALSE(used(new_rows, TrainerFn::predict, RunningStage::predict, stream).target.defined());
    const auto test_rows = [&](auto& o) { o.test_paths = {table.folder / "held.csv"}; };
    CHECK(used(test_rows, TrainerFn::test, RunningStage::test, stream).target.item<float>() == 7.0F);
    used(test_rows, TrainerFn::predict, RunningStage::predict, stream);
    const auto val_rows = [&](auto& o) { o.val_paths = {table.folder / "held.csv"}; };
    used(val_rows, TrainerFn::validate, RunningStage::validate, stream);
    // Files of another stage do not replace those of this one.
    CHECK_THROWS_AS(used(val_rows, TrainerFn::test, RunningStage::test, stream), DataError);
  }
  // Without a checkpoint the training file is needed.
  auto options = table.options;
  options.predict_paths = {table.folder / "new.csv"};
  TableDataModule bare(options);
  CHECK_THAT(message_of<DataError>([&] { bare.setup(TrainerFn::predict); }), ContainsSubstring("t.csv"));
  // A later fit reads what is missing, and its own rows become the training part.
  TableDataModule later(options);
  later.load_state(state);
  later.setup(TrainerFn::predict);
  write_text(table.folder / "t.csv", "a,b,y\n1,x,1\n3,z,3\n");
  later.setup(TrainerFn::fit);
  CHECK(rows_of(later, RunningStage::train).numbers.size(0) == 2);
}

TEST_CASE("F37: cells that cannot be used are named with line and column") {
  Table table("a,y\n1,2\nx3,4\n");
  table.options.types = {{"a", ColumnType::number}};
  CHECK_THAT(table.error(), ContainsSubstring("line 3 of") && ContainsSubstring("t.csv', column 'a'") &&
                                ContainsSubstring("got 'x3'"));
  CHECK_THAT(Table("a,y\n1,2\n3,\n").error(), ContainsSubstring("line 3 of") && ContainsSubstring("column 'y'"));
  CHECK_THAT(Table("a,y\n1,2\n3,x\n").error(), ContainsSubstring("line 3 of") && ContainsSubstring("got 'x'"));
  Table large("a,y\n1e300,2\n3,4\n");
  large.options.standardize = false;
  CHECK_THAT(large.error(), ContainsSubstring("line 2 of") && ContainsSubstring("float32"));
  CHECK_THAT(Table("a,b,y\n1,,2\n2,,3\n").error(), ContainsSubstring("'b' is blank in all rows"));
  CHECK_THAT(Table("a,y\n").error(), ContainsSubstring("only a header"));
  CHECK_THAT(Table("y\n1\n").error(), ContainsSubstring("beside its targets"));
  CHECK_THAT(Table("a,b\n1,2\n").error(), ContainsSubstring("must have the column 'y'"));
  Table missing("a,y\n1,2\n");
  missing.options.types = {{"aa", ColumnType::number}};
  CHECK_THAT(missing.error(), ContainsSubstring("must have the column 'aa'"));
  Table classes("a,y\n1,c\n2,\n");
  classes.options.task = Task::classification;
  CHECK_THAT(classes.error(), ContainsSubstring("line 3 of") && ContainsSubstring("must not be blank"));
  Table single("a,y\n1,c\n2,c\n");
  single.options.task = Task::classification;
  CHECK_THAT(single.error(), ContainsSubstring("must have two classes"));
  Table twice("a,y\n1,0\n2,1\n3,1.0\n");
  twice.options.task = Task::classification;
  CHECK_THAT(twice.error(), ContainsSubstring("column 'y' has '1' and '1.0', which would be two classes"));
  Table unknown("a,y\n1,c\n2,d\n");
  unknown.options.task = Task::classification;
  write_text(unknown.folder / "v.csv", "a,y\n1,e\n");
  unknown.options.val_paths = {unknown.folder / "v.csv"};
  CHECK_THAT(unknown.error(), ContainsSubstring("v.csv") && ContainsSubstring("classes, c, d; got 'e'"));
}

TEST_CASE("options of a table that contradict each other are named") {
  const Table table("a,y\n1,2\n3,4\n");
  const auto error = [&](auto change) {
    auto options = table.options;
    change(options);
    return message_of<ConfigError>([&] { TableDataModule data(options); });
  };
  CHECK_THAT(error([](auto& o) { o.paths.clear(); }), ContainsSubstring("paths"));
  CHECK_THAT(error([](auto& o) { o.target.clear(); }), ContainsSubstring("target"));
  CHECK_THAT(error([](auto& o) {
               o.task = Task::classification;
               o.target = {"y", "a"};
             }),
             ContainsSubstring("one target column"));
  CHECK_THAT(error([](auto& o) { o.target = {"y", "y"}; }), ContainsSubstring("once"));
  CHECK_THAT(error([](auto& o) { o.types["y"] = ColumnType::number; }), ContainsSubstring("must not name a target"));
  for (const char* const bad : {"", ",,", "\"", "\n"})
    CHECK_THAT(error([&](auto& o) { o.delimiter = bad; }), ContainsSubstring("delimiter must be one ASCII character"));
  CHECK_THAT(error([](auto& o) { o.stratify = true; }), ContainsSubstring("task is regression"));
  CHECK_THAT(error([](auto& o) { o.split.fold = "3/2"; }), ContainsSubstring("fold must be K/N"));
  CHECK_THAT(error([](auto& o) { o.split = {.val_fraction = 0.5, .test_fraction = 0.5}; }),
             ContainsSubstring("train on"));
  CHECK_THAT(error([](auto& o) {
               o.split.fold = "1/2";
               o.val_paths = o.paths;
             }),
             ContainsSubstring("val_paths"));
  CHECK_THAT(error([](auto& o) {
               o.stream = true;
               o.blank_numbers = Blanks::median;
             }),
             ContainsSubstring("median"));
  CHECK_THAT(error([](auto& o) {
               o.stream = true;
               o.loading.num_workers = int64_t{2};
             }),
             ContainsSubstring("num_workers must be 0 or 1"));
  CHECK_THAT(error([](auto& o) {
               o.stream = true;
               o.task = Task::classification;
               o.stratify = true;
             }),
             ContainsSubstring("stratify needs all classes in memory"));
  CHECK(Registry<DataModule>::instance().find("TableDataModule") != nullptr);
}

TEST_CASE("a table has the values that pandas and scikit-learn make of it") {
  const auto folder = std::filesystem::path(__FILE__).parent_path() / "fixtures";
  std::ifstream file(folder / "table.json");
  const auto expected = nlohmann::json::parse(file);
  const auto values = [&](const char* name) {
    return at::tensor(expected.at(name).get<std::vector<double>>(), at::kDouble);
  };
  TableDataModule::Options options;
  options.paths = {folder / "table.csv"};
  options.target = {"price"};
  options.split.val_fraction = options.split.test_fraction = 0;
  const auto read = [&] {
    TableDataModule data(options);
    data.setup(TrainerFn::fit);
    // The first number of each row is its number, so this is the order of the file.
    return sorted_training(data);
  };
  for (const auto& [blanks, name] : {std::pair(Blanks::mean, "mean"), {Blanks::median, "median"}}) {
    options.blank_numbers = blanks;
    CHECK(at::allclose(read().numbers.to(at::kDouble).flatten(), values(name), 1e-6, 1e-6));
  }
  CHECK(at::equal(read().categories.to(at::kDouble).flatten(), values("categories")));
  CHECK(at::allclose(read().target.to(at::kDouble), values("price"), 1e-6));
  TableDataModule data(options);
  data.setup(TrainerFn::fit);
  const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); };
  CHECK(near(doubles(data.exported_values().at("target_mean"))[0], expected.at("price_mean")));
  CHECK(near(doubles(data.exported_values().at("target_std"))[0], expected.at("price_std")));
  options.target = {"kind"};
  options.task = Task::classification;
  CHECK(at::equal(read().target.to(at::kDouble), values("kind")));
}

TEST_CASE("California housing has its known columns") {
  const char* trial = std::getenv("FULGUR_TRIAL_DATA");
  const auto path = std::filesystem::path(trial ? trial : "") / "california-housing" / "housing.csv";
  if (trial == nullptr || !std::filesystem::exists(path))
    SKIP("FULGUR_TRIAL_DATA names no folder with california-housing/");
  TableDataModule::Options options;
  options.paths = {path};
  options.target = {"median_house_value"};
  TableDataModule data(options);
  data.setup(TrainerFn::fit);
  CHECK(data.exported_values().at("num_numbers").as_int() == 8);
  CHECK(doubles(data.exported_values().at("cardinalities")) == std::vector<double>{6});
  CHECK(*data.loaders(RunningStage::train)[0]->samples() + *data.loaders(RunningStage::validate)[0]->samples() +
            *data.loaders(RunningStage::test)[0]->samples() ==
        20640);
  const Rows rows = rows_of(data, RunningStage::train);
  CHECK(rows.numbers.isfinite().all().item<bool>());
  CHECK(rows.target.min().item<double>() == 14999);
  CHECK(rows.target.max().item<double>() == 500001);
}

}  // namespace table_data_module_test
