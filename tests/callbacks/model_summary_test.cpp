#include "fulgur/callbacks/model_summary.h"

#include "fulgur/callbacks/finetuning.h"

#include "callbacks/scored.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include <catch2/catch_test_macros.hpp>

namespace model_summary_test {

using namespace fulgur;
using namespace fulgur::test;

namespace {

using Lines = std::vector<std::string>;

struct Net : torch::nn::Module {
  torch::nn::Sequential features{torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)), torch::nn::BatchNorm2d(8)};
  torch::nn::Linear head{8, 160}, a{8, 8}, b{8, 8};
  Net() {
    register_module("features", features);
    register_module("head", head);
    register_module("a", a);
    register_module("b", b);
    register_parameter("scale", at::ones({5}));
    b->weight = a->weight;
    tie_parameters(*this, "a.weight", "b.weight");
    a->bias.requires_grad_(false);
    head->eval();
  }
};

}  // namespace

TEST_CASE("summarize: one row a layer, tied weights once, parameters outside the layers, totals") {
  CHECK(summarize(Net(), 1) ==
        Lines{"  | Name         | Type       | Params | Mode", "----------------------------------------------",
              "0 | features     | Sequential | 240    | train", "1 | head         | Linear     | 1.4 K  | eval",
              "2 | a            | Linear     | 72     | train", "3 | b            | Linear     | 8      | train",
              "  | other params | n/a        | 5      | n/a", "----------------------------------------------",
              "1.8 K     Trainable params", "8         Non-trainable params", "1.8 K     Total params",
              "0.007     Total estimated model params size (MB)", "7,060     Bytes of params in float32",
              "5         Modules in train mode", "1         Modules in eval mode",
              "note: features.0 (Conv2d) has a bias, which the following features.1 (BatchNorm2d) cancels. Create it "
              "with .bias(false)."});
}

TEST_CASE("summarize: max_depth says how many levels get a row") {
  const auto names = [](int64_t depth) {
    Lines found;
    for (const std::string& line : summarize(Net(), depth))
      if (line.find(" | ") == 1 && line[0] != ' ') found.push_back(line.substr(4, line.find(' ', 4) - 4));
    return found;
  };
  CHECK(names(1) == Lines{"features", "head", "a", "b"});
  CHECK(names(2) == Lines{"features", "features.0", "features.1", "head", "a", "b"});
  CHECK(names(-1) == names(2));
  CHECK(names(0).empty());
  CHECK(summarize(Net(), 0).front() == "1.8 K     Trainable params");
}

TEST_CASE("summarize: sizes by the real types, with commas") {
  struct Large : torch::nn::Module {
    Large() {
      register_parameter("w", at::empty({400, 1000, 1000}, at::TensorOptions().device(at::kMeta)));
      register_parameter("h", at::empty({1000, 1000}, at::TensorOptions().device(at::kMeta).dtype(at::kHalf)));
    }
  };
  const Lines lines = summarize(Large(), 1);
  CHECK(std::find(lines.begin(), lines.end(), "1,602.000 Total estimated model params size (MB)") != lines.end());
  CHECK(std::find(lines.begin(), lines.end(), "401 M     Total params") != lines.end());
  // A row for each dtype.
  CHECK(std::find(lines.begin(), lines.end(), "1,600,000,000 Bytes of params in float32") != lines.end());
  CHECK(std::find(lines.begin(), lines.end(), "2,000,000 Bytes of params in float16") != lines.end());
}

TEST_CASE("summarize: a note only if batch norm follows a convolution with a bias") {
  using namespace torch::nn;
  const auto notes = [](Sequential layers) {
    size_t count = 0;
    for (const std::string& line : summarize(*layers, 1)) count += line.starts_with("note: ");
    return count;
  };
  CHECK(notes(Sequential(Conv1d(Conv1dOptions(2, 4, 3)), BatchNorm1d(4), Conv1d(Conv1dOptions(4, 4, 3)),
                         BatchNorm1d(4))) == 2);
  CHECK(notes(Sequential(ConvTranspose2d(ConvTranspose2dOptions(2, 4, 3)), BatchNorm2d(4))) == 1);
  CHECK(notes(Sequential(Conv2d(Conv2dOptions(2, 4, 3).bias(false)), BatchNorm2d(4))) == 0);
  CHECK(notes(Sequential(Conv2d(Conv2dOptions(2, 4, 3)), ReLU(), BatchNorm2d(4))) == 0);
  CHECK(notes(Sequential(BatchNorm2d(2), Conv2d(Conv2dOptions(2, 4, 3)))) == 0);
  CHECK(notes(Sequential(Linear(4, 4), BatchNorm1d(4))) == 0);
}

TEST_CASE("ModelSummary prints when a fit begins, and only then") {
  const auto lines = [](TrainerFn fn, int64_t depth) {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.enable_model_summary = false;
    TrainerComponents components;
    components.add(std::make_shared<ModelSummary>(ModelSummary::Options{.max_depth = depth}));
    LogLines log;
    Trainer trainer(options, components);
    auto module = std::make_shared<SelfPlanned>();
    if (fn == TrainerFn::fit)
      trainer.fit(module, regression_data(8, 4));
    else
      trainer.validate(module, regression_data(8, 4));
    return std::pair{log.count("0 | first  | Linear  | 40     | train"), log.count("58        Total params")};
  };
  CHECK(lines(TrainerFn::fit, 1) == std::pair<size_t, size_t>(1, 1));
  CHECK(lines(TrainerFn::fit, 0) == std::pair<size_t, size_t>(0, 1));
  CHECK(lines(TrainerFn::validate, 1) == std::pair<size_t, size_t>(0, 0));
}

TEST_CASE("ModelSummary says how many parameters are trained after Finetuning has frozen some") {
  const auto count = [](std::vector<std::string> freeze) {
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.enable_model_summary = false;
    TrainerComponents components;
    if (!freeze.empty()) components.add(std::make_shared<Finetuning>(Finetuning::Options{.freeze = std::move(freeze)}));
    components.add(std::make_shared<ModelSummary>(ModelSummary::Options{}));
    LogLines log;
    Trainer trainer(options, components);
    trainer.fit(std::make_shared<SelfPlanned>(), regression_data(8, 4));
    return std::pair{log.count("which parameters are trained"),
                     log.count("now 18 trainable params, 40 non-trainable params")};
  };
  CHECK(count({"first.*"}) == std::pair<size_t, size_t>(1, 1));
  CHECK(count({}) == std::pair<size_t, size_t>(0, 0));
}

}  // namespace model_summary_test
