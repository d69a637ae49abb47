#include "config/resolved_options.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/trainer/components.h"
#include "support/expect_error.h"

namespace resolved_options_test {

using namespace fulgur;
using Catch::Matchers::StartsWith;
using fulgur::detail::ResolvedOptions;

namespace {

/// The place in brackets of the message with which a change of the options is refused; empty if it is accepted.
template <class Change>
std::string refused(Change change, TrainerFn fn = TrainerFn::fit, bool automatic = true) {
  TrainerOptions written;
  change(written);
  try {
    ResolvedOptions(written, fn).check(fn, automatic);
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    return text.substr(0, text.find(']') + 1);
  }
  return "";
}

}  // namespace

TEST_CASE("ResolvedOptions: limits have their defaults") {
  TrainerOptions written;
  SECTION("without any limit a fit ends after 1000 epochs") {
    const ResolvedOptions options(written, TrainerFn::fit);
    CHECK(options.has_no_limit);
    CHECK(options.epoch_limit == 1000);
    CHECK(options.step_limit == -1);
  }
  SECTION("-1 is no limit") {
    written.max_epochs = -1;
    const ResolvedOptions options(written, TrainerFn::fit);
    CHECK_FALSE(options.has_no_limit);
    CHECK_FALSE(options.epoch_limit.has_value());
  }
  SECTION("steps alone") {
    written.max_steps = 7;
    const ResolvedOptions options(written, TrainerFn::fit);
    CHECK(options.step_limit == 7);
    CHECK_FALSE(options.epoch_limit.has_value());
  }
}

TEST_CASE("ResolvedOptions: a profile trains as the options say, for its steps, without validation and checkpoints") {
  TrainerOptions written;
  written.max_epochs = 1;
  written.min_epochs = 1;
  written.min_steps = 1000;
  written.log_every_n_steps = 7;
  written.overfit_batches = BatchLimit(2);
  written.validate_first = true;
  written.stop_after = *Interval::parse("3st");
  const ResolvedOptions options(written, TrainerFn::fit, /*profile_steps=*/20);
  CHECK(options.step_limit == 20 + kProfileWarmup);
  CHECK_FALSE(options.epoch_limit.has_value());
  CHECK_FALSE(options.min_steps.has_value());
  CHECK_FALSE(options.has_no_limit);
  CHECK(options.limit_val_batches.is_zero());
  CHECK_FALSE(options.limit_train_batches.is_zero());
  CHECK(options.num_sanity_val_steps == 0);
  CHECK_FALSE(options.validate_first);
  CHECK_FALSE(options.saves_checkpoints);
  CHECK_FALSE(options.stop_after.has_value());
  CHECK(options.log_every_n_steps == 7);
  options.check(TrainerFn::fit, true);
}

TEST_CASE("ResolvedOptions: trial runs set other options") {
  TrainerOptions written;
  written.max_epochs = 90;
  written.min_epochs = 5;
  SECTION("fast_dev_run") {
    written.fast_dev_run.batches = 3;
    const ResolvedOptions options(written, TrainerFn::fit);
    CHECK(options.epoch_limit == 1);
    CHECK(options.step_limit == 3);
    CHECK_FALSE(options.min_epochs.has_value());
    CHECK(options.num_sanity_val_steps == 0);
    CHECK_FALSE(options.saves_checkpoints);
  }
  SECTION("barebones") {
    written.barebones = true;
    const ResolvedOptions options(written, TrainerFn::fit);
    CHECK(options.on_nonfinite == OnNonFinite::off);
    CHECK_FALSE(options.enable_progress_bar);
    CHECK_FALSE(options.saves_checkpoints);
    CHECK(options.epoch_limit == 90);
  }
  SECTION("overfit_batches") {
    written.overfit_batches = BatchLimit(int64_t{2});
    const ResolvedOptions options(written, TrainerFn::fit);
    CHECK_FALSE(options.limit_train_batches.is_zero());
    CHECK(FieldTraits<BatchLimit>::write(options.limit_train_batches).text() == "2");
    CHECK(FieldTraits<BatchLimit>::write(options.limit_val_batches).text() == "2");
    written.limit_val_batches = BatchLimit(int64_t{0});
    CHECK(ResolvedOptions(written, TrainerFn::fit).limit_val_batches.is_zero());
  }
}

TEST_CASE("ResolvedOptions: options that contradict each other are refused") {
  using T = TrainerOptions;
  CHECK(refused([](T&) {}) == "");
  CHECK(refused([](T& o) { o.min_epochs = 3, o.max_epochs = 2; }) == "[trainer.min_epochs]");
  CHECK(refused([](T& o) { o.min_epochs = 2, o.max_epochs = 2; }) == "");
  CHECK(refused([](T& o) { o.min_epochs = 3, o.max_epochs = -1; }) == "");
  CHECK(refused([](T& o) { o.min_steps = 3, o.max_steps = 2; }) == "[trainer.min_steps]");
  CHECK(refused([](T& o) { o.min_steps = 3; }) == "");
  CHECK(refused([](T& o) { o.scale_lr = ScaleLr::linear; }) == "[trainer.scale_lr]");
  CHECK(refused([](T& o) { o.base_batch_size = 32; }) == "[trainer.base_batch_size]");
  CHECK(refused([](T& o) { o.scale_lr = ScaleLr::linear, o.base_batch_size = 32; }) == "");
}

TEST_CASE("ResolvedOptions: steps that cannot be repeated in micro-batches are refused") {
  using T = TrainerOptions;
  CHECK(refused([](T& o) { o.auto_micro_batch = true; }) == "");
  CHECK(refused([](T& o) { o.auto_micro_batch = o.capture = true; }) == "[trainer.auto_micro_batch]");
  CHECK(refused([](T& o) { o.auto_micro_batch = o.sync_batchnorm = true; }) == "[trainer.auto_micro_batch]");
}

TEST_CASE("ResolvedOptions: what the Trainer cannot do with manual optimization is refused") {
  using T = TrainerOptions;
  const auto manual = [](auto change) { return refused(change, TrainerFn::fit, /*automatic=*/false); };
  CHECK(manual([](T&) {}) == "");
  CHECK(manual([](T& o) { o.accumulate_grad_batches = 2; }) == "[trainer.accumulate_grad_batches]");
  CHECK(manual([](T& o) { o.log_grad_norm = true; }) == "[trainer.log_grad_norm]");
  CHECK(manual([](T& o) { o.gradient_clip_val = 1.0; }) == "[trainer.gradient_clip_val]");
  CHECK(manual([](T& o) { o.auto_micro_batch = true; }) == "[trainer.auto_micro_batch]");
  // An evaluation makes no steps.
  CHECK(refused([](T& o) { o.auto_micro_batch = true; }, TrainerFn::test, false) == "");
  CHECK(refused([](T& o) { o.gradient_clip_val = 1.0; }, TrainerFn::test, false) == "");
}

}  // namespace resolved_options_test
