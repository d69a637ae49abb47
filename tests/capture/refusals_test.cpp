#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <catch2/matchers/catch_matchers_string.hpp>
#include <stdexcept>
#include <thread>

#include "capture/twin.h"
#include "fulgur/core/text/errors.h"

namespace refusals_test {

using namespace capture_test;
using Catch::Matchers::ContainsSubstring;

// Runs the step as it is, and names what cannot be replayed.
void expect_refused(const std::function<void()>& step, const std::string& operation) {
  CAPTURE(operation);
  RecordOptions options;
  options.place = [] { return "layer 'head'"; };
  const auto program = CapturedProgram::record(step, options);
  REQUIRE(!program->refusals().empty());
  bool found = false;
  for (const auto& refusal : program->refusals()) found = found || refusal.operation == operation;
  if (!found) FAIL(program->refusals().front().text());
  CHECK(program->refusals().front().place == "layer 'head'");
  CHECK_THAT(program->refusals().front().text(), ContainsSubstring(" in layer 'head': it "));
  CHECK_THROWS_WITH(program->prepare(), ContainsSubstring(program->refusals().front().operation));
  CHECK_THROWS_AS(program->replay(), fulgur::Error);
}

TEST_CASE("values that are read on the host are refused by the operation's name") {
  const Tensor x = at::randn({4, 3}), y = at::randn({4, 3});
  Tensor out = at::zeros({4, 3});
  expect_refused([&] { out.mul_(x.sum().item<double>()); }, "aten::_local_scalar_dense");
  expect_refused(
      [&] {
        if ((x > 100).any().item<bool>()) out.zero_();
      },
      "aten::_local_scalar_dense");
  expect_refused(
      [&] {
        if (at::equal(x, y)) out.zero_();
      },
      "aten::equal");
}

TEST_CASE("results whose shapes depend on values are refused") {
  const Tensor x = at::randn({4, 3});
  Tensor out = at::zeros({1});
  expect_refused([&] { out.add_(at::masked_select(x, x > 0).sum()); }, "aten::masked_select");
  expect_refused([&] { out.add_(at::nonzero(x).sum()); }, "aten::nonzero");
  expect_refused([&] { out.add_(x.index({x > 0}).sum()); }, "aten::index.Tensor");
  expect_refused([&] { out.add_(std::get<0>(at::_unique2(x)).sum()); }, "aten::_unique2");
}

TEST_CASE("sparse tensors and changes of memory are refused") {
  const Tensor x = at::randn({4, 3});
  Tensor out = at::zeros({1}), grown = at::zeros({1});
  expect_refused([&] { out.add_(x.to_sparse().sum()); }, "aten::_to_sparse");
  expect_refused([&] { grown.resize_({5}); }, "aten::resize_");
}

TEST_CASE("operations on another thread are noticed") {
  Tensor out = at::zeros({1});
  const auto step = [&] {
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    std::thread([&] {
      const c10::impl::ForceDispatchKeyGuard same(keys);
      out.add_(1);
    }).join();
  };
  const auto program = CapturedProgram::record(step);
  REQUIRE(program->refusals().size() == 1);
  CHECK_THAT(program->refusals().front().text(), ContainsSubstring("other threads"));
}

std::optional<std::string> difference_of(const std::function<void()>& step) {
  const auto first = CapturedProgram::record(step), second = CapturedProgram::record(step);
  return second->difference(*first);
}

TEST_CASE("two recordings find numbers of the host, other operations and other memory") {
  const Tensor x = at::randn({3});
  Tensor out = at::zeros({3}), state = at::zeros({3});
  int count = 0;
  CHECK(!difference_of([&] { out.add_(x, 0.5).mul_(2); }));
  CHECK_THAT(*difference_of([&] { out.add_(x, 0.5 * ++count); }), ContainsSubstring("aten::add_.Tensor"));
  CHECK_THAT(*difference_of([&] { out.mul_(1.0 + ++count); }), ContainsSubstring("number of the host has changed"));
  CHECK_THAT(*difference_of([&] { ++count % 2 == 0 ? out.add_(x) : out.sub_(x); }),
             ContainsSubstring("previous step called"));
  CHECK_THAT(*difference_of([&] {
    out.add_(x);
    if (++count % 2 == 0) out.mul_(x);
  }),
             ContainsSubstring("is called only in"));
  CHECK_THAT(*difference_of([&] { state = state + x; }), ContainsSubstring("result of the previous step"));
  CHECK_THAT(*difference_of([&] { out.add_(x.slice(0, 0, 1 + ++count % 2).sum()); }),
             ContainsSubstring("aten::as_strided"));
}

TEST_CASE("two recordings find a batch that the host chooses") {
  std::vector<Tensor> batches;
  for (int i = 0; i < 8; ++i) batches.push_back(at::randn({3}));
  Tensor out = at::zeros({3});
  size_t next = 0;
  const auto step = [&] { out.add_(batches[next++ % 8]); };
  CHECK_THAT(*difference_of(step), ContainsSubstring("other memory in each step"));

  // Declared as inputs, they may be other memory.
  RecordOptions options;
  options.inputs = {batches[next % 8]};
  const auto first = CapturedProgram::record(step, options);
  options.inputs = {batches[next % 8]};
  const auto second = CapturedProgram::record(step, options);
  CHECK(!second->difference(*first));
}

// Without any operation that a recording sees.
Tensor host_made(float value) {
  Tensor made(at::detail::empty_cpu({1}, at::kFloat));
  *made.mutable_data_ptr<float>() = value;
  return made;
}

TEST_CASE("a tensor that the host makes again with the same value is a constant") {
  const Tensor x = at::randn({3});
  Tensor out = at::zeros({3});
  float value = 2;
  const auto step = [&] { out.add_(x * host_made(value)); };
  CHECK(!difference_of(step));
  CHECK_THAT(*difference_of([&] { out.add_(x * host_made(++value)); }),
             ContainsSubstring("values that the host computed"));
}

TEST_CASE("the comparison of a replay finds large memory that the step writes itself") {
  const Tensor x = at::randn({1 << 19});
  Tensor out = at::zeros({1 << 19}), other = at::zeros({1 << 19});
  RecordOptions options;
  options.state = {{"buffer 'other'", other}};
  const auto step = [&] {
    other.mutable_data_ptr<float>()[7] += 1;
    out.add_(x).add_(other);
  };
  const auto program = CapturedProgram::record(step, options);
  REQUIRE(program->refusals().empty());
  program->prepare();
  const auto found = program->check_replay();
  REQUIRE(found);
  CHECK_THAT(*found, ContainsSubstring("buffer 'other' of shape [524288], which no operation writes: host code"));
  CHECK(other[7].item<float>() == 1);  // the eager step's
  program->undo();
  CHECK(at::equal(other, at::zeros({1 << 19})));
}

TEST_CASE("a step that throws leaves the state of before, and the next one can be recorded") {
  Tensor out = at::zeros({3});
  at::manual_seed(3);
  const Tensor generator = generator_state();
  const auto failing = [&] {
    out.add_(1);
    out.add_(at::rand({3}));
    throw std::runtime_error("the step fails");
  };
  CHECK_THROWS_WITH(CapturedProgram::record(failing), "the step fails");
  CHECK(at::equal(out, at::zeros({3})));
  CHECK(at::equal(generator, generator_state()));
  const auto program = CapturedProgram::record([&] { out.add_(1); });
  program->prepare();
  program->replay();
  CHECK(at::equal(out, at::full({3}, 2.F)));
}

TEST_CASE("a recording inside another one is an error") {
  Tensor out = at::zeros({3});
  std::string message;
  const auto program = CapturedProgram::record([&] {
    try {
      CapturedProgram::record([&] { out.add_(1); });
    } catch (const fulgur::Error& error) {
      message = error.what();
    }
    out.add_(2);
  });
  CHECK_THAT(message, ContainsSubstring("one recording at a time"));
  CHECK(program->refusals().empty());
}

TEST_CASE("no place is looked for if nothing is refused, though convolutions prepare memory inside") {
  RecordOptions options;
  int asked = 0;
  options.place = [&asked] {
    ++asked;
    return "here";
  };
  // Of layers of two dimensions, oneDNN's convolution resizes its result.
  const Tensor input = at::randn({2, 3, 8, 8}), weight = at::randn({4, 3, 3, 3});
  const Tensor output = at::zeros({2, 4, 8, 8});
  const auto program = CapturedProgram::record([&] { output.copy_(at::conv2d(input, weight, {}, 1, 1)); }, options);
  CHECK(program->refusals().empty());
  CHECK(asked == 0);
}

}  // namespace refusals_test
