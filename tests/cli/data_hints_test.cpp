// What a user meets first with data of their own: joined predictions, warnings and hints.
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "process.h"

namespace data_hints_test {

using namespace fulgur::test;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr const char* kLast = "fulgur_logs/version_0/checkpoints/last.ckpt";

std::vector<Json> predictions_in(const fs::path& run) {
  std::istringstream text(read_text(run / "predictions.jsonl"));
  std::vector<Json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

struct DataRun : TemporaryFolder {
  explicit DataRun(const std::string& config) { write_text(*this / "c.yaml", config); }
  Finished operator()(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin() + 1, {"-c", "c.yaml"});
    return trainer(arguments, {.folder = path()});
  }
};

/// Ten images of the classes cat and dog; the link of num_classes is forgotten.
struct Images : DataRun {
  Images()
      : DataRun(R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: MlpClassifier, init_args: {in_features: 798, hidden: [8]}}  # 3 x 14 x 19
data:
  class_path: ImageFolderDataModule
  init_args: {train_dir: train, val_fraction: 0.2, batch_size: 4, transforms: [ToFloat], eval_transforms: [ToFloat]}
optimizer: {class_path: SGD, init_args: {lr: 0.01}}
)") {
    for (const char* name : {"cat", "dog"}) {
      fs::create_directories(*this / "train" / name);
      for (int i = 0; i < 5; ++i)
        fs::copy_file(fs::path(FULGUR_IMAGE_FIXTURES) / "colour.png",
                      *this / "train" / name / (std::to_string(i) + ".png"));
    }
  }
};

}  // namespace

TEST_CASE("a forgotten link is a warning that says how to write it") {
  const Images run;
  const Finished forgotten = run({"fit"});
  INFO(forgotten.err);
  REQUIRE(forgotten.exit_code == 0);
  CHECK(says(forgotten.err, "model.init_args.num_classes is 10, but that of the data is 2"));
  CHECK(says(forgotten.err, "link: {model.init_args.num_classes: data.num_classes} [trainer.not_linked]"));
  const Finished right = run({"fit", "--model.num_classes", "2"});
  INFO(right.err);
  CHECK(right.exit_code == 0);
  CHECK_FALSE(says(right.err, "trainer.not_linked"));
}

TEST_CASE("predictions have the file and the name of the class of each image") {
  const Images run;
  const std::vector<std::string> two{"--model.num_classes", "2"};
  const auto with_two = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), two.begin(), two.end());
    return run(arguments);
  };
  REQUIRE(with_two({"fit"}).exit_code == 0);
  const Finished predict = with_two({"predict", "--ckpt_path", kLast, "--data.test_fraction", "0.4"});
  INFO(predict.err);
  REQUIRE(predict.exit_code == 0);
  const std::vector<Json> lines = predictions_in(run / "fulgur_logs/version_1");
  REQUIRE(lines.size() == 4);
  std::set<std::string> files;
  for (const Json& line : lines) {
    files.insert(line.at("file").get<std::string>());
    CHECK(line.at("file").get<std::string>().starts_with("train/"));
    CHECK(line.at("class") == (line.at("prediction") == 0 ? "cat" : "dog"));
  }
  CHECK(files.size() == 4);

  const Finished none = with_two({"predict", "--ckpt_path", kLast});
  INFO(none.err);
  CHECK(none.exit_code == 2);
  CHECK(says(none.err,
             "there is no predict data. Set one of data.init_args.predict_dir, data.init_args.test_dir. "
             "data.init_args.test_fraction must be set when the model is trained"));
  CHECK(says(with_two({"test", "--ckpt_path", kLast}).err, "there is no test data. Set data.init_args.test_dir. "));
  // Other parts of the training data are no test data.
  const Finished leaking = with_two({"test", "--ckpt_path", kLast, "--data.test_fraction", "0.4"});
  INFO(leaking.err);
  CHECK(leaking.exit_code == 0);
  CHECK(says(leaking.err, "data.init_args.test_fraction is '0.4', and was '0.0'"));
  CHECK(says(leaking.err, "[trainer.other_parts]"));
  CHECK(says(with_two({"validate", "--ckpt_path", kLast, "--data.split_seed", "7"}).err, "[trainer.other_parts]"));
  CHECK_FALSE(says(with_two({"validate", "--ckpt_path", kLast}).err, "other_parts"));
  CHECK_FALSE(says(with_two({"test", "--ckpt_path", kLast, "--data.test_dir", "train", "--data.val_fraction", "0"}).err,
                   "other_parts"));
  // Links to values that only data have do not hide it.
  const Finished linked = with_two({"test", "--ckpt_path", kLast, "--link.model.in_features", "data.num_features"});
  INFO(linked.err);
  CHECK(linked.exit_code == 2);
  CHECK(says(linked.err, "there is no test data. Set data.init_args.test_dir. data.init_args.test_fraction must"));
  CHECK(says(linked.err, "provides no value 'num_features'"));
}

TEST_CASE("an evaluation with windows of another length than those of the checkpoint is a warning with both") {
  const DataRun run(R"(
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false, enable_progress_bar: false}
data: {class_path: SeriesDataModule, init_args: {path: s.csv, columns: [load], window: 6, batch_size: 16}}
model: {class_path: LstmForecaster, init_args: {hidden: 4}}
optimizer: {class_path: SGD, init_args: {lr: 0.01}}
link:
  model.init_args.num_inputs: data.num_inputs
  model.init_args.num_outputs: data.num_outputs
  model.init_args.horizon: data.horizon
  model.init_args.target_mean: data.target_mean
  model.init_args.target_std: data.target_std
)");
  std::string series = "load\n";
  for (int i = 0; i < 120; ++i) series += std::to_string(i % 7) + "\n";
  write_text(run / "s.csv", series);
  REQUIRE(run({"fit"}).exit_code == 0);
  for (const char* verb : {"validate", "test", "predict"}) {
    const Finished other = run({verb, "--ckpt_path", kLast, "--data.window", "5"});
    INFO(other.err);
    CHECK(other.exit_code == 0);
    CHECK(says(other.err, "data.init_args.window is '5', and was '6'. "));
    CHECK(says(other.err, "[trainer.other_lengths]"));
    CHECK_FALSE(says(run({verb, "--ckpt_path", kLast}).err, "other_lengths"));
  }
}

TEST_CASE("images that need eval_transforms, and names of torchvision's transforms, get advice that names them") {
  const Images run;
  const Finished bytes = run({"fit", "--model", "ResNet", "--model.depth", "20", "--data.eval_transforms", "[]"});
  INFO(bytes.err);
  CHECK(bytes.exit_code == 2);
  CHECK(says(bytes.err, "Add ToFloat or Normalize to data.init_args.transforms and to data.init_args.eval_transforms"));
  const Finished named = run({"fit", "--data.transforms", "[ToTensor]"});
  INFO(named.err);
  CHECK(named.exit_code == 2);
  CHECK(says(named.err, "unknown image_transform 'ToTensor'; did you mean 'ToFloat'?"));
  const Finished normalised =
      run({"fit", "--data.transforms", "[{class_path: Normalize, init_args: {mean: 0.5, std: 0.5}}]"});
  INFO(normalised.err);
  CHECK(says(normalised.err, "[images.not_normalized]"));
  const auto normalize = [](const char* mean) {
    return std::string("[{class_path: Normalize, init_args: {mean: ") + mean + ", std: 0.5}}]";
  };
  const Finished only_evaluated =
      run({"fit", "--data.transforms", "[ToFloat]", "--data.eval_transforms", normalize("0.5")});
  CHECK(says(only_evaluated.err, "but training images are not"));
  const Finished differently =
      run({"fit", "--data.transforms", normalize("0.4"), "--data.eval_transforms", normalize("0.5")});
  CHECK(says(differently.err, "with different numbers"));
  const Finished alike =
      run({"fit", "--data.transforms", normalize("0.5"), "--data.eval_transforms", normalize("0.5")});
  CHECK_FALSE(says(alike.err, "not_normalized"));
}

TEST_CASE("a checkpoint predicts rows of another table without the table that it was trained on") {
  const DataRun run(R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: TabularMlp, init_args: {hidden: [4]}}
data: {class_path: TableDataModule, init_args: {paths: [t.csv], target: [y], task: classification, batch_size: 8}}
optimizer: {class_path: SGD, init_args: {lr: 0.01}}
link:
  model.init_args.task: data.task
  model.init_args.num_numbers: data.num_numbers
  model.init_args.cardinalities: data.cardinalities
  model.init_args.num_outputs: data.num_outputs
)");
  std::string table = "x,city,y\n";
  for (int i = 0; i < 40; ++i) table += std::to_string(i) + (i % 2 ? ",Rome,warm\n" : ",Oslo,cold\n");
  write_text(run / "t.csv", table);
  write_text(run / "new.csv", "city,x\nOslo,3\nParis,4\nRome,5\n");
  const Finished fit = run({"fit"});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  const auto predict = [&] { return run({"predict", "--ckpt_path", kLast, "--data.predict_paths", "[new.csv]"}); };
  const Finished with_table = predict();
  INFO(with_table.err);
  REQUIRE(with_table.exit_code == 0);
  fs::remove(run / "t.csv");
  const Finished alone = predict();
  INFO(alone.err);
  REQUIRE(alone.exit_code == 0);
  const std::vector<Json> lines = predictions_in(run / "fulgur_logs/version_2");
  REQUIRE(lines.size() == 3);
  CHECK(lines == predictions_in(run / "fulgur_logs/version_1"));
  for (const Json& line : lines) CHECK((line.at("class") == "warm" || line.at("class") == "cold"));
}

TEST_CASE("a table without its links is a warning, and a stream says how many rows it has") {
  const DataRun run(R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: TabularMlp, init_args: {hidden: [4]}}
data: {class_path: TableDataModule, init_args: {paths: [t.csv], target: [y], stream: true, batch_size: 8}}
optimizer: {class_path: SGD, init_args: {lr: 0.000001}}
link: {model.init_args.num_numbers: data.num_numbers, model.init_args.cardinalities: data.cardinalities}
)");
  std::string table = "x,city,y\n", semicolons = "x;y\n";
  for (int i = 0; i < 100; ++i) {
    table += std::to_string(i) + (i % 2 ? ",Rome," : ",Oslo,") + std::to_string(1000 + i) + "\n";
    semicolons += std::to_string(i) + ";" + std::to_string(i) + "\n";
  }
  write_text(run / "t.csv", table);
  write_text(run / "s.csv", semicolons);
  const Finished fit = run({"fit"});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  CHECK(says(fit.err, "model.init_args.target_mean is empty, but that of the data is [1"));
  CHECK(says(fit.err, "model.init_args.target_std: data.target_std} [trainer.not_linked]"));
  CHECK(says(fit.err + fit.out, " samples, about "));
  CHECK_FALSE(says(fit.err + fit.out, "? samples"));
  const Finished predict = run({"predict", "--ckpt_path", kLast});
  INFO(predict.err);
  REQUIRE(predict.exit_code == 0);
  for (const Json& line : predictions_in(run / "fulgur_logs/version_1")) CHECK(line.at("index").get<int64_t>() < 100);

  // What a program in Python needs to encode inputs for an exported model.
  const auto last = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments{"inspect", kLast};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return trainer(arguments, {.folder = run.path()});
  };
  const Json columns = Json::parse(last({"--json"}).out)["data"]["columns"];
  REQUIRE(columns["numbers"].size() == 1);
  CHECK(columns["numbers"][0]["name"] == "x");
  CHECK(columns["numbers"][0]["mean"].get<double>() > 30);
  CHECK(columns["numbers"][0]["std"].get<double>() > 10);
  CHECK(columns["categories"][0]["values"] == Json{"Oslo", "Rome"});
  CHECK(columns["targets"][0]["name"] == "y");
  const std::string shown = last({}).out;
  CHECK(says(shown, "state of the data module\n"));
  CHECK(says(shown, "name city, values [Oslo, Rome]"));

  const Finished city = run({"fit", "--data.target", "[city]", "--data.stream", "false"});
  INFO(city.err);
  CHECK(city.exit_code == 3);
  CHECK(says(city.err, "set data.init_args.task: classification"));
  const Finished semicolon = run({"fit", "--data.paths", "[s.csv]"});
  INFO(semicolon.err);
  CHECK(semicolon.exit_code == 3);
  CHECK(says(semicolon.err, "Set data.init_args.delimiter to \";\"."));
}

namespace {

/// A .npy file of float32 or of another dtype with this shape, such as `20,` or `20, 3`.
std::string npy(const std::string& dtype, const std::string& shape, const std::string& values) {
  std::string dict = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (" + shape + "), }\n";
  std::string text = "\x93NUMPY";
  text += {'\1', '\0', static_cast<char>(dict.size() % 256), static_cast<char>(dict.size() / 256)};
  return text + dict + values;
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// 20 samples of three numbers, and targets of several kinds; `links` of the model.
struct Arrays : DataRun {
  explicit Arrays(const std::string& links)
      : DataRun(R"(
seed_everything: 1
trainer: {max_epochs: 2, num_threads: 1, enable_model_summary: false, enable_progress_bar: false}
model: {class_path: TabularMlp, init_args: {hidden: [8]}}
data: {class_path: ArrayDataModule, init_args: {train: {input: x.npy, target: y.npy}, val_fraction: 0.2, batch_size: 4}}
optimizer: {class_path: SGD, init_args: {lr: 0.01}}
link:
  model.init_args.num_numbers: data.num_features
)" + links) {
    std::vector<float> x, y, hot;
    std::string labels;
    for (int i = 0; i < 20; ++i) {
      for (int j = 0; j < 3; ++j) x.push_back(static_cast<float>((i * 7 + j * 3) % 10) / 10);
      y.push_back(x[x.size() - 1] - x[x.size() - 2]);
      for (int j = 0; j < 2; ++j) hot.push_back(i % 2 == j ? 1.0F : 0.0F);
      labels += static_cast<char>(i % 2);
    }
    write_text(*this / "x.npy", npy("<f4", "20, 3", bytes_of(x)));
    write_text(*this / "y.npy", npy("<f4", "20,", bytes_of(y)));
    write_text(*this / "hot.npy", npy("<f4", "20, 2", bytes_of(hot)));
    write_text(*this / "bools.npy", npy("|b1", "20,", labels));
  }
};

}  // namespace

TEST_CASE("a model of tables learns numbers and classes of arrays by the same links") {
  const Arrays run(
      "  model.init_args.task: data.task\n"
      "  model.init_args.num_outputs: data.num_outputs\n");
  const Finished numbers = run({"fit"});
  INFO(numbers.err);
  REQUIRE(numbers.exit_code == 0);
  CHECK(says(numbers.out, "val_r2"));
  const Finished predicted = run({"predict", "--ckpt_path", kLast, "--data.predict.input", "x.npy"});
  INFO(predicted.err);
  REQUIRE(predicted.exit_code == 0);
  CHECK(predictions_in(run / "fulgur_logs/version_1").size() == 20);
  const Finished classes = run({"fit", "--data.train.target", "bools.npy"});
  INFO(classes.err);
  CHECK(classes.exit_code == 0);
  CHECK(says(classes.out, "val_acc"));
}

TEST_CASE("a link to the classes of targets that are no labels says what the targets are") {
  const Arrays run("  model.init_args.num_outputs: data.num_classes\n");
  const Finished floats = run({"fit"});
  INFO(floats.err);
  CHECK(floats.exit_code == 2);
  CHECK(says(floats.err, "provides no value 'num_classes': the target 'y.npy' is Float of shape [20]"));
  const Finished hot = run({"fit", "--data.train.target", "hot.npy"});
  INFO(hot.err);
  CHECK(hot.exit_code == 2);
  CHECK(says(hot.err, "Convert one-hot rows in NumPy: y.argmax(axis=1)"));
  // Without a target: an empty value is the empty text.
  const Finished none = run({"fit", "--data.train.target", ""});
  INFO(none.err);
  CHECK(none.exit_code == 2);
  CHECK(says(none.err, "train.target is empty, so what is predicted is not known"));
}

}  // namespace data_hints_test
