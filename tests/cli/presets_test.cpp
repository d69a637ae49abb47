// Each config of configs/ and configs/recipes/ is run on a few batches, of the real data if that is installed.
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "process.h"

namespace presets_test {

using namespace fulgur::test;
using Json = nlohmann::json;

namespace {

std::filesystem::path configs() { return FULGUR_CONFIGS; }

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [key, value] : object.items()) names.insert(key);
  return names;
}

/// A text that gpt_shakespeare can train on: six thousand words from a few.
std::string small_text() {
  std::string text;
  for (int i = 0; i < 6000; ++i)
    text += std::array{"to ", "be ", "or ", "not\n", "that ", "is "}[static_cast<size_t>(i * i % 7 * i % 6)];
  return text;
}

/// A table with the columns of the California housing data, whose target follows from them.
std::string small_housing() {
  std::string text =
      "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,median_income,"
      "median_house_value,ocean_proximity\n";
  for (int i = 0; i < 1500; ++i) {
    const int income = i * 7919 % 150, age = i * 104729 % 50;
    const bool coast = i % 3 == 0;
    text += "-" + std::to_string(115 + i % 9) + ".25," + std::to_string(33 + i % 8) + ".5," + std::to_string(age) +
            "," + std::to_string(1000 + i) + "," + (i % 11 == 0 ? "" : std::to_string(200 + i % 90)) + "," +
            std::to_string(800 + i % 700) + "," + std::to_string(180 + i % 60) + "," + std::to_string(income / 10) +
            "." + std::to_string(income % 10) + "," +
            std::to_string(60000 + 2000 * income + 500 * age + (coast ? 80000 : 0)) +
            (coast ? ",NEAR OCEAN\n" : ",INLAND\n");
  }
  return text;
}

/// CIFAR-10's binary files with 120 images each, one colour for each class.
void write_small_cifar(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::string bytes;
  for (int i = 0; i < 120; ++i)
    bytes += static_cast<char>(i % 10) + std::string(1024, static_cast<char>(20 * (i % 10))) +
             std::string(2048, static_cast<char>(i));
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                           "data_batch_5.bin", "test_batch.bin"})
    write_text(folder / name, bytes);
}

/// An array file of NumPy's first version; `type` is a dtype such as "|u1".
void write_npy(const std::filesystem::path& path, const std::string& type, const std::string& shape,
               const std::string& bytes) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  const auto size = static_cast<unsigned>(header.size());
  const std::string magic("\x93NUMPY\x01\x00", 8);
  write_text(path, magic + static_cast<char>(size % 256) + static_cast<char>(size / 256) + header + bytes);
}

/// The files of benchmarks/recipes/make_masks.py: the left half of an image is bright and of class 1.
void write_small_masks(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::string images, masks;
  for (int place = 0; place < 60 * 16 * 16; ++place) {
    const bool left = place % 16 < 8;
    images += static_cast<char>((left ? 90 : 20) + place % 7);
    masks += std::string(1, left ? '\1' : '\0') + std::string(7, '\0');
  }
  for (const char* part : {"train", "test"}) {
    write_npy(folder / (std::string(part) + "_images.npy"), "|u1", "(60, 1, 16, 16)", images);
    write_npy(folder / (std::string(part) + "_masks.npy"), "<i8", "(60, 16, 16)", masks);
  }
}

/// The files of benchmarks/recipes/make_texts.py.
void write_small_texts(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::string rows = "text,label\n";
  for (int i = 0; i < 200; ++i)
    rows += std::string("the plot was ") + (i % 2 == 0 ? "not " : "") + (i % 3 == 0 ? "good" : "dull") +
            ((i % 2 == 0) == (i % 3 == 0) ? ",negative\n" : ",positive\n");
  write_text(folder / "train.csv", rows);
  write_text(folder / "test.csv", rows);
  write_text(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nplot\nwas\nnot\ngood\ndull\n");
}

/// All configs except those of models that are too large here, and gpt_lora, which adapters_test.cpp runs.
std::vector<std::filesystem::path> trainable_configs() {
  std::vector<std::filesystem::path> found;
  for (const auto& folder : {configs(), configs() / "recipes"})
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().stem().string();
      if (entry.path().extension() == ".yaml" && name != "gpt2_124m" && !name.starts_with("llama_") &&
          name != "gpt_lora")
        found.push_back(entry.path());
    }
  return found;
}

/// Options without which a few batches would be slow, or a stage have no data.
std::vector<std::string> options_for(const std::string& name) {
  if (name.ends_with("_model_parallel") || name.ends_with("_hybrid")) return {"--trainer.accelerator", "virtual"};
  if (name == "cifar10_airbench") return {"--data.val_size", "100", "--data.batch_size", "16", "--model.width", "8"};
  if (name.starts_with("cifar10")) return {"--data.val_size", "100"};
  if (name == "fashion_94") return {"--data.batch_size", "16"};
  if (name == "shakespeare_char") return {"--trainer.val_check_interval", "2", "--data.test_fraction", "0.1"};
  return {};
}

}  // namespace

TEST_CASE("every preset trains and tests; classifiers log the agreed names") {
  const std::vector<std::filesystem::path> all = trainable_configs();
  CHECK(all.size() >= 20);
  for (const std::filesystem::path& config : all) {
    CAPTURE(config);
    const TemporaryFolder folder;
    write_text(folder / "text.txt", small_text());
    write_text(folder / "housing.csv", small_housing());
    write_small_cifar(folder / "cifar");
    write_small_masks(folder / "masks");
    write_small_texts(folder / "texts");
    const Start start{
        .folder = {},
        .environment = {"FULGUR_CIFAR10=" + (folder / "cifar").string(), "FULGUR_MASKS=" + (folder / "masks").string(),
                        "FULGUR_TEXTS=" + (folder / "texts").string(), "FULGUR_TEXT=" + (folder / "text.txt").string(),
                        "FULGUR_HOUSING=" + (folder / "housing.csv").string()}};
    std::vector<std::string> few{"--config",
                                 config.string(),
                                 "--trainer.default_root_dir",
                                 folder.path().string(),
                                 "--trainer.max_epochs",
                                 "1",
                                 "--trainer.limit_train_batches",
                                 "4",
                                 "--trainer.limit_val_batches",
                                 "1",
                                 "--trainer.limit_test_batches",
                                 "1",
                                 "--trainer.log_every_n_steps",
                                 "2"};
    const std::string name = config.stem().string();
    const std::vector<std::string> further = options_for(name);
    few.insert(few.end(), further.begin(), further.end());
    std::vector<std::string> fit{"fit", "--report", (folder / "fit.json").string()};
    fit.insert(fit.end(), few.begin(), few.end());
    const Finished fitted = trainer(fit, start);
    INFO(fitted.err);
    if (fitted.exit_code == 3 && says(fitted.err, "dataset-fashion-mnist"))
      SKIP("Fashion-MNIST is not installed (Debian package dataset-fashion-mnist)");
    REQUIRE(fitted.exit_code == 0);
    const std::string checkpoint = says(read_text(config), "monitor:") ? "best" : "last";
    std::vector<std::string> test{"test", "--ckpt_path", checkpoint, "--report", (folder / "test.json").string()};
    test.insert(test.end(), few.begin(), few.end());
    const Finished tested = trainer(test, start);
    INFO(tested.err);
    REQUIRE(tested.exit_code == 0);
    const auto fit_names = keys(Json::parse(read_text(folder / "fit.json"))["metrics"]);
    const auto test_names = keys(Json::parse(read_text(folder / "test.json"))["metrics"]);
    const auto logged = [&](const std::string& stage) {
      if (name.ends_with("_gan"))
        return std::set<std::string>{stage + "_d_loss", stage + "_g_loss", stage + "_d_real", stage + "_d_fake"};
      std::set<std::string> names{stage + "_loss"};
      if (name.starts_with("gpt") || name == "shakespeare_char")
        names.insert(stage + "_perplexity");
      else if (name.starts_with("seq2seq"))
        names.insert({stage + "_acc", stage + "_exact"});
      else if (name.ends_with("_vae"))
        names.insert({stage + "_reconstruction", stage + "_kl"});
      else if (name == "segmentation")
        names.insert({stage + "_iou", stage + "_dice"});
      else if (name.starts_with("california"))
        names.insert({stage + "_rmse", stage + "_mae", stage + "_r2"});
      else if (!name.starts_with("autoencoder"))
        names.insert(stage + "_acc");
      return names;
    };
    auto expected = logged("val");
    if (name.ends_with("_gan") || name.ends_with("_vae"))
      expected.merge(logged("train"));
    else
      expected.insert("train_loss");
    CHECK(fit_names == expected);
    CHECK(test_names == logged("test"));
  }
}

TEST_CASE(
    "a GPT learns a text, the same bit for bit with activation checkpointing, and its perplexity is exp of the mean "
    "loss") {
  const TemporaryFolder folder;
  write_text(folder / "text.txt", small_text());
  const auto run = [&](const std::string& how) {
    const std::string report = (folder / (how + ".json")).string();
    const Finished fitted = trainer({"fit",
                                     "--config",
                                     (configs() / "gpt_shakespeare.yaml").string(),
                                     "--trainer.default_root_dir",
                                     folder.path().string(),
                                     "--trainer.max_epochs",
                                     "1",
                                     "--data.samples_per_epoch",
                                     "720",
                                     "--trainer.num_threads",
                                     "1",
                                     "--model.n_embd",
                                     "32",
                                     "--model.dropout",
                                     "0.1",
                                     "--data.block_size",
                                     "16",
                                     "--optimizer.lr",
                                     "0.01",
                                     "--model.activation_checkpointing",
                                     how,
                                     "--report",
                                     report},
                                    {.folder = {}, .environment = {"FULGUR_TEXT=" + (folder / "text.txt").string()}});
    INFO(fitted.err);
    REQUIRE(fitted.exit_code == 0);
    return Json::parse(read_text(report))["metrics"];
  };
  const Json plain = run("none");
  CHECK(plain["val_loss"].get<double>() < 1.5);  // a guess among 11 characters: 2.4
  CHECK(std::abs(plain["val_perplexity"].get<double>() - std::exp(plain["val_loss"].get<double>())) < 1e-5);
  CHECK((run("all") == plain));
  CHECK((run("every_3") == plain));
}

TEST_CASE("a checkpoint's vocabulary is used for another text, with links too") {
  const TemporaryFolder folder;
  std::string learned, other;
  for (int i = 0; i < 400; ++i) learned += "to be or not to be. ";
  for (int i = 0; i < 400; ++i) other += "be to ";
  write_text(folder / "learned.txt", learned);
  write_text(folder / "other.txt", other);
  const auto run = [&](const char* text, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--trainer.default_root_dir", folder.path().string(), "--trainer.num_threads",
                                       "1", "--data.block_size", "16"});
    return trainer(arguments, {.folder = folder.path(), .environment = {"FULGUR_TEXT=" + (folder / text).string()}});
  };
  const std::string config = (configs() / "gpt_shakespeare.yaml").string();
  const Finished fitted = run("learned.txt", {"fit", "--config", config, "--trainer.max_steps", "3", "--model.n_embd",
                                              "32", "--data.samples_per_epoch", "96"});
  INFO(fitted.err);
  REQUIRE(fitted.exit_code == 0);
  const Finished tested = run("other.txt", {"test", "--config", config, "--ckpt_path", "last", "--model.n_embd", "32"});
  INFO(tested.err);
  CHECK(tested.exit_code == 0);
  // The saved config has the linked values, too.
  const Finished again = run("other.txt", {"test", "--config", (folder / "fulgur_logs/version_0/config.yaml").string(),
                                           "--ckpt_path", "last", "--data.path", (folder / "other.txt").string()});
  INFO(again.err);
  CHECK(again.exit_code == 0);
  // A fit that continues a failed one without ckpt_path keeps the vocabulary, too: this text has other characters.
  std::string foreign;
  for (int i = 0; i < 400; ++i) foreign += "xyzuv, ";
  write_text(folder / "foreign.txt", foreign);
  const std::filesystem::path crash = folder / "crash";
  std::filesystem::create_directories(crash);
  const auto last = std::filesystem::canonical(folder / "fulgur_logs/version_0/checkpoints/last.ckpt");
  std::filesystem::copy(last, crash / "on_exception.ckpt", std::filesystem::copy_options::recursive);
  const Finished refused =
      run("foreign.txt",
          {"fit", "--config", config, "--trainer.max_steps", "5", "--model.n_embd", "32", "--data.samples_per_epoch",
           "96", "--trainer.callbacks+=OnExceptionCheckpoint", "--trainer.callbacks.dirpath", crash.string()});
  INFO(refused.err);
  CHECK(refused.exit_code != 0);
  CHECK(says(refused.err, "vocabulary"));
}

TEST_CASE("a GPT of characters continues prompts with the saved config of its run") {
  const TemporaryFolder folder;
  std::string learned;
  for (int i = 0; i < 400; ++i) learned += "to be or not to be. ";
  write_text(folder / "learned.txt", learned);
  write_text(folder / "prompts.txt", "to be\nnot\n");
  const Finished fitted = trainer(
      {"fit", "--config", (configs() / "gpt_shakespeare.yaml").string(), "--trainer.max_steps", "3", "--model.n_embd",
       "32", "--data.samples_per_epoch", "96", "--data.block_size", "16", "--trainer.num_threads", "1"},
      {.folder = folder.path(), .environment = {"FULGUR_TEXT=" + (folder / "learned.txt").string()}});
  INFO(fitted.err);
  REQUIRE(fitted.exit_code == 0);
  std::vector<std::string> arguments{"predict",     "--config",   "fulgur_logs/version_0/config.yaml",
                                     "--ckpt_path", "last",       "--model.generate.max_new_tokens",
                                     "20",          "--data",     "PromptsDataModule",
                                     "--data.path", "prompts.txt"};
  const Finished predicted = trainer(arguments, {.folder = folder.path()});
  INFO(predicted.err);
  REQUIRE(predicted.exit_code == 0);
  CHECK(says(predicted.err + predicted.out,
             "the link of model.init_args.block_size is left out: PromptsDataModule provides no value 'block_size'"));
  const std::string lines = read_text(folder / "fulgur_logs/version_1/predictions.jsonl");
  const Json first = Json::parse(lines.substr(0, lines.find('\n')));
  CHECK(first.at("prompt") == "to be");
  CHECK(first.at("generated").size() == 20);
  CHECK(first.at("text").get<std::string>().starts_with("to be"));
  CHECK(first.at("text").get<std::string>().size() == 25);
  // A character that the text did not have.
  write_text(folder / "prompts.txt", "to be\nwhat\n");
  const Finished other = trainer(arguments, {.folder = folder.path()});
  CHECK(other.exit_code == 3);
  CHECK(says(other.err, "line 2"));
}

TEST_CASE("seq2seq_reversal.yaml learns to reverse sequences that it has not seen") {
  const TemporaryFolder folder;
  const std::vector<std::string> base{"--config",
                                      (configs() / "seq2seq_reversal.yaml").string(),
                                      "--trainer.default_root_dir",
                                      folder.path().string(),
                                      "--trainer.num_threads",
                                      "1"};
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), base.begin(), base.end());
    const Finished finished = trainer(arguments, {.folder = folder.path()});
    INFO(finished.err);
    REQUIRE(finished.exit_code == 0);
  };
  run({"fit", "--report", (folder / "fit.json").string()});
  const Json metrics = Json::parse(read_text(folder / "fit.json"))["metrics"];
  CHECK(metrics["val_exact"].get<double>() > 0.9);
  CHECK(metrics["val_acc"].get<double>() >= metrics["val_exact"].get<double>());
  run({"test", "--ckpt_path", "best", "--report", (folder / "test.json").string()});
  CHECK(Json::parse(read_text(folder / "test.json"))["metrics"]["test_exact"].get<double>() > 0.9);
}

TEST_CASE("recipes of large language models are accepted without their data") {
  struct Recipe {
    const char *name, *length, *nodes, *profile;
    int64_t parameters;
  };
  // The parameters of those three are what GPT-2 (with a padded vocabulary), Llama 3.1 8B and 70B have.
  for (const Recipe& recipe :
       {Recipe{"gpt2_124m", "1024", "1", "h100", 124'373'760}, Recipe{"llama_1b", "2048", "1", "h100", 1'100'048'384},
        Recipe{"llama_8b", "8192", "1,8,64", "h100", 8'030'261'248},
        Recipe{"llama_70b", "8192", "8,32,128", "h200", 70'553'706'496}}) {
    CAPTURE(recipe.name);
    const std::string config = (configs() / "recipes" / (std::string(recipe.name) + ".yaml")).string();
    const Start start{.folder = {}, .environment = {"FULGUR_TOKENS=tokens"}};
    const Finished checked = trainer({"config", "--config", config, "--trainer.accelerator", "cpu", "--trainer.devices",
                                      "1", "--trainer.num_nodes", "1"},
                                     start);
    INFO(checked.err);
    CHECK(checked.exit_code == 0);
    CHECK(says(checked.out, "class_path: GPT"));
    const std::string input = std::string(recipe.length) + ":int64";
    const Finished planned = trainer({"plan", "--config", config, "--input", input, "--input", input, "--nodes",
                                      recipe.nodes, "--profile", recipe.profile, "--json"},
                                     start);
    INFO(planned.out << planned.err);
    REQUIRE(planned.exit_code == 0);
    const Json plan = Json::parse(planned.out);
    CHECK(plan["model"]["parameters"] == recipe.parameters);
    // The sharding of the config fits with its batch size, on any of these numbers of nodes.
    const bool divides = std::string_view(recipe.name) == "llama_8b" || std::string_view(recipe.name) == "llama_70b";
    for (const Json& one : plan["as_configured"])
      if (one["sharding"] == (divides ? "parameters" : "ddp")) CHECK(one["fits"].get<bool>());
    for (const Json& nodes : plan["nodes"]) CHECK_FALSE(nodes["best"].is_null());
  }
}

TEST_CASE("recipes of 8 and 70 billion parameters train, save in parts and resume with other ranks, in a small size") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "line " + std::to_string(i) + " of a text\n";
  write_text(folder / "text.txt", text);
  REQUIRE(trainer({"tokenize", "--input", "text.txt", "--output", "tokens", "--train", "bpe", "--vocab_size", "300",
                   "--val_fraction", "0.1", "--quiet"},
                  {.folder = folder.path()})
              .exit_code == 0);
  for (const char* name : {"llama_8b", "llama_70b"}) {
    CAPTURE(name);
    const std::string root = (folder / name).string();
    std::filesystem::create_directory(root);
    const auto fit = [&](const char* ranks, const char* steps) {
      return trainer({"fit",
                      "--config",
                      (configs() / "recipes" / (std::string(name) + ".yaml")).string(),
                      "--resume",
                      "--trainer.default_root_dir",
                      root,
                      "--trainer.accelerator",
                      "cpu",
                      "--trainer.num_threads",
                      "1",
                      "--trainer.devices",
                      ranks,
                      "--trainer.num_nodes",
                      "1",
                      "--trainer.global_batch_size",
                      "4",
                      "--trainer.max_steps",
                      steps,
                      "--trainer.limit_val_batches",
                      "2",
                      "--model.vocab_size",
                      "300",
                      "--model.block_size",
                      "32",
                      "--model.n_layer",
                      "2",
                      "--model.n_head",
                      "4",
                      "--model.n_kv_head",
                      "2",
                      "--model.n_embd",
                      "32",
                      "--model.mlp_hidden",
                      "64",
                      "--data.block_size",
                      "32"},
                     {.folder = folder.path(), .environment = {"FULGUR_TOKENS=tokens"}});
    };
    const Finished begun = fit("2", "3");
    INFO(begun.err);
    REQUIRE(begun.exit_code == 0);
    CHECK(says(begun.err, "global batch: 4 samples, in 2 batches of 1 on 2 ranks"));
    const auto saved = std::filesystem::path(root) / "fulgur_logs/version_0/checkpoints/last.ckpt";
    CHECK(std::filesystem::exists(saved / "model-part-00002-of-00002.safetensors"));
    const Finished resumed = fit("4", "5");
    INFO(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    CHECK(says(resumed.err, "global batch: 4 samples, in 1 batch of 1 on 4 ranks"));
    CHECK(says(resumed.err, "5 steps"));
    CHECK(std::filesystem::exists(saved / "model-part-00004-of-00004.safetensors"));
  }
}

TEST_CASE("a GPT learns from tinyshakespeare") {
  const char* trial = std::getenv("FULGUR_TRIAL_DATA");
  if (trial == nullptr || !std::filesystem::exists(std::filesystem::path(trial) / "tinyshakespeare"))
    SKIP("FULGUR_TRIAL_DATA names no folder with tinyshakespeare/");
  const TemporaryFolder folder;
  const Finished fitted =
      trainer({"fit", "--config", (configs() / "gpt_shakespeare.yaml").string(), "--trainer.default_root_dir",
               folder.path().string(), "--trainer.max_epochs", "1", "--data.samples_per_epoch", "1200",
               "--trainer.limit_val_batches", "10", "--trainer.num_threads", "1", "--report",
               (folder / "report.json").string()},
              {.folder = {}, .environment = {"FULGUR_TEXT=" + std::string(trial) + "/tinyshakespeare/input.txt"}});
  INFO(fitted.err);
  REQUIRE(fitted.exit_code == 0);
  // 65 characters: a guess has 4.17, their frequencies alone 3.3.
  CHECK(Json::parse(read_text(folder / "report.json"))["metrics"]["val_loss"].get<double>() < 2.8);
}

TEST_CASE("california_housing.yaml learns a table, and a checkpoint keeps its columns for another one") {
  const TemporaryFolder folder;
  const std::string text = small_housing();
  write_text(folder / "housing.csv", text);
  // In another order of columns, and with a text that training never saw.
  write_text(
      folder / "other.csv",
      "ocean_proximity,median_house_value,longitude,latitude,housing_median_age,total_rooms,total_bedrooms,"
      "population,households,median_income\n"
      "ISLAND,200000,-120.25,35.5,20,1500,250,900,200,4.5\nINLAND,150000,-121.25,36.5,30,1600,260,950,210,3.5\n"
      "INLAND,120000,-118.25,34.5,10,1700,,910,205,2.5\nISLAND,260000,-117.25,33.5,40,1800,270,920,215,6.5\n"
      "NEAR OCEAN,240000,-119.25,38.5,25,1550,255,930,220,3.0\nINLAND,90000,-122.25,39.5,5,1650,265,940,225,1.0\n");
  const auto run = [&](const char* table, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"--config", (configs() / "california_housing.yaml").string(), "--trainer.default_root_dir",
                      folder.path().string(), "--trainer.num_threads", "1"});
    return trainer(arguments,
                   {.folder = folder.path(), .environment = {"FULGUR_HOUSING=" + (folder / table).string()}});
  };
  const Finished fitted = run("housing.csv", {"fit", "--trainer.max_epochs", "20", "--data.batch_size", "64",
                                              "--report", (folder / "fit.json").string()});
  INFO(fitted.err);
  REQUIRE(fitted.exit_code == 0);
  const Json metrics = Json::parse(read_text(folder / "fit.json"))["metrics"];
  CHECK(metrics["val_r2"].get<double>() > 0.8);
  CHECK(metrics["val_rmse"].get<double>() > 1);  // in the units of the file
  const Finished tested =
      run("other.csv", {"test", "--ckpt_path", "best", "--data.val_fraction", "0", "--data.test_fraction", "0.5",
                        "--report", (folder / "test.json").string()});
  INFO(tested.err);
  REQUIRE(tested.exit_code == 0);
  CHECK(Json::parse(read_text(folder / "test.json"))["metrics"]["test_mae"].get<double>() < 100000);
}

TEST_CASE("California housing is learned better than its mean") {
  const char* trial = std::getenv("FULGUR_TRIAL_DATA");
  const auto table = std::filesystem::path(trial ? trial : "") / "california-housing" / "housing.csv";
  if (trial == nullptr || !std::filesystem::exists(table))
    SKIP("FULGUR_TRIAL_DATA names no folder with california-housing/");
  const TemporaryFolder folder;
  const Finished fitted = trainer({"fit", "--config", (configs() / "california_housing.yaml").string(),
                                   "--trainer.default_root_dir", folder.path().string(), "--trainer.max_epochs", "5",
                                   "--trainer.num_threads", "1", "--report", (folder / "report.json").string()},
                                  {.folder = {}, .environment = {"FULGUR_HOUSING=" + table.string()}});
  INFO(fitted.err);
  REQUIRE(fitted.exit_code == 0);
  CHECK(Json::parse(read_text(folder / "report.json"))["metrics"]["val_r2"].get<double>() > 0.6);
}

TEST_CASE("cifar10_resnet.yaml trains on JPEG files in folders, too") {
  const char* trial = std::getenv("FULGUR_TRIAL_DATA");
  const auto archive = std::filesystem::path(trial ? trial : "") / "cifar10-jpg" / "cifar10-jpg-tree.tar.gz";
  if (trial == nullptr || !std::filesystem::exists(archive))
    SKIP("FULGUR_TRIAL_DATA names no folder with cifar10-jpg/");
  const TemporaryFolder folder;
  const std::string unpack = "tar -xzf '" + archive.string() + "' -C '" + folder.path().string() + "' ./test";
  REQUIRE(std::system(unpack.c_str()) == 0);
  write_text(folder / "folders.yaml",
             "data:\n"
             "  class_path: ImageFolderDataModule\n"
             "  init_args:\n"
             "    train_dir: " +
                 (folder / "test").string() +
                 "\n"
                 "    test_fraction: 0.1\n"
                 "    batch_size: 64\n"
                 "    device_transforms:\n"
                 "      - {class_path: RandomCrop, init_args: {size: 32, padding: 4}}\n"
                 "      - RandomHorizontalFlip\n"
                 "      - {class_path: Normalize, init_args: {mean: 0.47, std: 0.25}}\n"
                 "    eval_device_transforms: [{class_path: Normalize, init_args: {mean: 0.47, std: 0.25}}]\n");
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"--config", (configs() / "cifar10_resnet.yaml").string(), "--config",
                      (folder / "folders.yaml").string(), "--trainer.default_root_dir", folder.path().string(),
                      "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "4", "--trainer.limit_val_batches",
                      "2", "--trainer.limit_test_batches", "2", "--trainer.num_threads", "1"});
    return trainer(arguments, {.folder = folder.path(), .environment = {"FULGUR_CIFAR10=absent"}});
  };
  const Finished fitted = run({"fit", "--report", (folder / "fit.json").string()});
  INFO(fitted.err);
  REQUIRE(fitted.exit_code == 0);
  CHECK(Json::parse(read_text(folder / "fit.json"))["metrics"]["train_loss"].get<double>() < 10);
  const Finished tested = run({"test", "--ckpt_path", "best", "--report", (folder / "test.json").string()});
  INFO(tested.err);
  REQUIRE(tested.exit_code == 0);
  CHECK(keys(Json::parse(read_text(folder / "test.json"))["metrics"]) ==
        std::set<std::string>{"test_acc", "test_loss"});
}

TEST_CASE("last and best are those of the newest run that has them, or of the run whose config is given") {
  const TemporaryFolder folder;
  const std::vector<std::string> base{"--config",
                                      (configs() / "fashion_mnist_mlp.yaml").string(),
                                      "--data",
                                      "SyntheticDataModule",
                                      "--data.num_train",
                                      "32",
                                      "--data.num_val",
                                      "16",
                                      "--data.num_test",
                                      "16",
                                      "--data.batch_size",
                                      "8",
                                      "--trainer.max_epochs",
                                      "1"};
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), base.begin(), base.end());
    return trainer(arguments, {.folder = folder.path()});
  };
  for (int i = 0; i < 2; ++i) {
    const Finished fitted = run({"fit"});
    INFO(fitted.err);
    REQUIRE(fitted.exit_code == 0);
  }
  const Finished evaluated = run({"test", "--ckpt_path", "last"});  // takes version_2, which has no checkpoint
  CHECK(says(evaluated.err, "version_1/checkpoints"));
  CHECK(says(run({"test", "--ckpt_path", "last"}).err, "version_1/checkpoints"));
  const Finished own = trainer({"test", "--config", "fulgur_logs/version_0/config.yaml", "--ckpt_path", "best"},
                               {.folder = folder.path()});
  INFO(own.err);
  CHECK(own.exit_code == 0);
  CHECK(says(own.err, "version_0/checkpoints"));
}

}  // namespace presets_test
