// Networks of Python, trained by the program, and models that leave it as TorchScript.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

// Last: LibTorch defines its own CHECK.
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

TEST_CASE("models that were trained in another precision leave as TorchScript of float32") {
  const ScriptFolder folder;
  write_text(folder / "c.yaml", R"(
seed_everything: 1
trainer: {max_epochs: 1, num_threads: 1, enable_model_summary: false}
data: {class_path: SyntheticDataModule, init_args: {num_train: 16, num_val: 8, num_classes: 3, shape: [6], batch_size: 8}}
optimizer: {class_path: SGD, init_args: {lr: 0.1}}
)");
  for (const std::string precision : {"bf16-true", "64-true"}) {
    const std::string last =
        folder.fit(precision, {"--model", "MlpClassifier", "--model.in_features", "6", "--model.num_classes", "3",
                               "--trainer.precision", precision})["last_checkpoint"];
    const Finished exported =
        folder.good({"export", last, "--format", "torchscript", "--output", precision + ".ts", "--input", "6"});
    CHECK(says(exported.err, "tensors of another precision"));
    folder.good({"export", last, "--format", "pt", "--output", precision + ".pt"});
  }
  folder.python(R"(
for name in "bf16-true", "64-true":
    model, weights = torch.jit.load(name + ".ts"), torch.load(name + ".pt", weights_only=True)
    assert weights and all(torch.equal(value, weights[key].float()) for key, value in model.state_dict().items())
    assert model(torch.randn(2, 6)).dtype == torch.float32
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
  // Of operations that every LibTorch has, not Fulgur's own.
  folder.python(R"(
for name, shape in ("vit", (5, 3, 8, 8)), ("cnn", (5, 1, 28, 28)):
    assert torch.jit.load(name + ".ts")(torch.randn(shape)).shape == (5, 3)
)");
}

namespace {

constexpr const char* kOneEpoch =
    "seed_everything: 1\n"
    "trainer: {max_epochs: 1, num_threads: 1, limit_train_batches: 1, limit_val_batches: 1, "
    "enable_model_summary: false}\n"
    "optimizer: {class_path: SGD, init_args: {lr: 0.1}}\n";

/// The program of `file`, and its outputs for inputs.
class Program {
 public:
  explicit Program(const fs::path& file) : script_(torch::jit::load(file.string())) {}
  at::Tensor operator()(std::vector<c10::IValue> inputs, const std::string& name) {
    const at::NoGradGuard no_grad;
    const c10::IValue outputs = script_.forward(std::move(inputs));
    return name.empty() ? outputs.toTensor() : outputs.toGenericDict().at(name).toTensor();
  }

 private:
  torch::jit::Module script_;
};

bool close_to(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::allclose(a, b, /*rtol=*/1e-4, /*atol=*/1e-5);
}

}  // namespace

TEST_CASE("a GPT leaves as TorchScript for texts of any length") {
  const ScriptFolder folder;
  std::string text;
  for (int i = 0; i < 600; ++i) text += static_cast<char>('a' + i * i % 7);
  write_text(folder / "corpus.txt", text);
  write_text(folder / "c.yaml", std::string(kOneEpoch) + R"(
model: {class_path: GPT, init_args: {n_layer: 2, n_head: 2, n_embd: 8}}
data: {class_path: TextDataModule, init_args: {path: corpus.txt, tokens: char, block_size: 12, batch_size: 8, samples_per_epoch: 16}}
link: {model.vocab_size: data.vocab_size, model.block_size: data.block_size}
)");
  const std::string last = folder.fit("gpt")["last_checkpoint"];
  const Finished exported = folder.good({"export", last, "--output", "gpt.ts"});
  CHECK_FALSE(says(exported.err, "takes only"));
  Program gpt(folder / "gpt.ts");
  const at::Tensor tokens = at::arange(5 * 12, at::kLong).remainder(4).view({5, 12});
  const at::Tensor whole = gpt({tokens}, "probability");
  REQUIRE(whole.sizes() == at::IntArrayRef({5, 12}));
  // A token depends on those before it only.
  for (const int64_t length : {2, 7, 11}) {
    CAPTURE(length);
    const at::Tensor beginning = gpt({tokens.narrow(0, 0, 2).narrow(1, 0, length)}, "probability");
    CHECK(close_to(beginning, whole.narrow(0, 0, 2).narrow(1, 0, length)));
  }
}

TEST_CASE("a BertClassifier leaves as TorchScript for texts of any length, also from named inputs") {
  const ScriptFolder folder;
  fs::copy_file(fs::path(FULGUR_SOURCE_DIR) / "tests/text/fixtures/bpe.json", folder / "bpe.json");
  std::string rows = "text,label\n";
  for (int i = 0; i < 40; ++i)
    rows += std::string(i % 2 ? "one two three" : "six seven").append(i % 5, '!') + (i % 2 ? ",a\n" : ",b\n");
  write_text(folder / "t.csv", rows);
  write_text(folder / "c.yaml", std::string(kOneEpoch) + R"(
model: {class_path: BertClassifier, init_args: {num_layers: 1, num_heads: 2, hidden_dim: 8, mlp_dim: 8, dropout: 0}}
data: {class_path: LabelledTextDataModule, init_args: {path: t.csv, tokenizer: bpe.json, max_length: 24, batch_size: 8}}
link: {model.vocab_size: data.vocab_size, model.max_length: data.max_length, model.num_classes: data.num_classes}
)");
  const std::string last = folder.fit("bert")["last_checkpoint"];
  CHECK_FALSE(says(folder.good({"export", last, "--output", "data.ts"}).err, "takes only"));
  const Finished named =
      folder.good({"export", last, "--output", "named.ts", "--input", "tokens=7:int64", "--input", "mask=7:bool"});
  CHECK(says(named.err + named.out, "takes: tokens, mask"));
  const at::Tensor tokens = at::arange(3 * 5, at::kLong).view({3, 5}) + 1, mask = at::ones({3, 5}, at::kBool);
  at::Tensor expected;
  for (const char* file : {"data.ts", "named.ts"}) {
    CAPTURE(file);
    Program bert(folder / file);
    const at::Tensor probabilities = bert({tokens, mask}, "probabilities");
    REQUIRE(probabilities.sizes() == at::IntArrayRef({3, 2}));
    if (expected.defined()) CHECK(close_to(probabilities, expected));
    expected = probabilities;
    // Padding changes nothing.
    for (const int64_t length : {6, 13, 24}) {
      CAPTURE(length);
      const at::Tensor padded = at::constant_pad_nd(tokens, {0, length - 5}),
                       known = at::constant_pad_nd(mask, {0, length - 5});
      CHECK(close_to(bert({padded, known}, "probabilities"), expected));
    }
  }
  const auto refused = [&](const Arguments& inputs, const std::string& words) {
    Arguments arguments{"export", last, "--output", "no.ts"};
    arguments.insert(arguments.end(), inputs.begin(), inputs.end());
    const Finished finished = folder.run(arguments);
    INFO(finished.err);
    CHECK(finished.exit_code == 2);
    CHECK(says(finished.err, words));
  };
  refused({"--input", "7:int64"}, "with the entries input0. Give each entry that it reads, with the name");
  refused({"--input", "tokens=7:int32"}, "(float32, int64 or bool)");
  refused({"--input", "=7:int64"}, "and with the name of the entry of a batch, as tokens=128:int64; got '=7:int64'");
  refused({"--input", "tokens=7:int64", "--input", "tokens=7:int64"}, "names the entry 'tokens' twice");
}

TEST_CASE("a forecaster leaves as TorchScript for windows of any length; a loop over tokens does not, and says so") {
  const ScriptFolder folder;
  std::string rows = "v\n";
  for (int i = 0; i < 200; ++i) rows += std::to_string(i * 7 % 13) + "\n";
  write_text(folder / "s.csv", rows);
  write_text(folder / "c.yaml", std::string(kOneEpoch) + R"(
model: {class_path: LstmForecaster, init_args: {hidden: 8}}
data: {class_path: SeriesDataModule, init_args: {path: s.csv, columns: [v], targets: [v], window: 10, horizon: 2, batch_size: 8}}
link: {model.num_inputs: data.num_inputs, model.num_outputs: data.num_outputs, model.horizon: data.horizon, model.target_mean: data.target_mean, model.target_std: data.target_std}
)");
  const Finished exported =
      folder.good({"export", folder.fit("lstm")["last_checkpoint"].get<std::string>(), "--output", "lstm.ts"});
  CHECK_FALSE(says(exported.err, "takes only"));
  CHECK(says(exported.err + exported.out, "inspect"));  // for means and deviations
  Program lstm(folder / "lstm.ts");
  for (const int64_t length : {4, 10, 17}) {
    CAPTURE(length);
    const at::Tensor window = at::arange(3 * length, at::kFloat).sin().view({3, length, 1});
    const at::Tensor forecast = lstm({window}, "");
    CHECK(forecast.sizes() == at::IntArrayRef({3, 2, 1}));
    at::Tensor changed = window.clone();
    changed.select(1, length - 1).add_(1);  // the forecast begins after the last value, wherever it is
    CHECK_FALSE(close_to(lstm({changed}, ""), forecast));
  }

  write_text(folder / "c.yaml", std::string(kOneEpoch) +
                                    "model: {class_path: Seq2Seq, init_args: {hidden: 8, embedding: 4}}\n"
                                    "data: {class_path: ReversalDataModule, init_args: {train_samples: 64, "
                                    "val_samples: 16, length: 6}}\n");
  const std::string last = folder.fit("seq2seq")["last_checkpoint"];
  const Finished fixed = folder.good({"export", last, "--output", "seq2seq.ts"});
  CHECK(says(fixed.err, "takes only samples of the length 6"));
  CHECK(says(fixed.err, "--input source=128:int64"));
  CHECK(says(fixed.err, "[cli.export_length]"));
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
  refused({"--model.inputs", "[y]"},
          "model.init_args.inputs must name an entry of the batch that is a tensor; got 'y'");
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
  // A package would compute wrong numbers of another dtype or shape.
  const Finished wide = folder.run({"predict", "-c", "c.yaml", "--model", "TorchExportModule", "--model.path",
                                    "net.pt2", "--trainer.precision", "64-true"});
  CHECK(wide.exit_code == 1);
  CHECK(says(wide.err, "fails for inputs Double ["));
  CHECK(says(wide.err, "the dtypes and shapes of its export"));
}

}  // namespace python_models_cli_test
