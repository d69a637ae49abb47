// Networks of Python, trained by the program, and models that leave it as TorchScript.
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "process.h"

namespace python_models_cli_test {

using namespace fulgur::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

namespace {

constexpr const char* kScriptConfig = R"(
seed_everything: 1
trainer: {max_epochs: 2, num_threads: 1, enable_model_summary: false, log_every_n_steps: 1}
model: {class_path: TorchScriptModule, init_args: {path: net.pt, loss: cross_entropy}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 48, num_val: 16, num_test: 16, num_classes: 3, shape: [6], batch_size: 8}}
optimizer: {class_path: SGD, init_args: {lr: 0.1, momentum: 0.9}}
)";

/// A folder with the classifier of Python and a config.
struct ScriptFolder : TemporaryFolder {
  ScriptFolder() {
    fs::copy_file(FULGUR_PYTHON_FIXTURES "/classifier.pt", *this / "net.pt");
    write_text(*this / "c.yaml", kScriptConfig);
  }
  Finished run(const Arguments& arguments) const { return trainer(arguments, {.folder = path()}); }
  Finished good(const Arguments& arguments) const {
    Finished finished = run(arguments);
    INFO(finished.err);
    REQUIRE(finished.exit_code == 0);
    return finished;
  }
  /// Trains in a folder of this name and returns the report.
  Json fit(const std::string& name, const Arguments& more = {}) const {
    Arguments arguments{"fit", "-c", "c.yaml", "--trainer.default_root_dir", name, "--report", "r.json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    good(arguments);
    return Json::parse(read_text(*this / "r.json"));
  }
  /// The bytes of the weights of a checkpoint.
  std::string weights(const Json& report) const {
    good({"export", report["last_checkpoint"].get<std::string>(), "--output", "w.safetensors", "--force"});
    return read_text(*this / "w.safetensors");
  }
  /// Runs Python in the folder; skips the test without it.
  void python(const std::string& program) const {
    const char* python = std::getenv("FULGUR_TEST_PYTHON");
    if (python == nullptr)
      SKIP("FULGUR_TEST_PYTHON names no Python with torch (scripts/test.sh makes one beside the CUDA LibTorch)");
    write_text(*this / "p.py", "import sys\ntry:\n    import torch\nexcept ImportError:\n    sys.exit(77)\n" + program);
    const std::string command = std::string("cd '").append(path()).append("' && '").append(python).append("' p.py");
    const int code = WEXITSTATUS(std::system(command.c_str()));
    if (code == 77) SKIP("the Python of FULGUR_TEST_PYTHON has no torch");
    REQUIRE(code == 0);
  }
};

}  // namespace

TEST_CASE("a TorchScript network trains, validates, tests and predicts by a config") {
  const ScriptFolder folder;
  const Json fitted = folder.fit("run");
  CHECK(fitted["global_step"] == 12);
  CHECK(fitted["metrics"].contains("val_acc"));
  // num_classes is 0: nothing needs it.
  CHECK_FALSE(says(folder.good({"fit", "-c", "c.yaml", "--trainer.fast_dev_run", "true"}).err, "trainer.not_linked"));
  const std::string last = fitted["last_checkpoint"];
  folder.good({"test", "-c", "c.yaml", "--ckpt_path", last, "--report", "t.json"});
  const Json tested = Json::parse(read_text(folder / "t.json"));
  CHECK(tested["metrics"].contains("test_acc"));
  const Finished predicted = folder.good({"predict", "-c", "c.yaml", "--ckpt_path", last});
  CHECK(says(predicted.out, "predictions"));
  const Finished metric = folder.run({"test", "-c", "c.yaml", "--ckpt_path", last, "--model.num_classes", "3",
                                      "--model.metrics+=FBeta", "--report", "t.json"});
  INFO(metric.err);
  CHECK(metric.exit_code == 0);
  CHECK(Json::parse(read_text(folder / "t.json"))["metrics"].contains("test_f_beta"));
}

TEST_CASE("a TorchScript run that is stopped and resumed has the bits of one that is not") {
  const ScriptFolder folder;
  const Arguments averaging{"--trainer.callbacks+=WeightAveraging", "--trainer.callbacks.decay", "0.5",
                            "--trainer.accumulate_grad_batches", "2"};
  const Json whole = folder.fit("whole", averaging);
  Arguments first = averaging;
  first.insert(first.end(), {"--trainer.max_epochs", "1"});
  const Json half = folder.fit("half", first);
  Arguments second = averaging;
  second.insert(second.end(), {"--ckpt_path", half["last_checkpoint"].get<std::string>()});
  const Json resumed = folder.fit("half", second);
  CHECK(resumed["global_step"] == whole["global_step"]);
  CHECK(folder.weights(resumed) == folder.weights(whole));
  const auto averaged = [&](const Json& report) {
    folder.good(
        {"export", report["last_checkpoint"].get<std::string>(), "--averaged", "--output", "a.safetensors", "--force"});
    return read_text(folder / "a.safetensors");
  };
  CHECK(averaged(resumed) == averaged(whole));
  CHECK(averaged(whole) != folder.weights(whole));
}

TEST_CASE("a TorchScript network trains in mixed precision, with clipping, and on two ranks") {
  const ScriptFolder folder;
  const Json plain = folder.fit("plain");
  const double loss = plain["metrics"]["val_loss"].get<double>();
  const Json mixed = folder.fit("mixed", {"--trainer.precision", "bf16-mixed"});
  CHECK(mixed["metrics"]["val_loss"] != plain["metrics"]["val_loss"]);
  CHECK(std::abs(mixed["metrics"]["val_loss"].get<double>() - loss) < 0.1);
  const Json clipped = folder.fit("clipped", {"--trainer.gradient_clip_val", "0.01"});
  CHECK(folder.weights(clipped) != folder.weights(plain));
  // The network without a batch norm, which sees one rank's samples.
  fs::copy_file(FULGUR_PYTHON_FIXTURES "/with_steps.pt", folder / "steps.pt");
  const Arguments steps{"--model.path", "steps.pt", "--model.loss", "module", "--trainer.accelerator", "cpu"};
  const auto with = [&](const Arguments& more) {
    Arguments all = steps;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Json one = folder.fit("one", steps);
  const Json two =
      folder.fit("two", with({"--trainer.devices", "2", "--trainer.strategy", "ddp", "--data.batch_size", "4"}));
  CHECK(one["global_step"] == two["global_step"]);
  CHECK(std::abs(two["metrics"]["val_loss"].get<double>() - one["metrics"]["val_loss"].get<double>()) < 1e-5);
}

TEST_CASE("scalars that training_step of a TorchScript module returns are logged") {
  const ScriptFolder folder;
  fs::copy_file(FULGUR_PYTHON_FIXTURES "/with_steps.pt", folder / "steps.pt");
  folder.fit("run", {"--model.path", "steps.pt", "--model.loss", "module"});
  const std::string rows = read_text(folder / "run/fulgur_logs/version_0/metrics.csv");
  CHECK(says(rows, "train_spread"));
}

TEST_CASE("weights of a TorchScript run go back to Python by name, as weights and as a program") {
  const ScriptFolder folder;
  const std::string last = folder.fit("run")["last_checkpoint"];
  folder.good({"export", last, "--output", "w.pt"});
  const Finished script = folder.good({"export", last, "--format", "torchscript", "--output", "trained.ts"});
  CHECK(script.out == "trained.ts\n");
  folder.python(R"(
weights = torch.load("w.pt", weights_only=True)
model = torch.jit.load("net.pt")
before = model.state_dict()["net.0.weight"].clone()
model.load_state_dict(weights)
assert not torch.equal(before, weights["net.0.weight"])
trained = torch.jit.load("trained.ts")
assert not trained.training
x = torch.randn(7, 6)
assert torch.allclose(model.eval()(x), trained(x), atol=1e-6)
)");
}

TEST_CASE("a model of Fulgur leaves as TorchScript that takes any batch size and has the model's names") {
  const ScriptFolder folder;
  const Arguments mlp{"--model", "MlpClassifier", "--model.in_features", "6", "--model.num_classes", "3"};
  write_text(folder / "c.yaml", R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false}
data: {class_path: SyntheticDataModule, init_args: {num_train: 48, num_val: 16, num_test: 16, num_classes: 3, shape: [6], batch_size: 8}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)");
  const std::string last = folder.fit("mlp", mlp)["last_checkpoint"];
  const Finished exported = folder.good({"export", last, "--format", "torchscript", "--output", "mlp.ts"});
  CHECK_FALSE(says(exported.err, "takes only batches"));
  CHECK(folder.run({"export", last, "--output", "mlp.ts"}).exit_code == 4);
  folder.good({"export", last, "--output", "mlp.ts", "--force"});
  folder.good({"export", last, "--output", "shape.ts", "--input", "6"});
  folder.good({"export", last, "--output", "mlp.pt"});
  // A program of Fulgur is a network for Fulgur: both have the same test results.
  folder.good({"test", "-c", "c.yaml", "--model", "TorchScriptModule", "--model.path", "mlp.ts", "--model.loss",
               "cross_entropy", "--report", "script.json"});
  Arguments test{"test", "-c", "c.yaml", "--ckpt_path", last, "--report", "mlp.json"};
  test.insert(test.end(), mlp.begin(), mlp.end());
  folder.good(test);
  CHECK(Json::parse(read_text(folder / "script.json"))["metrics"] ==
        Json::parse(read_text(folder / "mlp.json"))["metrics"]);
  folder.python(R"(
weights = torch.load("mlp.pt", weights_only=True)
for name in "mlp.ts", "shape.ts":
    model = torch.jit.load(name)
    assert sorted(model.state_dict()) == sorted(weights), list(model.state_dict())
    for size in 1, 2, 64:
        assert model(torch.randn(size, 6)).shape == (size, 3)
)");
}

TEST_CASE("models that use the number of samples in their shapes leave as TorchScript for any number") {
  const ScriptFolder folder;
  const auto exported = [&](const std::string& name, const Arguments& model, const std::string& shape) {
    write_text(
        folder / "c.yaml",
        "seed_everything: 1\ntrainer: {max_epochs: 1, num_threads: 1, limit_train_batches: 1, "
        "enable_model_summary: false}\noptimizer: {class_path: SGD, init_args: {lr: 0.1}}\n"
        "data: {class_path: SyntheticDataModule, init_args: {num_train: 16, num_val: 8, num_test: 8, num_classes: 3, "
        "batch_size: 8, shape: " +
            shape + "}}\n");
    const std::string last = folder.fit(name, model)["last_checkpoint"];
    return folder.good({"export", last, "--format", "torchscript", "--output", name + ".ts"});
  };
  CHECK_FALSE(says(exported("vit",
                            {"--model", "VisionTransformer", "--model.image_size", "8", "--model.patch_size", "4",
                             "--model.num_layers", "1", "--model.num_heads", "2", "--model.hidden_dim", "8",
                             "--model.mlp_dim", "8", "--model.num_classes", "3"},
                            "[3, 8, 8]")
                       .err,
                   "takes only batches"));
  CHECK_FALSE(
      says(exported("cnn", {"--model", "CnnClassifier", "--model.num_classes", "3"}, "[1, 28, 28]").err, "takes only"));
}

TEST_CASE("what cannot be exported, and options that do not apply, are said") {
  const ScriptFolder folder;
  const std::string last = folder.fit("run")["last_checkpoint"];
  const auto refused = [&](const Arguments& arguments, const std::string& words) {
    const Finished finished = folder.run(arguments);
    INFO(finished.err);
    CHECK(finished.exit_code == 2);
    CHECK(says(finished.err, words));
  };
  refused({"export", last, "--format", "pt", "--input", "6"}, "--input is for --format torchscript");
  refused({"export", last, "--format", "torchscript", "--input", "6:float16"}, "--input takes the shape of one sample");
  refused({"export", last, "--format", "torchscript", "--trainer.max_epochs", "3"},
          "export takes options of the model");
  // An option of the model, after the file has moved.
  fs::rename(folder / "net.pt", folder / "moved.pt");
  refused({"export", last, "--format", "torchscript"}, "there is no net.pt");
  folder.good({"export", last, "--format", "torchscript", "--model.path", "moved.pt"});
}

TEST_CASE("a wrong loss and a wrong file end a run of a TorchScript network with exit code 2") {
  const ScriptFolder folder;
  const auto refused = [&](const Arguments& more, const std::string& words) {
    Arguments arguments{"fit", "-c", "c.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = folder.run(arguments);
    INFO(finished.err);
    CHECK(finished.exit_code == 2);
    CHECK(says(finished.err, words));
  };
  refused({"--model.loss", "cross_entrpy"}, "huber_loss");
  refused({"--model.path", "missing.pt"}, "there is no missing.pt");
  refused({"--model.path", FULGUR_PYTHON_FIXTURES "/state_dict.pt"}, "has weights but no program");
  refused({"--model.path", FULGUR_PYTHON_FIXTURES "/frozen.pt"}, "nothing to train");
  refused({"--model.target", "y"}, "model.init_args.target must name an entry of the batch that is a tensor; got 'y'");
  refused({"--model.inputs", "[y]"}, "model.init_args.inputs must name an entry of the batch that is a tensor; got 'y'");
  refused({"--model.loss", "module"}, "no method training_step or loss");
  refused({"--model", "TorchExportModule", "--model.path", FULGUR_PYTHON_FIXTURES "/exported.pt2"},
          "aoti_compile_and_package");
}

TEST_CASE("a package of torch.export predicts and tests as Python's module does") {
  const ScriptFolder folder;
  // Compiling takes a minute of two processors, and a compiler.
  folder.python(R"(
import shutil
if shutil.which("g++") is None:
    sys.exit(77)
model = torch.jit.load("net.pt").eval()
class Twin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    def forward(self, x):
        return self.net(x)
twin = Twin().eval()
twin.load_state_dict(model.state_dict())
program = torch.export.export(twin, (torch.randn(4, 6),), dynamic_shapes={"x": {0: torch.export.Dim("n", min=1, max=1024)}})
torch._inductor.aoti_compile_and_package(program, package_path=sys.path[0] + "/net.pt2")
)");
  const auto metrics = [&](const Arguments& model) {
    Arguments arguments{"test", "-c", "c.yaml", "--report", "t.json"};
    arguments.insert(arguments.end(), model.begin(), model.end());
    folder.good(arguments);
    return Json::parse(read_text(folder / "t.json"))["metrics"];
  };
  const Json script = metrics({});
  const Json package =
      metrics({"--model", "TorchExportModule", "--model.path", "net.pt2", "--model.loss", "cross_entropy"});
  CHECK(std::abs(script["test_loss"].get<double>() - package["test_loss"].get<double>()) < 1e-5);
  CHECK(script["test_acc"] == package["test_acc"]);
  const Finished fit = folder.run({"fit", "-c", "c.yaml", "--model", "TorchExportModule", "--model.path", "net.pt2",
                                   "--model.loss", "cross_entropy"});
  CHECK(fit.exit_code == 2);
  CHECK(says(fit.err, "cannot be trained"));
  const Finished predicted =
      folder.good({"predict", "-c", "c.yaml", "--model", "TorchExportModule", "--model.path", "net.pt2"});
  CHECK_FALSE(says(predicted.err, "newly initialized"));
}

}  // namespace python_models_cli_test
