#include "services/nonfinite_policy.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "fulgur/optim/sgd.h"
#include "fulgur/strategies/true_precision.h"
#include "support/expect_error.h"
#include "support/fake_run_context.h"
#include "support/thread_collectives.h"
#include "trainer/boring.h"

namespace nonfinite_policy_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using fulgur::detail::NonFiniteDecision;
using fulgur::detail::NonFinitePolicy;

namespace {

/// A policy without a run: a module, an optimizer over it, and what the run would answer.
struct Judged {
  fulgur::test::BoringModule module;
  fulgur::test::FakeRunContext run;
  fulgur::detail::LogStore logs;
  Batch batch;
  Float32True precision;
  SGD optimizer{parameter_groups(module, ""), {.lr = 0.1}};
  NonFinitePolicy policy{run, logs, batch, [] { return std::string("train, epoch 1"); }};

  explicit Judged(OnNonFinite on_nonfinite, Collectives* collectives = nullptr, int64_t check_every = 0) {
    run.of_module = &module;
    run.collectives_of_ranks = collectives;
    policy.configure(
        {.policy = on_nonfinite, .check_every = check_every, .logs_counters = true, .precision = &precision});
    for (auto& parameter : module.parameters()) parameter.mutable_grad() = at::zeros(parameter.sizes());
    policy.begin_window();
  }
  NonFiniteDecision loss(double value) { return policy.check_loss(at::full({}, value)); }
  NonFiniteDecision gradients(double first = 0) {
    module.parameters().front().mutable_grad().fill_(first);
    return policy.check_gradients(optimizer, {});
  }
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("NonFinitePolicy: a finite step proceeds with every policy") {
  Judged judged(
      GENERATE(OnNonFinite::off, OnNonFinite::raise, OnNonFinite::skip, OnNonFinite::stop, OnNonFinite::rollback));
  CHECK(judged.loss(1) == NonFiniteDecision::proceed);
  CHECK(judged.gradients(1) == NonFiniteDecision::proceed);
  CHECK_FALSE(judged.policy.stopped());
}

TEST_CASE("NonFinitePolicy: what each policy decides for a loss that is NaN or infinite") {
  const double bad = GENERATE(kNan, kInfinity, -kInfinity);
  SECTION("off: the step is made") { CHECK(Judged(OnNonFinite::off).loss(bad) == NonFiniteDecision::proceed); }
  SECTION("raise: an error that says where") {
    Judged judged(OnNonFinite::raise);
    CHECK_THAT(fulgur::test::message_of<NonFiniteError>([&] { judged.loss(bad); }),
               ContainsSubstring("the loss is not finite (train, epoch 1, batch 0)") &&
                   ContainsSubstring("all targets of a batch are ignored (-100)"));
  }
  SECTION("skip: decided by the gradients, which are made to show it") {
    Judged judged(OnNonFinite::skip);
    CHECK(judged.loss(bad) == NonFiniteDecision::proceed);
    CHECK(judged.gradients(kNan) == NonFiniteDecision::skip);
    CHECK(judged.policy.state(false).at("skipped_steps").as_int() == 1);
    judged.policy.begin_window();
    CHECK(judged.loss(1) == NonFiniteDecision::proceed);
    CHECK(judged.gradients(1) == NonFiniteDecision::proceed);
  }
  SECTION("stop") {
    Judged judged(OnNonFinite::stop);
    CHECK(judged.loss(bad) == NonFiniteDecision::stop);
    CHECK(judged.policy.stopped());
    CHECK(judged.policy.finding().what == "the loss");
  }
  SECTION("rollback") {
    Judged judged(OnNonFinite::rollback);
    CHECK(judged.loss(bad) == NonFiniteDecision::roll_back);
    CHECK(judged.policy.finding().where == "(train, epoch 1, batch 0)");
  }
}

TEST_CASE("NonFinitePolicy: check_every finds the gradient by its name") {
  Judged judged(OnNonFinite::raise, nullptr, /*check_every=*/1);
  CHECK_THAT(fulgur::test::message_of<NonFiniteError>([&] { judged.gradients(kNan); }),
             ContainsSubstring("the gradient of 'first.weight' is not finite"));
}

TEST_CASE("NonFinitePolicy: in manual optimization a rollback waits for the end of the batch") {
  Judged judged(OnNonFinite::rollback);
  judged.policy.begin_manual_batch();
  CHECK(judged.loss(kNan) == NonFiniteDecision::skip);
  // Whatever else the batch does is left out.
  CHECK(judged.loss(1) == NonFiniteDecision::skip);
  CHECK(judged.gradients(1) == NonFiniteDecision::skip);
  CHECK(judged.policy.end_manual_batch(false) == NonFiniteDecision::roll_back);
  judged.policy.begin_manual_batch();
  CHECK(judged.loss(1) == NonFiniteDecision::proceed);
  CHECK(judged.policy.end_manual_batch(true) == NonFiniteDecision::proceed);
}

TEST_CASE("NonFinitePolicy: a fourth rollback in a row without finite training in between is an error") {
  Judged judged(OnNonFinite::rollback);
  judged.loss(kNan);
  const auto roll_back = [&](const StateTree& to) { judged.policy.count_rollback(to, "step=7.ckpt"); };
  const StateTree first = judged.policy.state(false);
  SECTION("to the same checkpoint") {
    for (int i = 0; i < 3; ++i) roll_back(first);
    CHECK_THAT(fulgur::test::message_of<NonFiniteError>([&] { roll_back(first); }),
               ContainsSubstring("after 3 rollbacks to the same weights (step=7.ckpt"));
  }
  SECTION("to checkpoints that were written before anything was finite again") {
    roll_back(first);
    for (int i = 0; i < 2; ++i) roll_back(judged.policy.state(false));
    CHECK_THROWS_AS(roll_back(judged.policy.state(false)), NonFiniteError);
  }
  SECTION("one to a checkpoint of finite training begins the count again") {
    for (int i = 0; i < 3; ++i) roll_back(first);
    judged.loss(1);
    const StateTree later = judged.policy.state(false);
    for (int i = 0; i < 3; ++i) CHECK_NOTHROW(roll_back(later));
    CHECK_THROWS_AS(roll_back(later), NonFiniteError);
  }
}

TEST_CASE("NonFinitePolicy: with several ranks all decide the same, by the gradients that they share") {
  const OnNonFinite policy = GENERATE(OnNonFinite::skip, OnNonFinite::stop, OnNonFinite::rollback);
  std::vector<NonFiniteDecision> decisions(3);
  fulgur::test::run_ranks(3, [&](Collectives& collectives) {
    Judged judged(policy, &collectives);
    // The loss of one rank only; the exchanged gradients are NaN on all.
    if (judged.loss(collectives.rank() == 1 ? kNan : 1) != NonFiniteDecision::proceed)
      throw std::runtime_error("a rank decided alone");
    decisions[static_cast<size_t>(collectives.rank())] = judged.gradients(kNan);
  });
  const NonFiniteDecision expected = policy == OnNonFinite::skip   ? NonFiniteDecision::skip
                                     : policy == OnNonFinite::stop ? NonFiniteDecision::stop
                                                                   : NonFiniteDecision::roll_back;
  CHECK((decisions == std::vector(3, expected)));
}

TEST_CASE("NonFinitePolicy: its counts outlive the process") {
  Judged before(OnNonFinite::skip), after(OnNonFinite::skip);
  before.loss(kNan);
  before.gradients(kNan);
  after.policy.load_state(before.policy.state(false), /*manual=*/false);
  CHECK(after.policy.state(false).at("skipped_steps").as_int() == 1);
  after.policy.log_counters();
  REQUIRE(after.run.logged.size() == 0);  // of this step they were logged before
  after.run.now.global_step = 1;
  after.policy.log_counters();
  REQUIRE(after.run.logged.size() == 1);
  CHECK(after.run.logged.front().name == "skipped_steps");
  CHECK(after.run.logged.front().value == 1);
}

}  // namespace nonfinite_policy_test
