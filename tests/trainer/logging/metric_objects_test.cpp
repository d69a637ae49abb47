// Metrics that are logged as objects: their values are those of all batches of the epoch.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/on_exception_checkpoint.h"
#include "fulgur/core/contracts/metric.h"
#include "fulgur/metrics/confusion_matrix.h"
#include "fulgur/metrics/ranking.h"
#include "fulgur/metrics/stat_scores.h"
#include "support/expect_error.h"
#include "trainer/boring.h"

namespace metric_objects_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

metrics::Accuracy::Options two_classes() {
  metrics::Accuracy::Options options;
  options.num_classes = 2;
  return options;
}

// Which of the two outputs is larger, and whether that is so in the target.
struct Measured : SelfPlanned {
  metrics::Accuracy train_acc{two_classes()}, val_acc{two_classes()};
  int64_t right = 0, samples = 0;  // of validation, counted by hand

  StepOutput training_step(const Batch& batch, int64_t) override {
    const Tensor out = forward(batch[0]);
    train_acc.update(out, batch[1].argmax(1));
    log("train_acc", train_acc);
    return at::mse_loss(out, batch[1]);
  }
  void on_validation_epoch_start() override { right = samples = 0; }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    const Tensor out = forward(batch[0]), target = batch[1].argmax(1);
    right += out.argmax(1).eq(target).sum().item<int64_t>();
    samples += target.size(0);
    val_acc.update(out, target);
    log("val_acc", val_acc, {.prog_bar = true});
    return {};
  }
};

// With the same weights each time.
template <class M>
std::shared_ptr<M> make() {
  at::manual_seed(3);
  return std::make_shared<M>();
}

struct Rows {
  std::shared_ptr<MemoryLogger> logger = std::make_shared<MemoryLogger>();
  FitReport report;
};

Rows fit(const TemporaryFolder& folder, std::shared_ptr<LightningModule> module,
         const std::function<void(TrainerOptions&, TrainerComponents&)>& change = {},
         const CheckpointChoice& from = {}) {
  Rows rows;
  TrainerOptions options = quiet(folder);
  TrainerComponents components;
  components.seed = 5;
  components.loggers = {rows.logger};
  if (change) change(options, components);
  rows.report = Trainer(options, components).fit(std::move(module), regression_data(), from);
  return rows;
}

// Logs a metric in validation in a way that may be wrong.
struct Misused : SelfPlanned {
  metrics::Accuracy first{two_classes()}, second{two_classes()};
  std::function<void(Misused&, const Tensor&, const Tensor&)> use;
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    use(*this, forward(batch[0]), batch[1].argmax(1));
    return {};
  }
};

std::string refused(std::function<void(Misused&, const Tensor&, const Tensor&)> use) {
  const TemporaryFolder folder;
  auto module = make<Misused>();
  module->use = std::move(use);
  return message_of<Error>([&] { fit(folder, module); });
}

std::string refused(const LogOptions& options) {
  return refused([&](Misused& m, const Tensor& out, const Tensor& target) {
    m.first.update(out, target);
    m.log("x", m.first, options);
  });
}

}  // namespace

TEST_CASE("a metric object is logged with its value over all batches of the epoch, and is reset") {
  const TemporaryFolder folder;
  struct Shown : Callback {
    std::vector<Metrics> values;
    void on_validation_end(RunContext& run) override { values.push_back(run.logged_metrics().progress_metrics()); }
  };
  auto shown = std::make_shared<Shown>();
  auto module = make<Measured>();
  const Rows rows = fit(folder, module, [&](TrainerOptions& options, TrainerComponents& components) {
    options.max_epochs = 2;
    components.callbacks = {shown};
  });
  const auto values = rows.logger->values("val_acc");
  REQUIRE(values.size() == 2);
  REQUIRE(module->samples == 12);
  const double expected = static_cast<double>(module->right) / 12;
  CHECK(values.back() == std::pair<int64_t, double>(20, expected));
  CHECK(rows.report.metric("val_acc") == expected);
  CHECK(rows.logger->values("train_acc").size() == 2);
  CHECK(module->val_acc.updates() == 0);
  CHECK(module->train_acc.updates() == 0);
  REQUIRE(shown->values.size() == 2);
  CHECK(shown->values.back() == Metrics{{"val_acc", expected}});
}

TEST_CASE("log(name, metric) refuses options and objects that have no meaning") {
  CHECK_THAT(refused({.on_step = true}), ContainsSubstring("is logged for the epoch"));
  CHECK_THAT(refused({.on_epoch = false}), ContainsSubstring("is logged for the epoch"));
  CHECK_THAT(refused({.reduce_fx = Reduce::max}), ContainsSubstring("Leave out reduce_fx"));
  CHECK_THAT(refused({.batch_size = 4}), ContainsSubstring("Leave out batch_size"));
  CHECK_THAT(refused([](Misused& m, const Tensor& out, const Tensor& target) {
               m.first.update(out, target);
               m.log("x", m.first);
               m.log("y", m.first);
             }),
             ContainsSubstring("one metric per loader"));
  CHECK_THAT(refused([](Misused& m, const Tensor& out, const Tensor& target) {
               m.first.update(out, target);
               m.log("x", m.first);
               m.log("x", m.second);
             }),
             ContainsSubstring("another metric object"));
  CHECK_THAT(refused([](Misused& m, const Tensor&, const Tensor&) { m.log("never", m.first); }),
             ContainsSubstring("'never' was logged, but the metric got no batch"));
}

TEST_CASE("one object cannot be logged by two stages at a time, nor outside of steps and epochs") {
  struct Shared : Measured {
    Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
      train_acc.update(forward(batch[0]), batch[1].argmax(1));
      log("val_acc", train_acc);
      return {};
    }
  };
  struct Early : Measured {
    void on_fit_start() override { log("x", val_acc); }
  };
  const TemporaryFolder folder;
  CHECK_THAT(message_of<Error>([&] { fit(folder, make<Shared>()); }), ContainsSubstring("one metric per stage"));
  CHECK_THAT(message_of<Error>([&] { fit(folder, make<Early>()); }),
             ContainsSubstring("cannot be logged from this hook"));
}

TEST_CASE("an epoch that is resumed in its middle has the value of one that was not stopped") {
  const TemporaryFolder folder;
  const auto epochs = [](TrainerOptions& options, TrainerComponents&) { options.max_epochs = 2; };
  const Rows whole = fit(folder, make<Measured>(), epochs);
  REQUIRE(whole.report.global_step == 20);
  for (const int64_t stop : {3, 10, 17}) {
    CAPTURE(stop);
    auto module = make<Measured>();
    const Rows first = fit(folder, module, [&](TrainerOptions& options, TrainerComponents&) {
      options.max_epochs = 2;
      options.max_steps = stop;
    });
    REQUIRE(first.report.last_checkpoint);
    CHECK(module->train_acc.updates() == 0);  // the module may be in another run next
    const Rows second = fit(folder, make<Measured>(), epochs, first.report.last_checkpoint->string());
    for (const char* name : {"train_acc", "val_acc"}) {
      const auto all = whole.logger->values(name), later = second.logger->values(name);
      CHECK(later.size() == (stop < 10 ? 2 : 1));
      CHECK(std::equal(later.rbegin(), later.rend(), all.rbegin()));
    }
  }
}

TEST_CASE("a batch that fails leaves no trace in a checkpoint of the exception") {
  struct Failing : Measured {
    bool fails = false;
    StepOutput training_step(const Batch& batch, int64_t batch_idx) override {
      StepOutput out = Measured::training_step(batch, batch_idx);
      if (fails && batch_idx == 4) throw std::runtime_error("as asked for");
      return out;
    }
  };
  const TemporaryFolder folder;
  const Rows whole = fit(folder, make<Failing>());
  auto failing = make<Failing>();
  failing->fails = true;
  const auto saving = std::make_shared<OnExceptionCheckpoint>(OnExceptionCheckpoint::Options{});
  CHECK_THROWS(fit(folder, failing, [&](TrainerOptions& options, TrainerComponents& components) {
    options.default_root_dir = folder.path() / "failed";
    components.callbacks = {saving};
  }));
  std::optional<std::filesystem::path> saved;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path() / "failed"))
    if (entry.path().extension() == ".ckpt" && !entry.is_symlink()) saved = entry.path();
  REQUIRE(saved);
  const Rows resumed = fit(folder, make<Failing>(), {}, saved->string());
  CHECK(resumed.logger->values("train_acc") == whole.logger->values("train_acc"));
}

TEST_CASE("a metric that is a matrix becomes a picture and a table, one that is a vector a value per class") {
  struct Detailed : SelfPlanned {
    metrics::ConfusionMatrix confusion{{.num_classes = 2}};
    std::optional<metrics::Accuracy> per_class;
    Tensor counts = at::zeros({2, 2}, at::kLong);
    Detailed() {
      metrics::Accuracy::Options options = two_classes();
      options.average = metrics::Average::none;
      per_class.emplace(options);
    }
    Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
      const Tensor out = forward(batch[0]), target = batch[1].argmax(1), found = out.argmax(1);
      for (int64_t i = 0; i < target.size(0); ++i) counts[target[i].item<int64_t>()][found[i].item<int64_t>()] += 1;
      confusion.update(out, target);
      per_class->update(out, target);
      log("confusion", confusion);
      log("acc", *per_class);
      return {};
    }
  };
  const TemporaryFolder folder;
  auto module = make<Detailed>();
  const Rows rows = fit(folder, module);
  const auto& media = rows.logger->media;
  REQUIRE(media.size() == 2);
  CHECK(media.front().step == 10);
  const auto& image = std::get<ImageRecord>(media.front().record);
  CHECK(image.name == "confusion");
  CHECK(image.pixels.scalar_type() == at::kByte);
  CHECK(image.pixels.sizes() == at::IntArrayRef({3, 64, 64}));
  const auto count = [&](int64_t i, int64_t j) { return std::to_string(module->counts[i][j].item<int64_t>()); };
  CHECK(markdown_table(std::get<TableRecord>(media.back().record)) ==
        "| rows: label, columns: prediction | 0 | 1 |\n|---|---|---|\n| 0 | " + count(0, 0) + " | " + count(0, 1) +
            " |\n| 1 | " + count(1, 0) + " | " + count(1, 1) + " |\n");
  const Tensor shares = module->counts.diagonal().to(at::kDouble) / module->counts.sum(1);
  for (int64_t i = 0; i < 2; ++i) CHECK(rows.report.metric("acc_" + std::to_string(i)) == shares[i].item<double>());
}

TEST_CASE("the sanity check leaves no trace in metric objects") {
  const TemporaryFolder folder;
  auto module = make<Measured>();
  struct AtStart : Callback {
    std::shared_ptr<Measured> module;
    int64_t updates = -1;
    void on_train_start(RunContext&) override { updates = module->val_acc.updates(); }
  };
  auto at_start = std::make_shared<AtStart>();
  at_start->module = module;
  const Rows rows = fit(folder, module, [&](TrainerOptions& options, TrainerComponents& components) {
    options.num_sanity_val_steps = 2;
    components.callbacks = {at_start};
  });
  CHECK(at_start->updates == 0);
  CHECK(rows.logger->values("val_acc").size() == 1);
  CHECK(rows.report.metric("val_acc") == static_cast<double>(module->right) / 12);
}

TEST_CASE("a metric that keeps all samples is resumed too") {
  struct Ranked : SelfPlanned {
    metrics::Auroc auroc{{.num_classes = 2}};
    StepOutput training_step(const Batch& batch, int64_t) override {
      const Tensor out = forward(batch[0]);
      auroc.update(out, batch[1].argmax(1));
      log("auroc", auroc);
      return at::mse_loss(out, batch[1]);
    }
  };
  const TemporaryFolder folder;
  const Rows whole = fit(folder, make<Ranked>());
  const Rows first =
      fit(folder, make<Ranked>(), [](TrainerOptions& options, TrainerComponents&) { options.max_steps = 4; });
  const Rows second = fit(folder, make<Ranked>(), {}, first.report.last_checkpoint->string());
  CHECK(second.report.metric("auroc") == whole.report.metric("auroc"));
}

}  // namespace metric_objects_test
