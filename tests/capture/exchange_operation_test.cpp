// Exchanges with other processes in recorded steps: each step exchanges once.
#include <ATen/Functions.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <memory>
#include <stdexcept>

#include "fulgur/capture/captured_program.h"
#include "fulgur/capture/exchange_operation.h"
#include "fulgur/capture/step_capture.h"

namespace exchange_operation_test {

using at::Tensor;
using Catch::Matchers::ContainsSubstring;
using fulgur::CapturedProgram;
using fulgur::ExchangeOperation;

namespace {

// As if another process contributed `other`, which grows with each exchange.
struct OtherProcess {
  int64_t exchanges = 0;
  ExchangeOperation sum{[this](const Tensor& values) { values.add_(static_cast<double>(++exchanges)); }};
};

}  // namespace

TEST_CASE("an exchange is made once for each step, however often a recording is replayed to compare it") {
  OtherProcess other;
  const Tensor x = at::full({3}, 1.0);
  Tensor result = at::zeros({3});
  const auto step = [&] {
    const Tensor sent = x * 2;
    other.sum(sent);
    result.copy_(sent * 10);
  };
  step();
  CHECK(result[0].item<double>() == 30);
  const auto program = CapturedProgram::record(step);
  CHECK(other.exchanges == 2);
  CHECK(result[0].item<double>() == 40);
  REQUIRE(program->refusals().empty());
  program->prepare();
  CHECK(!program->check_replay());
  CHECK(other.exchanges == 2);
  program->undo();
  CHECK(result[0].item<double>() == 30);
  program->replay();  // the recorded step
  CHECK(other.exchanges == 2);
  CHECK(result[0].item<double>() == 40);
  x.fill_(2);
  program->replay();
  CHECK(other.exchanges == 3);
  CHECK(result[0].item<double>() == 70);
}

TEST_CASE("a replay that would send other values than the step is found, although it gets what the step got") {
  OtherProcess other;
  const Tensor x = at::full({3}, 1.0), result = at::zeros({3});
  const auto program = CapturedProgram::record([&] {
    const Tensor sent = at::zeros({3});
    // The host writes what is sent.
    for (int i = 0; i < 3; ++i) sent.mutable_data_ptr<float>()[i] = 5;
    other.sum(sent);
    result.copy_(sent + x);
  });
  REQUIRE_FALSE(program->refusals().empty());
  // Larger memory is not compared between the operations.
  const Tensor large = at::zeros({1 << 20}), sum = at::zeros({});
  const auto of_large = CapturedProgram::record([&] {
    const Tensor sent = at::zeros({1 << 20});
    sent.mutable_data_ptr<float>()[7] = 5;
    other.sum(sent);
    sum.copy_(sent.sum());
  });
  REQUIRE(of_large->refusals().empty());
  of_large->prepare();
  const auto found = of_large->check_replay();
  REQUIRE(found);
  CHECK_THAT(*found, ContainsSubstring("sends other values to the other processes"));
}

TEST_CASE("a recorder of steps exchanges once when it records a step, also when it compares it with the one before") {
  OtherProcess other;
  const Tensor x = at::full({3}, 1.0), result = at::zeros({3});
  const auto step = [&] {
    const Tensor sent = x * 2;
    other.sum(sent);
    result.copy_(sent);
  };
  const auto graph = fulgur::make_step_capture();
  for (int64_t launch = 1; launch <= 4; ++launch) {
    if (launch != 3) graph->record(step);
    graph->replay();
    CHECK(other.exchanges == launch);
    CHECK(result[0].item<double>() == 2 + static_cast<double>(launch));
  }
}

TEST_CASE("an exchange whose processes are gone fails, and one that fails passes its reason on") {
  auto other = std::make_unique<OtherProcess>();
  const Tensor x = at::full({3}, 1.0), result = at::zeros({3});
  const auto program = CapturedProgram::record([&] {
    const Tensor sent = x * 2;
    other->sum(sent);
    result.copy_(sent);
  });
  program->prepare();
  other.reset();
  CHECK_THROWS_WITH(program->replay(), ContainsSubstring("still connected"));
  const ExchangeOperation fails([](const Tensor&) { throw std::runtime_error("a process was lost"); });
  CHECK_THROWS_WITH(fails(x), ContainsSubstring("a process was lost"));
  CHECK_THROWS_WITH(CapturedProgram::record([&] { fails(x); }), ContainsSubstring("a process was lost"));
}

}  // namespace exchange_operation_test
