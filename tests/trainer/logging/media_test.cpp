// log_media and log_artifact: what reaches the loggers, with which step, and what does not.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/callbacks/on_exception_checkpoint.h"
#include "support/expect_error.h"
#include "trainer/boring.h"

namespace media_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

namespace {

std::shared_ptr<MemoryLogger> fit(const TemporaryFolder& folder, std::shared_ptr<LightningModule> module,
                                  const std::function<void(TrainerOptions&, TrainerComponents&)>& change = {}) {
  auto logger = std::make_shared<MemoryLogger>();
  TrainerOptions options = quiet(folder);
  TrainerComponents components;
  components.seed = 5;
  components.loggers = {logger};
  if (change) change(options, components);
  try {
    Trainer(options, components).fit(std::move(module), regression_data(40, 12, 4, false));
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()) != "the user's") throw;
  }
  return logger;
}

/// Steps of the records with that name.
std::vector<int64_t> steps_of(const MemoryLogger& logger, std::string_view name) {
  std::vector<int64_t> steps;
  for (const auto& [step, record] : logger.media)
    if (media_name(record) == name) steps.push_back(step);
  return steps;
}

const Tensor& values_of(const MemoryLogger::Media& media) { return std::get<HistogramRecord>(media.record).values; }

}  // namespace

TEST_CASE("modules and callbacks log media; the step is the number of steps done at the end of the batch") {
  struct Logging : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (i % 2 == 1) log_media(TextRecord{"in_step", "text"});
      return SelfPlanned::training_step(batch, i);
    }
    Outputs validation_step(const Batch& batch, int64_t i, int64_t loader) override {
      log_media(TextRecord{"val", std::to_string(i)});
      return SelfPlanned::validation_step(batch, i, loader);
    }
    void on_train_epoch_end() override { log_media(TextRecord{"epoch_end", "text"}); }
    void on_fit_end() override { log_media(TextRecord{"fit_end", "text"}); }
  };
  struct Watching : Callback {
    void on_train_start(RunContext& run) override { run.log_media(TextRecord{"start", "text"}); }
    void on_train_batch_end(RunContext& run, const StepOutput&, const Batch&, int64_t i) override {
      if (i == 3) run.log_media(TextRecord{"batch_end", "text"});
    }
  };
  const TemporaryFolder folder;
  const auto logger = fit(folder, std::make_shared<Logging>(), [](TrainerOptions& options, TrainerComponents& parts) {
    options.accumulate_grad_batches = 2;
    options.num_sanity_val_steps = 2;  // sends nothing
    parts.add(std::make_shared<Watching>());
  });
  using Steps = std::vector<int64_t>;
  CHECK(steps_of(*logger, "in_step") == Steps{1, 2, 3, 4, 5});
  CHECK(steps_of(*logger, "batch_end") == Steps{2});
  CHECK(steps_of(*logger, "val") == Steps{5, 5, 5});
  CHECK(steps_of(*logger, "epoch_end") == Steps{5});
  CHECK(steps_of(*logger, "fit_end") == Steps{5});
  CHECK(steps_of(*logger, "start") == Steps{0});
}

TEST_CASE("a tensor has the values from the time of the call, and the form that loggers receive") {
  struct Logging : SelfPlanned {
    Tensor before;
    StepOutput training_step(const Batch& batch, int64_t i) override {
      if (i == 0) {
        before = first->weight.detach().clone();
        log_media(HistogramRecord{"weight", first->weight});
        log_media(ImageRecord{"picture", at::full({1, 2, 2}, 0.5)});
        log_media(ImageRecord{"bytes", at::full({3, 2, 4}, 7, at::kByte).permute({0, 2, 1})});
      }
      return SelfPlanned::training_step(batch, i);
    }
  };
  const TemporaryFolder folder;
  const auto module = std::make_shared<Logging>();
  const auto logger = fit(folder, module);
  REQUIRE(logger->media.size() == 3);
  const Tensor& values = values_of(logger->media[0]);
  CHECK(values.equal(module->before.flatten()));
  CHECK_FALSE(values.requires_grad());
  CHECK_FALSE(values.equal(module->first->weight.flatten()));  // the step has changed the weights
  const auto& picture = std::get<ImageRecord>(logger->media[1].record);
  CHECK(picture.pixels.equal(at::full({1, 2, 2}, 128, at::kByte)));
  const auto& bytes = std::get<ImageRecord>(logger->media[2].record);
  CHECK(bytes.pixels.is_contiguous());
  CHECK(bytes.pixels.sizes() == at::IntArrayRef({3, 4, 2}));
}

TEST_CASE("media of a batch that fails are not sent, and those of earlier batches are") {
  struct Failing : SelfPlanned {
    StepOutput training_step(const Batch& batch, int64_t i) override {
      log_media(TextRecord{"note", std::to_string(i)});
      if (i == 3) throw std::runtime_error("the user's");
      return SelfPlanned::training_step(batch, i);
    }
  };
  const TemporaryFolder folder;
  for (const bool saves : {false, true}) {
    const auto logger = fit(folder, std::make_shared<Failing>(), [&](TrainerOptions&, TrainerComponents& parts) {
      if (saves) parts.add(std::make_shared<OnExceptionCheckpoint>(OnExceptionCheckpoint::Options()));
    });
    CHECK(steps_of(*logger, "note") == std::vector<int64_t>{1, 2, 3});
  }
}

TEST_CASE("a record that breaks a rule is an error that says what was found") {
  const auto refused = [](const MediaRecord& record) { return message_of<Error>([&] { check_media(record); }); };
  CHECK_THAT(refused(ImageRecord{"a", at::ones({2, 2})}),
             ContainsSubstring("(C, H, W)") && ContainsSubstring("[2, 2]"));
  CHECK_THAT(refused(ImageRecord{"a", at::ones({5, 2, 2})}), ContainsSubstring("1 to 4 channels"));
  CHECK_THAT(refused(ImageRecord{"a", at::ones({1, 2, 2}, at::kInt)}), ContainsSubstring("Int"));
  CHECK_THAT(refused(ImageRecord{"a", Tensor()}), ContainsSubstring("undefined"));
  CHECK_THAT(refused(HistogramRecord{"a", at::ones({0})}), ContainsSubstring("must have values"));
  CHECK_THAT(refused(HistogramRecord{"a", at::ones({1}, at::kComplexFloat)}), ContainsSubstring("dense real numbers"));
  CHECK_THAT(refused(TableRecord{"a", {}, {}}), ContainsSubstring("must have columns"));
  CHECK_THAT(refused(TableRecord{"a", {"b", "c"}, {{int64_t{1}}}}),
             ContainsSubstring("2 cells") && ContainsSubstring("row 0 has 1"));
  CHECK_THAT(refused(TextRecord{"", "text"}), ContainsSubstring("must have a name"));
}

TEST_CASE("a table in Markdown has escaped cells") {
  CHECK(markdown_table({"t", {"", "a"}, {{std::string("x|y\nz"), 0.5}, {int64_t{-2}, std::string()}}}) ==
        "| | a |\n|---|---|\n| x\\|y<br>z | 0.5 |\n| -2 | |\n");
}

TEST_CASE("media before the loggers start are an error, and a run without loggers ignores them") {
  struct Early : SelfPlanned {
    void setup(TrainerFn) override { log_media(TextRecord{"a", "b"}); }
  };
  struct Late : SelfPlanned {
    void on_train_start() override { log_media(TextRecord{"a", "b"}); }
  };
  const TemporaryFolder folder;
  CHECK_THAT(message_of<Error>([&] { fit(folder, std::make_shared<Early>()); }), ContainsSubstring("on_fit_start"));
  const auto logger = fit(folder, std::make_shared<Late>(), [](TrainerOptions& options, TrainerComponents& parts) {
    parts.loggers.clear();
    options.logger.enabled = false;
  });
  CHECK(logger->media.empty());
}

TEST_CASE("an artifact reaches the loggers, and must exist") {
  struct Keeping : SelfPlanned {
    std::filesystem::path path;
    void on_fit_end() override { log_artifact(path); }
  };
  const TemporaryFolder folder;
  const auto module = std::make_shared<Keeping>();
  module->path = folder / "a.txt";
  CHECK_THAT(message_of<Error>([&] { fit(folder, module); }), ContainsSubstring("a.txt"));
  write_text(folder / "a.txt", "a");
  CHECK(fit(folder, module)->artifacts == std::vector<std::filesystem::path>{folder / "a.txt"});
}

}  // namespace media_test
