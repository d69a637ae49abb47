#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/pytorch_file.h"
#include "process.h"

namespace exchange_verbs_test {

using namespace fulgur::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false}
model: {class_path: MlpClassifier, init_args: {in_features: 4, num_classes: 3, hidden: [8]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 64, num_val: 32, num_test: 32, num_classes: 3, shape: [4]}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)";

constexpr const char* kLast = "fulgur_logs/version_0/checkpoints/last.ckpt";

/// A folder with a config and the run of one epoch.
struct Trained : TemporaryFolder {
  Trained() {
    write_text(*this / "c.yaml", kConfig);
    const Finished fit = trainer({"fit", "-c", "c.yaml"}, {.folder = path()});
    INFO(fit.err);
    REQUIRE(fit.exit_code == 0);
  }
  Finished operator()(const std::vector<std::string>& arguments) const {
    return trainer(arguments, {.folder = path()});
  }
  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(path()), {})); }
  double test_loss(const std::string& checkpoint, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"test", "-c", "c.yaml", "--ckpt_path", checkpoint, "--report", "r.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished test = (*this)(arguments);
    INFO(test.err);
    REQUIRE(test.exit_code == 0);
    return Json::parse(read_text(*this / "r.json"))["metrics"]["test_loss"].get<double>();
  }
};

}  // namespace

TEST_CASE("weights go out as .pt and .safetensors, come back, and give the same test results") {
  const Trained run;
  const Finished pt = run({"export", kLast, "--format", "pt"});
  INFO(pt.err);
  REQUIRE(pt.exit_code == 0);
  CHECK(pt.out == "last.pt\n");
  REQUIRE(run({"export", kLast, "--output", "deep/w.safetensors"}).exit_code == 0);
  for (const char* file : {"last.pt", "deep/w.safetensors"}) {
    const Finished back = run({"import", file, "-c", "c.yaml", "--output", "back.ckpt"});
    INFO(back.err);
    REQUIRE(back.exit_code == 0);
    CHECK(back.out == "back.ckpt\n");
    CHECK(run.test_loss("back.ckpt") == run.test_loss(kLast));
    fs::remove_all(run / "back.ckpt");
  }
}

TEST_CASE("an imported checkpoint begins a fit, which can be resumed") {
  const Trained run;
  REQUIRE(run({"export", kLast, "--format", "pt"}).exit_code == 0);
  // Into a run's folder: that run is not the one that continues.
  const std::string start = "fulgur_logs/version_0/checkpoints/start.ckpt",
                    rows = read_text(run / "fulgur_logs/version_0/metrics.csv");
  REQUIRE(run({"import", "last.pt", "-c", "c.yaml", "--output", start}).exit_code == 0);
  const Finished fit = run({"fit", "-c", "c.yaml", "--ckpt_path", start, "--report", "r.json"});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  CHECK(says(fit.err, "imported, so the run begins at its first step"));
  CHECK(Json::parse(read_text(run / "r.json"))["global_step"] == 1);
  CHECK(fs::exists(run / "fulgur_logs/version_1/config.yaml"));
  CHECK(read_text(run / "fulgur_logs/version_0/metrics.csv") == rows);
  const std::string last = Json::parse(read_text(run / "r.json"))["last_checkpoint"];
  CHECK(run({"fit", "-c", "c.yaml", "--ckpt_path", last, "--trainer.max_epochs", "2"}).exit_code == 0);
}

TEST_CASE("export --averaged writes the averages of WeightAveraging, with which test computes if it is in the config") {
  const Trained run;
  const Finished none = run({"export", kLast, "--format", "pt", "--averaged"});
  CHECK(none.exit_code == 4);
  CHECK(says(none.err, "last.ckpt has no averages"));
  const std::vector<std::string> averaging{"--trainer.callbacks+=WeightAveraging", "--trainer.callbacks.decay", "0.5"};
  std::vector<std::string> fit{"fit", "-c", "c.yaml", "--trainer.max_epochs", "4", "--report", "r.json"};
  fit.insert(fit.end(), averaging.begin(), averaging.end());
  const Finished fitted = run(fit);
  INFO(fitted.err);
  REQUIRE(fitted.exit_code == 0);
  const std::string last = Json::parse(read_text(run / "r.json"))["last_checkpoint"];
  REQUIRE(run({"export", last, "--output", "averaged.pt", "--averaged"}).exit_code == 0);
  REQUIRE(run({"import", "averaged.pt", "-c", "c.yaml", "--output", "averaged.ckpt"}).exit_code == 0);
  CHECK(run.test_loss("averaged.ckpt") == run.test_loss(last, averaging));
  CHECK(run.test_loss(last) != run.test_loss(last, averaging));
}

TEST_CASE("an output that exists is refused, and replaced with --force only") {
  const Trained run;
  write_text(run / "last.pt", "mine");
  const size_t before = run.entries();
  const Finished refused = run({"export", kLast, "--format", "pt"});
  CHECK(refused.exit_code == 4);
  CHECK(says(refused.err, "last.pt exists already. Name another one, or replace it with --force"));
  CHECK(read_text(run / "last.pt") == "mine");
  CHECK(run({"export", kLast, "--format", "pt", "--force"}).exit_code == 0);
  CHECK(read_text(run / "last.pt") != "mine");
  const Finished import = run({"import", "last.pt", "-c", "c.yaml", "--output", kLast});
  CHECK(import.exit_code == 4);
  CHECK(says(import.err, "Name another one with --output"));
  CHECK(run.entries() == before);
}

TEST_CASE("export --max_shard_size writes a folder of files and their index") {
  const Trained run;
  const Finished exported = run({"export", kLast, "--max_shard_size", "100B"});
  INFO(exported.err);
  REQUIRE(exported.exit_code == 0);
  CHECK(exported.out == "last\n");
  CHECK(fs::exists(run.path() / "last/model.safetensors.index.json"));
  REQUIRE(run({"export", kLast, "--output", "one.safetensors"}).exit_code == 0);
  REQUIRE(run({"import", "last", "-c", "c.yaml", "--output", "shards.ckpt"}).exit_code == 0);
  REQUIRE(run({"import", "one.safetensors", "-c", "c.yaml", "--output", "one.ckpt"}).exit_code == 0);
  CHECK(run.test_loss("shards.ckpt") == run.test_loss("one.ckpt"));
  REQUIRE(run({"export", kLast, "--max_shard_size", "1GB", "--output", "whole"}).exit_code == 0);
  CHECK(fs::exists(run.path() / "whole/model.safetensors"));
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--format", "pt"},
                                               {"--only_adapters"},
                                               {"--output", "w.pt", "--format", "torchscript"}}) {
    std::vector<std::string> arguments{"export", kLast, "--max_shard_size", "1MB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished refused = run(arguments);
    CHECK(refused.exit_code == 2);
    CHECK(says(refused.err, "--max_shard_size"));
  }
  CHECK(run({"export", kLast, "--max_shard_size", "much"}).exit_code == 2);
}

TEST_CASE("weights of another dtype are converted if requested") {
  const Trained run;
  REQUIRE(run({"export", kLast, "--format", "pt"}).exit_code == 0);
  const fulgur::NamedTensors tensors = fulgur::read_pytorch_file(run / "last.pt").tensors;
  for (const at::ScalarType dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    const std::string name = std::string(c10::toString(dtype)) + ".pt";
    CAPTURE(name);
    fulgur::NamedTensors other;
    for (const auto& [key, value] : tensors) other.emplace_back(key, value.to(dtype));
    fulgur::write_pytorch_file(run / name, other);
    const Finished refused = run({"import", name, "-c", "c.yaml"});
    CHECK(refused.exit_code == 4);
    CHECK(says(refused.err, "--convert"));
    const Finished converted = run({"import", name, "-c", "c.yaml", "--convert"});
    INFO(converted.err);
    REQUIRE(converted.exit_code == 0);
    CHECK(says(converted.err, "converted: " + std::to_string(tensors.size()) + " weights, such as "));
    CHECK(std::abs(run.test_loss(fs::path(name).replace_extension(".ckpt").string()) - run.test_loss(kLast)) < 0.01);
  }
}

TEST_CASE("of very many tensors that do not fit, the first are named") {
  const Trained run;
  fulgur::NamedTensors many;
  for (int i = 0; i < 10'000; ++i)
    many.emplace_back("a tensor with a long name, number " + std::to_string(i), at::zeros({1}));
  fulgur::write_pytorch_file(run / "many.pt", many);
  const Finished refused = run({"import", "many.pt", "-c", "c.yaml"});
  CHECK(refused.exit_code == 4);
  CHECK(refused.err.size() < 20'000);
  CHECK(says(refused.err, "missing: layers.layer0.weight"));
  CHECK(says(refused.err, " more\n"));
}

TEST_CASE("import names all that does not fit, and loads what does with --strict false") {
  const Trained run;
  REQUIRE(run({"export", kLast, "--format", "pt"}).exit_code == 0);
  const Finished strict = run({"import", "last.pt", "-c", "c.yaml", "--model.num_classes", "5"});
  CHECK(strict.exit_code == 4);
  CHECK(says(strict.err, "other shape or dtype: layers.layer1.weight: checkpoint Float [3, 8], module Float [5, 8]"));
  CHECK(says(strict.err, "layers.layer1.bias"));
  CHECK(says(
      strict.err,
      "--key_prefix OLD=NEW, convert floating-point weights of another dtype with --convert, or load what fits with "
      "--strict false"));
  CHECK_FALSE(fs::exists(run / "last.ckpt"));
  const Finished loose = run({"import", "last.pt", "-c", "c.yaml", "--model.num_classes", "5", "--strict", "false"});
  CHECK(loose.exit_code == 0);
  CHECK(says(loose.err, "not loaded: other shape or dtype: layers.layer1.weight"));
  CHECK(fs::exists(run / "last.ckpt/manifest.json"));
}

TEST_CASE("inspect shows the weights of a folder of Hugging Face") {
  const Trained run;
  REQUIRE(run({"export", kLast, "--output", "hf/model.safetensors"}).exit_code == 0);
  write_text(run / "hf/config.json", "{}");
  const Finished shown = run({"inspect", "hf"});
  CHECK(shown.exit_code == 0);
  CHECK(says(shown.out, "layers.layer0.weight"));
  // A checkpoint without its manifest is damaged, and no such folder.
  fs::create_directories(run / "bad.ckpt");
  fs::copy_file(run / "hf/model.safetensors", run / "bad.ckpt/model.safetensors");
  CHECK(run({"inspect", "bad.ckpt"}).exit_code == 4);
}

TEST_CASE("import and pretrained name the prefix of a file's names; pretrained weights are no untrained ones") {
  const Trained run;
  REQUIRE(run({"export", kLast, "--format", "pt"}).exit_code == 0);
  const fulgur::PytorchFile exported = fulgur::read_pytorch_file(run / "last.pt");
  fulgur::NamedTensors prefixed;
  for (const auto& [name, tensor] : exported.tensors) prefixed.emplace_back("module." + name, tensor);
  fulgur::write_pytorch_file(run / "ddp.pt", prefixed);
  const Finished refused = run({"import", "ddp.pt", "-c", "c.yaml"});
  CHECK(refused.exit_code == 4);
  CHECK(says(refused.err, "begin with module."));
  CHECK(says(refused.err, "Add --key_prefix module.="));
  const Finished wrong = run({"test", "-c", "c.yaml", "--pretrained.path", "ddp.pt"});
  CHECK(wrong.exit_code == 4);
  CHECK(says(wrong.err, "Set pretrained.key_prefix: module."));
  const Finished right =
      run({"test", "-c", "c.yaml", "--pretrained.path", "ddp.pt", "--pretrained.key_prefix", "module."});
  INFO(right.err);
  CHECK(right.exit_code == 0);
  CHECK_FALSE(says(right.err, "newly initialized"));
}

TEST_CASE("test prints the folder of a confusion matrix") {
  const Trained run;
  const Finished test = run({"test", "-c", "c.yaml", "--ckpt_path", "last", "--model.metrics", "[ConfusionMatrix]"});
  INFO(test.err);
  REQUIRE(test.exit_code == 0);
  CHECK(says(test.out, "media/test_confusion_matrix\n"));
}

TEST_CASE("import replaces prefixes of names") {
  const Trained run;
  REQUIRE(run({"export", kLast, "--format", "safetensors"}).exit_code == 0);
  const Finished wrong = run({"import", "last.safetensors", "-c", "c.yaml", "--key_prefix", "net.=layers."});
  CHECK(wrong.exit_code == 4);
  CHECK(says(wrong.err, "no tensor of the checkpoint begins with 'net.'"));
  const Finished renamed =
      run({"import", "last.safetensors", "-c", "c.yaml", "--key_prefix=layers.layer0.=layers.layer0.", "--key_prefix",
           "layers.layer1.=x.", "--strict", "false"});
  CHECK(renamed.exit_code == 0);
  CHECK(says(renamed.err, "unexpected: x.weight"));
  CHECK(run({"import", "last.safetensors", "-c", "c.yaml", "--key_prefix", "layers."}).exit_code == 2);
}

TEST_CASE("inspect shows what is in a checkpoint, and whether it verifies") {
  const Trained run;
  const Finished text = run({"inspect", kLast});
  CHECK(text.exit_code == 0);
  for (const char* part :
       {"global step   1", "val_loss", "layers.layer0.weight  F32  [8, 4]", "all bytes match the manifest"})
    CHECK(says(text.out, part));
  const Json good = Json::parse(run({"inspect", kLast, "--json"}).out);
  CHECK(good["verified"] == true);
  CHECK(good["global_step"] == 1);
  CHECK(good["weights_only"] == false);
  CHECK(good["metrics"].contains("val_acc"));
  CHECK(good["files"][0]["name"] == "model.safetensors");
  CHECK(good["files"][0]["tensors"][0]["shape"] == Json{8, 4});

  std::string weights = read_text(run / std::string(kLast).append("/model.safetensors"));
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write_text(run / std::string(kLast).append("/model.safetensors"), weights);
  const Finished damaged = run({"inspect", kLast});
  CHECK(damaged.exit_code == 4);
  CHECK(says(damaged.out, "'layers.layer1.bias' has changed since it was written"));
  const Finished json = run({"inspect", kLast, "--json"});
  CHECK(json.exit_code == 4);
  CHECK(Json::parse(json.out)["problems"][0]["part"] == "layers.layer1.bias");
  CHECK(run({"export", kLast, "--format", "pt"}).exit_code == 4);
  CHECK_FALSE(fs::exists(run / "last.pt"));
}

TEST_CASE("inspect gives the texts of a table as they are in JSON, and escaped to a terminal") {
  const TemporaryFolder folder;
  std::string table = "word,number,y\n";
  for (int i = 0; i < 8; ++i)
    table += std::string(i % 2 ? "\"line\nbreak\"" : "a\tb") + "," + std::to_string(i) + ",1\n";
  write_text(folder / "t.csv", table);
  write_text(folder / "c.yaml", R"(
model: {class_path: TabularMlp, init_args: {hidden: [4]}}
data: {class_path: TableDataModule, init_args: {paths: [t.csv], target: [y], val_fraction: 0}}
optimizer: {class_path: SGD, init_args: {lr: 0.01}}
trainer: {max_steps: 1, accelerator: cpu}
link:
  model.init_args.num_numbers: data.num_numbers
  model.init_args.cardinalities: data.cardinalities
)");
  const Finished fit = trainer({"fit", "-c", "c.yaml"}, {.folder = folder.path()});
  INFO(fit.err);
  REQUIRE(fit.exit_code == 0);
  const Finished json = trainer({"inspect", kLast, "--json"}, {.folder = folder.path()});
  CHECK(Json::parse(json.out)["data"]["columns"]["categories"][0]["values"] == Json{"a\tb", "line\nbreak"});
  CHECK(says(trainer({"inspect", kLast}, {.folder = folder.path()}).out, "line\\nbreak"));
}

TEST_CASE("inspect shows a file of weights") {
  const std::string fixture = FULGUR_TORCH_FIXTURES "/lightning.ckpt";
  const Finished text = trainer({"inspect", fixture});
  CHECK(text.exit_code == 0);
  CHECK(says(text.out, "model.1.running_mean"));
  CHECK(says(text.out, "'optimizer_states' (a list)"));
  const Json json = Json::parse(trainer({"inspect", fixture, "--json"}).out);
  CHECK(json["tensors"].size() == 8);
  CHECK(json["tensors"][0] == Json{{"name", "model.0.weight"}, {"dtype", "F32"}, {"shape", {4, 4}}, {"bytes", 64}});
}

TEST_CASE("the verbs of exchange say what is missing or wrong") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kConfig);
  write_text(folder / "text", "hello, world");
  const auto check = [&](const std::vector<std::string>& arguments, int code, const std::string& words) {
    const Finished finished = trainer(arguments, {.folder = folder.path()});
    INFO(finished.err);
    CHECK(finished.exit_code == code);
    CHECK(says(finished.err, words));
    CHECK(static_cast<size_t>(std::distance(fs::directory_iterator(folder.path()), {})) == 2);
  };
  check({"export"}, 2, "checkpoint");
  check({"export", "nowhere.ckpt"}, 2, "Give --format safetensors or --format pt");
  check({"export", "nowhere.ckpt", "--format", "onnx"}, 2, "onnx");
  check({"export", "nowhere.ckpt", "--format", "pt"}, 4, "nowhere.ckpt does not exist");
  check({"export", "last", "--format", "pt"}, 4, "there is no last; the words last and best are for ckpt_path");
  check({"export", "text", "--format", "pt"}, 4, "is not a checkpoint");
  check({"import", "nowhere.pt", "-c", "c.yaml"}, 4, "No such file");
  check({"import", "text", "-c", "c.yaml"}, 4,
        "must be a safetensors file or a file written by torch.save; it is neither");
  check({"import", FULGUR_TORCH_FIXTURES "/network.pt"}, 2, "needs a model");
  check({"import", FULGUR_TORCH_FIXTURES "/network.pt", "-c", "c.yaml", "--output", "out"}, 2, "must end in .ckpt");
  check({"import", FULGUR_TORCH_FIXTURES "/whole_module.pt", "-c", "c.yaml"}, 4,
        "names 'torch.nn.modules.linear.Linear'");
  check({"import", FULGUR_TORCH_FIXTURES "/network.pt", "-c", "c.yaml", "--strict", "perhaps"}, 2, "perhaps");
  check({"import", FULGUR_TORCH_FIXTURES "/network.pt", "-c", "c.yaml", "--strict", "false"}, 4,
        "does not fit the module");
  check({"inspect", "nowhere"}, 4, "nowhere");
  check({"fit", "--force"}, 2, "unexpected argument '--force'");
}

TEST_CASE("exchange: a LightningModule's network and a PyTorch module of the same shape compute the same") {
  const char* python = std::getenv("FULGUR_TEST_PYTHON");
  if (python == nullptr)
    SKIP("FULGUR_TEST_PYTHON names no Python with torch (scripts/test.sh makes one beside the CUDA LibTorch)");
  const Trained run;
  REQUIRE(run({"export", kLast, "--format", "pt"}).exit_code == 0);
  // The same network in Python takes the weights strictly, changes them, and Fulgur takes them back.
  write_text(run / "p.py", R"(
import sys
try:
    import torch
except ImportError:
    sys.exit(77)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleDict({"layer0": torch.nn.Linear(4, 8), "layer1": torch.nn.Linear(8, 3)})
net = Net()
net.load_state_dict(torch.load("last.pt", weights_only=True))
torch.nn.init.zeros_(net.layers["layer1"].weight)
torch.nn.init.zeros_(net.layers["layer1"].bias)
torch.save({"state_dict": {"net." + k: v for k, v in net.state_dict().items()}}, "zero.ckpt")
)");
  const std::string command = std::string("cd '").append(run.path()).append("' && '").append(python).append("' p.py");
  const int code = WEXITSTATUS(std::system(command.c_str()));
  if (code == 77) SKIP("the Python of FULGUR_TEST_PYTHON has no torch");
  REQUIRE(code == 0);
  const Finished import = run({"import", "zero.ckpt", "-c", "c.yaml", "--key_prefix", "net.=", "--output", "z.ckpt"});
  INFO(import.err);
  REQUIRE(import.exit_code == 0);
  // Logits of 0: the loss of a guess among three classes.
  CHECK(run.test_loss("z.ckpt") > 1.0986);
  CHECK(run.test_loss("z.ckpt") < 1.0987);
}

}  // namespace exchange_verbs_test
