#include "fulgur/callbacks/lambda_callback.h"

#include "fulgur/core/text/text.h"
#include "trainer/boring.h"

#include <catch2/catch_test_macros.hpp>

namespace lambda_callback_test {

using namespace fulgur;
using namespace fulgur::test;

TEST_CASE("LambdaCallback calls the functions that it was given, with what the hook has") {
  std::vector<std::string> calls;
  const auto note = [&](const char* name) { return [&calls, name](RunContext&) { calls.emplace_back(name); }; };
  double losses = 0;
  LambdaCallback::Hooks functions{
      .setup = [&](RunContext&, TrainerFn fn) { calls.push_back(cat("setup ", name_of(fn))); },
      .teardown = [&](RunContext&, TrainerFn) { calls.emplace_back("teardown"); },
      .on_fit_start = note("fit start"),
      .on_train_epoch_end = note("epoch end"),
      .on_train_batch_end =
          [&](RunContext& run, const StepOutput& output, const Batch& batch, int64_t batch_idx) {
            losses += output.loss.item<double>();
            calls.push_back(cat("batch ", batch_idx, " of ", batch.size(), " step ", run.progress().global_step));
          },
      .on_before_optimizer_step = [&](RunContext&, Optimizer& optimizer) { calls.push_back(optimizer.name()); },
      .on_validation_batch_end =
          [&](RunContext&, const Outputs&, const Batch&, int64_t batch_idx, int64_t loader_idx) {
            calls.push_back(cat("validation ", batch_idx, " ", loader_idx));
          },
      .on_save_checkpoint = [&](RunContext&, StateTree& checkpoint) { checkpoint["note"] = "mine"; },
      .on_checkpoint_published = [&](RunContext&,
                                     const CheckpointInfo& info) { calls.push_back(info.path.filename().string()); },
  };
  TemporaryFolder folder;
  TrainerComponents components;
  components.add(std::make_shared<LambdaCallback>(functions));
  Trainer(quiet(folder), components).fit(std::make_shared<SelfPlanned>(), regression_data(8, 4));
  CHECK(calls == std::vector<std::string>{"setup fit", "fit start", "SGD", "batch 0 of 4 step 1", "SGD",
                                          "batch 1 of 4 step 2", "validation 0 0", "epoch end", "epoch=0-step=2.ckpt",
                                          "teardown"});
  CHECK(losses > 0);
}

TEST_CASE("LambdaCallback takes part in exactly the batch hooks that have a function") {
  const LambdaCallback none({});
  const LambdaCallback one({.on_after_backward = [](RunContext&) {}});
  for (const Hook hook : {Hook::on_train_batch_start, Hook::on_train_batch_end, Hook::on_before_zero_grad,
                          Hook::on_before_backward, Hook::on_after_backward, Hook::on_before_optimizer_step,
                          Hook::on_validation_batch_start, Hook::on_validation_batch_end, Hook::on_test_batch_start,
                          Hook::on_test_batch_end, Hook::on_predict_batch_start, Hook::on_predict_batch_end}) {
    CHECK_FALSE(fulgur::detail::ComponentAccess::overridden<Callback>(none).has(hook));
    CHECK(fulgur::detail::ComponentAccess::overridden<Callback>(one).has(hook) == (hook == Hook::on_after_backward));
  }
  CHECK(fulgur::detail::ComponentAccess::overridden<Callback>(one).exact);
  CHECK(none.phase() == Phase::observe);
  CHECK(LambdaCallback({.phase = Phase::decide}).phase() == Phase::decide);
}

}  // namespace lambda_callback_test
