// Networks of TorchScript files and their twins in Python (make_python_baseline.py).
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "fulgur/checkpoint/module_state.h"
#include "fulgur/data/tensor_data_module.h"
#include "fulgur/models/torch_modules.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/sgd.h"
#include "fulgur/trainer/trainer.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "trainer/boring.h"

namespace python_models_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;
namespace fs = std::filesystem;

namespace {

const fs::path kHere = fs::path(__FILE__).parent_path();

std::string fixture(const std::string& name) { return (kHere / "fixtures" / "python" / name).string(); }

const nlohmann::json& baseline() {
  static const nlohmann::json read = [] {
    std::ifstream file(kHere / "baselines" / "python.json");
    return nlohmann::json::parse(file);
  }();
  return read;
}

// batch() of the script.
Batch batch_of(int64_t step) {
  const Tensor i = at::arange(8 * 6, at::kDouble);
  const Tensor x = at::sin(0.37 * i + static_cast<double>(step)).view({8, 6}).to(at::kFloat);
  return {x, (at::arange(8, at::kLong) * 7 + step).remainder(3)};
}

TorchScriptModule made(const std::string& file, NamedLoss loss) {
  return TorchScriptModule({.path = fixture(file), .task = {.loss = loss}});
}

std::unique_ptr<Optimizer> optimizer_of(const std::string& name, LightningModule& module) {
  std::unique_ptr<Optimizer> made;
  if (name == "SGD")
    made = std::make_unique<SGD>(SGD::Options{.lr = 0.1, .momentum = 0.9});
  else
    made = std::make_unique<AdamW>(AdamW::Options{.lr = 0.01, .weight_decay = 0.1});
  made->attach(trainable_groups(module));
  return made;
}

std::vector<double> trained(TorchScriptModule& module, const std::string& optimizer_name, int64_t steps = 5) {
  const std::unique_ptr<Optimizer> optimizer = optimizer_of(optimizer_name, module);
  module.train();
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    module.zero_grad();
    const Tensor loss = module.training_step(batch_of(step), step).loss;
    loss.backward();
    module.on_after_backward();
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

Tensor output_of(TorchScriptModule& module, const Tensor& input) {
  const at::NoGradGuard no_grad;
  module.eval();
  return module.forward({input}).begin()->second;
}

NamedLoss loss_named(const std::string& name) { return enum_from<NamedLoss>(name).value(); }

}  // namespace

TEST_CASE("a TorchScriptModule has Python's names, and its five steps have Python's losses") {
  REQUIRE(baseline().at("cases").size() == 6);
  for (const auto& expected : baseline().at("cases")) {
    CAPTURE(expected.at("file").get<std::string>(), expected.at("optimizer").get<std::string>());
    TorchScriptModule module = made(expected.at("file"), loss_named(expected.at("loss")));
    std::vector<std::string> names;
    for (const auto& parameter : module.named_parameters()) names.push_back(parameter.key());
    for (const auto& buffer : module.named_buffers()) names.push_back(buffer.key());
    std::sort(names.begin(), names.end());
    CHECK(names == expected.at("names").get<std::vector<std::string>>());
    const std::vector<double> losses = trained(module, expected.at("optimizer"));
    for (size_t i = 0; i < losses.size(); ++i)
      CHECK(losses[i] == Catch::Approx(expected.at("losses")[i].get<double>()).epsilon(1e-5));
    const Tensor recorded = at::tensor(expected.at("output").get<std::vector<double>>(), at::kFloat);
    // The gradient of a bias before a batch norm is 0 but for roundings. AdamW makes steps of the usual size of it,
    // which the running mean follows only later.
    if (expected.at("file") != "classifier.pt" || expected.at("optimizer") != "AdamW")
      CHECK(at::allclose(output_of(module, batch_of(9)[0]).flatten(), recorded, 1e-4, 1e-5));
  }
}

TEST_CASE("two runs of a TorchScriptModule have the same bits, from the first call on") {
  TorchScriptModule one = made("classifier.pt", NamedLoss::cross_entropy);
  TorchScriptModule other = made("classifier.pt", NamedLoss::cross_entropy);
  // TorchScript's optimizer would rewrite the program after its first calls.
  for (int64_t i = 0; i < 4; ++i) static_cast<void>(output_of(other, batch_of(i)[0]));
  CHECK(trained(one, "SGD") == trained(other, "SGD"));
  CHECK(at::equal(output_of(one, batch_of(7)[0]), output_of(other, batch_of(7)[0])));
}

TEST_CASE("the first argument of forward is the module, whatever its name is") {
  const test::TemporaryFolder folder;
  torch::jit::Module module("Net");
  module.register_parameter("weight", at::ones({6, 3}), /*is_buffer=*/false);
  module.define("def forward(s, x):\n    return x.matmul(s.weight)\n");
  const std::string path = (folder / "net.pt").string();
  module.save(path);
  TorchScriptModule read({.path = path, .task = {.loss = NamedLoss::cross_entropy}});
  const Tensor x = batch_of(0)[0];
  CHECK(at::allclose(output_of(read, x), x.matmul(at::ones({6, 3}))));
  // Other arguments must be tensors.
  torch::jit::Module number("Number");
  number.define("def forward(s, x: int):\n    return x\n");
  number.save(path);
  CHECK_THAT(message_of<ConfigError>([&] { TorchScriptModule({.path = path}); }),
             ContainsSubstring("must take tensors; its argument x is int"));
}

TEST_CASE("weights that Python tied are one parameter") {
  const TorchScriptModule module = made("with_loss.pt", NamedLoss::module);
  CHECK(unique_parameters(module).size() == 5);
  CHECK(parameter_aliases(module).at("second.weight") == "first.weight");
}

TEST_CASE("what the program assigns to a buffer reaches the module, and what is loaded reaches the program") {
  TorchScriptModule module = made("with_loss.pt", NamedLoss::module);
  trained(module, "SGD");
  const auto buffers = module.named_buffers();
  CHECK(buffers["calls"].item<double>() == 5);
  CHECK(buffers["mean"].abs().sum().item<double>() > 0);
  // A checkpoint of these weights gives the same outputs in another object.
  TorchScriptModule other = made("with_loss.pt", NamedLoss::module);
  static_cast<void>(output_of(other, batch_of(1)[0]));
  load_module_state(other, module_state(module));
  CHECK(at::equal(output_of(module, batch_of(2)[0]), output_of(other, batch_of(2)[0])));
  trained(module, "SGD", 2);
  trained(other, "SGD", 2);
  CHECK(other.named_buffers()["calls"].item<double>() == 7);
  CHECK(at::equal(output_of(module, batch_of(2)[0]), output_of(other, batch_of(2)[0])));
  // Without backward the value is pending; a load in between wins.
  other.train();
  static_cast<void>(other.training_step(batch_of(0), 0));
  load_module_state(other, module_state(module));
  trained(other, "SGD", 1);
  CHECK(other.named_buffers()["calls"].item<double>() == 8);
}

TEST_CASE("the mode of a layer is that of the program") {
  const auto module = std::make_shared<TorchScriptModule>(
      TorchScriptModule::Options{.path = fixture("classifier.pt"), .task = {.loss = NamedLoss::cross_entropy}});
  const auto mean = [&] { return module->named_buffers()["net.1.running_mean"].clone(); };
  module->train();
  const Tensor before = mean();
  static_cast<void>(module->training_step(batch_of(0), 0));
  const Tensor after = mean();
  CHECK_FALSE(at::equal(before, after));
  // As callbacks do that freeze a norm.
  for (const auto& [name, layer] : module->named_modules().pairs())
    if (name == "net.1") layer->eval();
  static_cast<void>(module->training_step(batch_of(1), 1));
  CHECK(at::equal(after, mean()));
  module->train();
  static_cast<void>(module->training_step(batch_of(1), 1));
  CHECK_FALSE(at::equal(after, mean()));
}

TEST_CASE("the dtype of a TorchScriptModule is that of the program") {
  TorchScriptModule module = made("classifier.pt", NamedLoss::cross_entropy);
  convert_floating(module, at::kDouble);
  CHECK(output_of(module, batch_of(0)[0].to(at::kDouble)).scalar_type() == at::kDouble);
}

TEST_CASE("each loss by name equals that of torch.nn.functional") {
  const Tensor x = batch_of(0)[0], y = batch_of(0)[1], positive = at::sigmoid(x), binary = x.gt(0).to(at::kFloat);
  const std::map<std::string, std::pair<Tensor, Tensor>> arguments{
      {"cross_entropy", {x, y.remainder(6)}},
      {"nll_loss", {at::log_softmax(x, 1), y}},
      {"binary_cross_entropy", {positive, binary}},
      {"binary_cross_entropy_with_logits", {x, binary}},
      {"multi_margin_loss", {x, y}},
      {"soft_margin_loss", {x, 2 * binary - 1}},
      {"hinge_embedding_loss", {x, 2 * binary - 1}},
      {"mse_loss", {x, positive}},
      {"l1_loss", {x, positive}},
      {"smooth_l1_loss", {x, positive}},
      {"huber_loss", {3 * x, positive}},
      {"kl_div", {at::log_softmax(x, 1), (2 * x).softmax(1)}},
      {"poisson_nll_loss", {x, positive}},
  };
  const auto& expected = baseline().at("functional");
  REQUIRE(expected.size() == arguments.size());
  for (const auto& [name, values] : arguments) {
    CAPTURE(name);
    const double loss = named_loss(loss_named(name), values.first, values.second, 0, "X").item<double>();
    CHECK(loss == Catch::Approx(expected.at(name).get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("metrics of a regression get the output in the shape of the target, as the loss does") {
  const test::TemporaryFolder folder;
  torch::jit::Module net("Net");
  net.register_parameter("weight", at::full({6, 1}, 0.5), /*is_buffer=*/false);
  net.define("def forward(s, x):\n    return x.matmul(s.weight)\n");
  const std::string path = (folder / "net.pt").string();
  net.save(path);
  const auto validated = [&](const Tensor& target) {
    TensorDataModule::Sets sets;
    sets.val = Batch{{"x", batch_of(0)[0]}, {"target", target}};
    const auto module = std::make_shared<TorchScriptModule>(TorchScriptModule::Options{
        .path = path,
        .task = {.loss = NamedLoss::mse_loss,
                 .metrics = {Spec<PredictionMetric>("MeanSquaredError"), Spec<PredictionMetric>("R2Score")}}});
    return Trainer(test::quiet(folder))
        .validate(module, std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 8}));
  };
  const Tensor wanted = at::arange(8, at::kFloat);
  const Tensor error = batch_of(0)[0].matmul(at::full({6, 1}, 0.5)).squeeze(1) - wanted;
  const double expected = error.to(at::kDouble).square().mean().item<double>();
  for (const Tensor& target : {wanted, wanted.unsqueeze(1)}) {
    const EvalReport report = validated(target);
    CHECK(report.metric("val_loss") == Catch::Approx(expected).epsilon(1e-5));
    CHECK(report.metric("val_mean_squared_error") == Catch::Approx(expected).epsilon(1e-5));
    CHECK(report.metric("val_r2_score") < 1);
  }
}

TEST_CASE("a metric that does not fit the numbers of a network says what it compares") {
  const test::TemporaryFolder folder;
  torch::jit::Module net("Net");
  net.define("def loss(s, output, target):\n    return output.mean()\ndef forward(s, x):\n    return x\n");
  const std::string path = (folder / "net.pt").string();
  net.save(path);
  TensorDataModule::Sets sets;
  sets.val = Batch{{"x", batch_of(0)[0]}, {"target", batch_of(0)[1].to(at::kFloat)}};
  const auto module = std::make_shared<TorchScriptModule>(
      TorchScriptModule::Options{.path = path, .task = {.metrics = {Spec<PredictionMetric>("MeanAbsoluteError")}}});
  const auto data = std::make_shared<TensorDataModule>(std::move(sets), TensorDataOptions{.batch_size = 8});
  const std::string message = message_of<Error>([&] { Trainer(test::quiet(folder)).validate(module, data); });
  CHECK_THAT(message, ContainsSubstring("got [8, 6] and [8]") &&
                          ContainsSubstring("The predictions are the first output of the network") &&
                          !ContainsSubstring("labels of the classes"));
}

TEST_CASE("images of integers in a network with floating weights are named, unless the network takes them") {
  const test::TemporaryFolder folder;
  const auto network = [&](const std::string& input) {
    torch::jit::Module net("Net");
    net.register_parameter("weight", at::ones({3, 2}), /*is_buffer=*/false);
    net.define("def forward(s, x):\n    return " + input + ".mean([2, 3]).matmul(s.weight)\n");
    net.save((folder / "net.pt").string());
    return TorchScriptModule({.path = (folder / "net.pt").string(), .task = {.loss = NamedLoss::cross_entropy}});
  };
  const Batch bytes{at::ones({4, 3, 2, 2}, at::kByte), at::zeros({4}, at::kLong)};
  TorchScriptModule converts = network("x.float()");
  CHECK(converts.training_step(bytes, 0).loss.item<double>() > 0);
  TorchScriptModule needs_floats = network("x");
  CHECK_THAT(message_of<ConfigError>([&] { needs_floats.training_step(bytes, 0); }),
             ContainsSubstring("images must be floating-point; got Byte. Add ToFloat or Normalize to "
                               "data.init_args.transforms and to data.init_args.eval_transforms"));
  // Another mistake is another message.
  CHECK_THAT(message_of<Error>([&] {
               converts.training_step({at::ones({4, 5, 2, 2}, at::kByte), bytes[1]}, 0);
             }),
             ContainsSubstring("fails for arguments of shapes") && !ContainsSubstring("ToFloat"));
}

TEST_CASE("a loss of classes says that the output needs a column for each class") {
  const Tensor x = batch_of(0)[0], labels = batch_of(0)[1], column = x.narrow(1, 0, 1);
  for (const NamedLoss loss : {NamedLoss::cross_entropy, NamedLoss::nll_loss, NamedLoss::multi_margin_loss}) {
    CAPTURE(enum_text(loss));
    const auto refused = [&](const Tensor& output, const Tensor& target) {
      return message_of<DataError>([&] { named_loss(loss, output, target, 0, "X"); });
    };
    CHECK_THAT(refused(column, labels),
               ContainsSubstring("needs an output with a column for each class, (N, classes)") &&
                   ContainsSubstring("got an output of shape [8, 1] and a target of shape [8]") &&
                   ContainsSubstring("use binary_cross_entropy_with_logits"));
    CHECK_THAT(refused(column.squeeze(1), labels), ContainsSubstring("got an output of shape [8] and"));
    CHECK_THAT(refused(x, labels.unsqueeze(1)), ContainsSubstring("a target of shape [8, 1]") &&
                                                    ContainsSubstring("model.init_args.target the right entry"));
  }
  // Probabilities as a target have the shape of the output.
  CHECK(named_loss(NamedLoss::cross_entropy, x, x.softmax(1), 0, "X").item<double>() > 0);
}

TEST_CASE("a loss refuses what does not fit, instead of broadcasting") {
  const Tensor x = batch_of(0)[0];
  CHECK_THAT(message_of<DataError>([&] { named_loss(NamedLoss::mse_loss, x, x.narrow(0, 0, 1), 0, "X"); }),
             ContainsSubstring("must have the shape of the output, [8, 6]; got [1, 6]"));
  // (N, 1) and (N) are the same.
  const Tensor column = x.narrow(1, 0, 1);
  CHECK(named_loss(NamedLoss::mse_loss, column, column.squeeze(1), 0, "X").item<double>() == 0);
  CHECK_THAT(
      message_of<DataError>([&] { named_loss(NamedLoss::cross_entropy, x, at::full({8}, 6, at::kLong), 0, "X"); }),
      ContainsSubstring("got 6 at index 0"));
  CHECK_THAT(message_of<DataError>([&] { named_loss(NamedLoss::nll_loss, x, x, 0, "X"); }),
             ContainsSubstring("does not take an output of shape [8, 6] and a target of shape [8, 6]"));
}

TEST_CASE("inputs and target are entries of the batch, by default the first ones and the next") {
  const Tensor x = batch_of(0)[0];
  const Batch batch{{"label", at::ones({8, 1})}, {"b", at::ones({8, 2})}, {"a", x}};
  TorchScriptModule pair({.path = fixture("pair.pt"), .task = {.inputs = {"a", "b"}, .target = "label"}});
  CHECK(pair.inputs_of(batch).size() == 2);
  CHECK(&pair.target_of(batch) == &batch["label"]);
  const Outputs outputs = pair.predict_step(batch, 0, 0);
  REQUIRE(outputs.size() == 2);
  CHECK(outputs["output0"].sizes() == at::IntArrayRef({8, 2}));
  CHECK(at::equal(outputs["output1"], x + 1));
  const TorchScriptModule first = made("classifier.pt", NamedLoss::cross_entropy);
  CHECK(&first.target_of(batch) == &batch["b"]);
  const TorchScriptModule named({.path = fixture("classifier.pt"), .task = {.inputs = {"label"}}});
  CHECK(&named.target_of(batch) == &batch["b"]);
  CHECK_THAT(message_of<DataError>([&] { static_cast<void>(first.target_of(Batch{x})); }),
             ContainsSubstring("Name it with model.init_args.target"));
  // An entry that the batch does not have is a wrong option.
  TorchScriptModule absent({.path = fixture("pair.pt"), .task = {.inputs = {"a", "c"}, .target = "lable"}});
  CHECK_THAT(message_of<ConfigError>([&] { absent.inputs_of(batch); }),
             ContainsSubstring("model.init_args.inputs must name an entry of the batch that is a tensor; got 'c'") &&
                 ContainsSubstring("The batch has: label, b, a."));
  CHECK_THAT(message_of<ConfigError>([&] { static_cast<void>(absent.target_of(batch)); }),
             ContainsSubstring("model.init_args.target must") && ContainsSubstring("did you mean 'label'?"));
  TorchScriptModule wrong = made("classifier.pt", NamedLoss::cross_entropy);
  CHECK_THAT(message_of<Error>([&] {
               wrong.forward({at::ones({2, 5})});
             }),
             ContainsSubstring("fails for arguments of shapes [2, 5]"));
}

TEST_CASE("label smoothing is for cross entropy in training") {
  TorchScriptModule smooth(
      {.path = fixture("classifier.pt"), .task = {.loss = NamedLoss::cross_entropy, .label_smoothing = 0.2}});
  TorchScriptModule plain = made("classifier.pt", NamedLoss::cross_entropy);
  CHECK(smooth.training_step(batch_of(0), 0).loss.item<double>() !=
        plain.training_step(batch_of(0), 0).loss.item<double>());
  CHECK_THAT(message_of<ConfigError>(
                 [] { TorchScriptModule({.path = fixture("classifier.pt"), .task = {.label_smoothing = 0.2}}); }),
             ContainsSubstring("label_smoothing is for the loss cross_entropy"));
}

TEST_CASE("files that are no TorchScript modules are refused, with what to do") {
  const test::TemporaryFolder folder;
  const auto refused = [](const std::string& path) {
    return message_of<ConfigError>([&] { TorchScriptModule({.path = path}); });
  };
  CHECK_THAT(refused((folder / "missing.pt").string()), ContainsSubstring("there is no "));
  CHECK_THAT(refused(folder.path().string()), ContainsSubstring("must name a file"));
  CHECK_THAT(refused(fixture("state_dict.pt")), ContainsSubstring("has weights but no program"));
  CHECK_THAT(refused(fixture("exported.pt2")), ContainsSubstring("aoti_compile_and_package"));
  test::write_text(folder / "text.pt", "hello, world");
  CHECK_THAT(refused((folder / "text.pt").string()), ContainsSubstring("no zip archive"));
  CHECK_THAT(message_of<ConfigError>([&] { TorchExportModule({.path = fixture("traced.pt"), .task = {}}); }),
             ContainsSubstring("Use the model TorchScriptModule"));
  CHECK_THAT(message_of<ConfigError>([&] { TorchExportModule({.path = fixture("exported.pt2"), .task = {}}); }),
             ContainsSubstring("which only Python can run") &&
                 ContainsSubstring(cat("torch.export.load(\"", fixture("exported.pt2"), "\")")));
  TorchScriptModule frozen = made("frozen.pt", NamedLoss::mse_loss);
  CHECK_THAT(message_of<ConfigError>([&] { frozen.setup(TrainerFn::fit); }), ContainsSubstring("torch.jit.freeze"));
  TorchScriptModule without = made("traced.pt", NamedLoss::module);
  CHECK_THAT(message_of<ConfigError>([&] { without.setup(TrainerFn::fit); }),
             ContainsSubstring("no method training_step or loss") && ContainsSubstring("huber_loss"));
  without.setup(TrainerFn::predict);
}

TEST_CASE("a TorchScript file with a wrong byte, or without its end, is refused and crashes nothing") {
  const test::TemporaryFolder folder;
  const std::string bytes = test::read_text(fixture("pair.pt"));
  const fs::path path = folder / "damaged.pt";
  size_t refusals = 0, tries = 0;
  const auto attempt = [&](const std::string& damaged) {
    test::write_text(path, damaged);
    ++tries;
    try {
      TorchScriptModule({.path = path.string()});
    } catch (const ConfigError&) {
      ++refusals;
    }
  };
  for (size_t i = 0; i < bytes.size(); i += 23) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x5a);
    attempt(damaged);
  }
  // Half of the bytes are no content: those between two entries, and dates.
  CHECK(refusals * 3 > tries);
  refusals = tries = 0;
  for (size_t size = 0; size < bytes.size(); size += 311) attempt(bytes.substr(0, size));
  CHECK(refusals == tries);
}

TEST_CASE("a TorchScript file of the trained weights computes what the module computes") {
  const test::TemporaryFolder folder;
  TorchScriptModule module = made("classifier.pt", NamedLoss::cross_entropy);
  trained(module, "SGD");
  test::write_text(folder / "net.ts", module.torchscript());
  TorchScriptModule back({.path = (folder / "net.ts").string(), .task = {.loss = NamedLoss::cross_entropy}});
  CHECK(at::equal(output_of(module, batch_of(3)[0]), output_of(back, batch_of(3)[0])));
  // The module trains on in its own mode.
  CHECK(trained(module, "SGD", 2) == trained(back, "SGD", 2));
}

}  // namespace python_models_test
