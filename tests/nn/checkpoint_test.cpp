#include "fulgur/nn/checkpoint.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <catch2/matchers/catch_matchers_string.hpp>
#include <thread>
#include <tuple>

#include "fulgur/capture/captured_program.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/nn/batch_norm.h"
#include "fulgur/nn/saved_tensors_hooks.h"
#include "support/expect_error.h"
#include "support/live_memory.h"

namespace checkpoint_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

constexpr int64_t kWidth = 16;

/// x + dropout(out(gelu(in(x)))): saves more than it is given, and draws random numbers.
struct Block : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  double dropout;
  explicit Block(double dropout_) : dropout(dropout_) {
    in = register_module("in", torch::nn::Linear(kWidth, 4 * kWidth));
    out = register_module("out", torch::nn::Linear(4 * kWidth, kWidth));
  }
  Tensor forward(const Tensor& x) { return x + at::dropout(out(at::gelu(in(x))), dropout, is_training()); }
};

struct Stack {
  std::vector<std::shared_ptr<Block>> blocks;
  explicit Stack(int count, double dropout = 0.25) {
    at::manual_seed(11);
    for (int i = 0; i < count; ++i) blocks.push_back(std::make_shared<Block>(dropout));
  }
  Tensor forward(Tensor x, bool checkpointed, const nn::CheckpointOptions& options = {}) const {
    for (const auto& block : blocks) x = checkpointed ? nn::checkpoint(options, block, x) : block->forward(x);
    return x;
  }
  std::vector<Tensor> take_gradients() const {
    std::vector<Tensor> gradients;
    for (const auto& block : blocks)
      for (Tensor& parameter : block->parameters()) {
        gradients.push_back(parameter.grad());
        parameter.mutable_grad() = Tensor();
      }
    return gradients;
  }
};

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].defined() != b[i].defined() || (a[i].defined() && !at::equal(a[i], b[i]))) return false;
  return true;
}

/// Output, gradients and a random number drawn afterwards of `step`, which ends in a backward.
template <class Step>
std::vector<Tensor> outcome(const Stack& stack, Step&& step) {
  at::manual_seed(5);
  std::vector<Tensor> all = {step().detach()};
  for (Tensor& gradient : stack.take_gradients()) all.push_back(gradient);
  all.push_back(at::rand({4}));
  return all;
}

Tensor input() {
  at::manual_seed(3);
  return at::randn({4, kWidth});
}

struct Autocast {
  Autocast() {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
};

}  // namespace

TEST_CASE("checkpointed blocks with dropout give the same bits, gradients and random numbers after them") {
  const Stack stack(4);
  const Tensor x = input();
  for (const bool wants_gradient : {false, true}) {
    CAPTURE(wants_gradient);
    const auto run = [&](bool checkpointed, bool early_stop) {
      const Tensor given = x.clone().requires_grad_(wants_gradient);
      auto all = outcome(stack, [&] {
        const Tensor y = stack.forward(given, checkpointed, {.early_stop = early_stop});
        y.square().sum().backward();
        return y;
      });
      all.push_back(given.grad());
      return all;
    };
    const auto plain = run(false, true);
    REQUIRE(plain[1].defined());
    CHECK(same(plain, run(true, true)));
    CHECK(same(plain, run(true, false)));
  }
}

TEST_CASE("without preserve_rng_state the recompute draws other numbers") {
  const Stack stack(1);
  const Tensor x = input();
  const auto run = [&](bool preserve) {
    return outcome(stack, [&] {
      const Tensor y = stack.forward(x, true, {.preserve_rng_state = preserve});
      y.square().sum().backward();
      return y;
    });
  };
  const auto preserved = run(true), drawn = run(false);
  CHECK(at::equal(preserved[0], drawn[0]));
  CHECK_FALSE(at::equal(preserved.back(), drawn.back()));
  CHECK_FALSE(at::equal(preserved[1], drawn[1]));
}

TEST_CASE("a checkpoint recomputes under the autocast of forward, though backward runs outside it") {
  const Stack stack(3);
  const Tensor x = input();
  const auto run = [&](bool checkpointed) {
    return outcome(stack, [&] {
      Tensor y;
      {
        const Autocast autocast;
        y = stack.forward(x, checkpointed);
      }
      y.square().sum().backward();
      CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
      return y;
    });
  };
  const auto plain = run(false), full = outcome(stack, [&] {
                                   const Tensor y = stack.forward(x, false);
                                   y.square().sum().backward();
                                   return y;
                                 });
  REQUIRE_FALSE(same(plain, full));
  CHECK(same(plain, run(true)));
}

TEST_CASE("a checkpoint may run its backward under an autocast that its forward had not") {
  const Stack stack(2);
  const Tensor x = input();
  const auto run = [&](bool checkpointed) {
    return outcome(stack, [&] {
      const Tensor y = stack.forward(x, checkpointed);
      const Tensor loss = y.square().sum();
      const Autocast autocast;
      loss.backward();
      CHECK(at::autocast::is_autocast_enabled(at::kCPU));
      return y;
    });
  };
  CHECK(same(run(false), run(true)));
}

TEST_CASE("checkpoints nest") {
  const Stack stack(4);
  const Tensor x = input();
  const auto inner = [&](size_t begin) {
    return [&stack, begin](const Tensor& given) {
      return nn::checkpoint(stack.blocks[begin + 1], nn::checkpoint(stack.blocks[begin], given));
    };
  };
  const auto plain = outcome(stack, [&] {
    const Tensor y = stack.forward(x, false);
    y.square().sum().backward();
    return y;
  });
  const auto nested = outcome(stack, [&] {
    const Tensor y = nn::checkpoint(
        [&](const Tensor& given) { return nn::checkpoint(inner(2), nn::checkpoint(inner(0), given)); }, x);
    y.square().sum().backward();
    return y;
  });
  CHECK(same(plain, nested));
}

TEST_CASE("a retained graph is recomputed by each backward, and half a backward leaves nothing allocated") {
  const Stack stack(2);
  const Tensor x = input();
  int calls = 0;
  const auto counted = [&](const Tensor& given) {
    ++calls;
    return stack.forward(given, false);
  };
  const auto run = [&](bool checkpointed) {
    return outcome(stack, [&] {
      const Tensor y = checkpointed ? nn::checkpoint(counted, x) : stack.forward(x, false);
      const Tensor loss = y.square().sum();
      loss.backward({}, /*retain_graph=*/true);
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      return y;
    });
  };
  CHECK(same(run(false), run(true)));
  CHECK(calls == 4);

  const test::LiveMemory memory;
  const Tensor given = input().requires_grad_();
  const Tensor y = nn::checkpoint(counted, given);
  const int64_t before = memory.bytes();
  calls = 0;
  // Only the weight of the last layer: of what the recompute brings, most is not used.
  for (int pass = 0; pass < 3; ++pass)
    torch::autograd::grad({y.sum()}, {stack.blocks[1]->out->bias}, {}, /*retain_graph=*/true);
  CHECK(calls <= 3);
  CHECK(memory.bytes() == before);
}

TEST_CASE("a second derivative goes through a checkpoint") {
  const Stack stack(2, 0.0);
  const Tensor x = input().to(at::kFloat);
  const auto run = [&](bool checkpointed) {
    const Tensor given = x.clone().requires_grad_();
    auto all = outcome(stack, [&] {
      const Tensor y = stack.forward(given, checkpointed);
      const auto first =
          torch::autograd::grad({y.pow(3).sum()}, {given}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      first[0].square().sum().backward();
      return first[0];
    });
    all.push_back(given.grad());
    return all;
  };
  const auto plain = run(false);
  REQUIRE(plain.back().abs().sum().item<double>() > 0);
  CHECK(same(plain, run(true)));
}

TEST_CASE("a checkpoint takes several tensors and returns what its function does") {
  const Tensor a = at::randn({3}).requires_grad_(), b = at::randn({3}).requires_grad_();
  const auto [sum, product] =
      nn::checkpoint([](const Tensor& x, const Tensor& y) { return std::tuple(x + y, (x * y).sigmoid()); }, a, b);
  (sum.sum() + product.sum()).backward();
  const Tensor c = a.detach().requires_grad_(), d = b.detach().requires_grad_();
  ((c + d).sum() + (c * d).sigmoid().sum()).backward();
  CHECK(at::equal(a.grad(), c.grad()));
  CHECK(at::equal(b.grad(), d.grad()));

  const std::vector<Tensor> parts = nn::checkpoint(
      [](const Tensor& x) {
        return std::vector<Tensor>{x.sin(), x.cos()};
      },
      a);
  CHECK(parts.size() == 2);
  // One that is held by the function, as in Python, gets its gradient too.
  const Tensor held = at::randn({3}).requires_grad_();
  nn::checkpoint([held](const Tensor& x) { return (x * held).sin(); }, at::ones({3})).sum().backward();
  CHECK(at::equal(held.grad(), held.detach().cos()));
  CHECK(at::equal(nn::checkpoint([held] { return held.sin(); }), held.sin()));
}

TEST_CASE("without gradients a checkpoint is a plain call") {
  const Stack stack(1, 0.0);
  const Tensor x = input();
  int copies = 0;
  struct Counted {
    int* copies;
    std::shared_ptr<Block> block;
    Counted(int* copies_, std::shared_ptr<Block> block_) : copies(copies_), block(std::move(block_)) {}
    Counted(const Counted& other) : copies(other.copies), block(other.block) { ++*copies; }
    Tensor operator()(const Tensor& given) { return block->forward(given); }
  };
  const Counted function(&copies, stack.blocks[0]);
  Counted callable = function;
  copies = 0;
  {
    const at::NoGradGuard no_grad;
    CHECK_FALSE(nn::checkpoint(callable, x).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    CHECK(nn::checkpoint(callable, x).is_inference());
  }
  CHECK(copies == 0);
  CHECK(nn::checkpoint(callable, x).requires_grad());
  CHECK(copies == 1);
}

TEST_CASE("the recompute must save what forward did") {
  const Tensor w = at::ones({kWidth}).requires_grad_();
  const auto broken = [&](auto first, auto again, const nn::CheckpointOptions& options = {}) {
    int calls = 0;
    return nn::checkpoint(
               options,
               [=, &calls](const Tensor& x) mutable {
                 return calls++ == 0 ? Tensor(first(x * w)) : Tensor(again(x * w));
               },
               input())
        .sum()
        .backward();
  };
  const auto one = [](const Tensor& x) { return x.sin(); };
  const auto two = [](const Tensor& x) { return x.sin().exp(); };
  const auto narrow = [](const Tensor& x) { return x.narrow(0, 0, 2).sin(); };
  const auto bfloat16 = [](const Tensor& x) { return x.to(at::kBFloat16).sin(); };
  CHECK_THAT(message_of<Error>([&] { broken(two, one); }),
             ContainsSubstring("[nn.checkpoint] the recompute must save as many tensors as forward, 3; it saved 2.") &&
                 ContainsSubstring("The function must be deterministic"));
  CHECK_THAT(message_of<Error>([&] { broken(one, two, {.early_stop = false}); }),
             ContainsSubstring("as forward, 2; it saved 3."));
  CHECK_THAT(message_of<Error>([&] { broken(one, narrow); }),
             ContainsSubstring(
                 "number 1 of 2 was Float [4, 16] on cpu in forward and is Float [2, 16] on cpu in the recompute"));
  CHECK_THAT(message_of<Error>([&] { broken(one, bfloat16); }), ContainsSubstring("is BFloat16 [4, 16] on cpu"));
}

TEST_CASE("determinism_check off lets other shapes pass to the operation that uses them") {
  const Tensor w = at::ones({1, kWidth}).requires_grad_();
  const auto run = [&](bool check) {
    int calls = 0;
    nn::checkpoint(
        {.determinism_check = check},
        [w, &calls](const Tensor& x) { return (x.narrow(0, 0, calls++ == 0 ? 4 : 1) * w).sin(); }, input())
        .sum()
        .backward();
  };
  CHECK_THAT(message_of<Error>([&] { run(true); }), ContainsSubstring("[4, 16]"));
  CHECK_NOTHROW(run(false));  // [1, 16] broadcasts
}

TEST_CASE("values that are changed in place are an error, as without a checkpoint") {
  Tensor w = at::ones({kWidth}).requires_grad_();
  const Tensor y = nn::checkpoint([w](const Tensor& x) { return x * w * w; }, input());
  {
    const at::NoGradGuard no_grad;
    w.mul_(2);
  }
  CHECK_THAT(message_of<Error>([&] { y.sum().backward(); }),
             ContainsSubstring("a parameter must not change between forward and backward"));

  const auto spoils = [w](const Tensor& x) {
    Tensor t = x * w;
    const Tensor s = t.sin();  // saves t
    t.add_(1);
    return s + t;
  };
  CHECK_THAT(message_of<Error>([&] { nn::checkpoint({.early_stop = false}, spoils, input()).sum().backward(); }),
             ContainsSubstring("must not be changed in place") && ContainsSubstring("Float [4, 16]"));
  const Tensor x = input().requires_grad_();
  const Tensor of_input = nn::checkpoint([w](const Tensor& given) { return given * w; }, x);
  {
    const at::NoGradGuard no_grad;
    x.mul_(2);
  }
  CHECK_THAT(message_of<c10::Error>([&] { of_input.sum().backward(); }),
             ContainsSubstring("modified by an inplace operation"));
}

TEST_CASE("what the function throws comes through, and the thread is as before") {
  const Stack stack(1);
  const Tensor x = input();
  int calls = 0;
  bool spoil_recompute = false;
  const auto function = [&](const Tensor& given) {
    const Tensor y = stack.blocks[0]->forward(given);
    ++calls;
    if (calls == 1 || spoil_recompute) throw std::invalid_argument("spoiled");
    return y.sin();
  };
  CHECK_THAT(message_of<std::invalid_argument>([&] { nn::checkpoint(function, x); }), ContainsSubstring("spoiled"));
  const Tensor y = nn::checkpoint(function, x);
  at::manual_seed(1);
  const Tensor next = at::rand({1});
  at::manual_seed(1);
  spoil_recompute = true;
  CHECK_THAT(message_of<std::invalid_argument>([&] { y.sum().backward({}, /*retain_graph=*/true); }),
             ContainsSubstring("spoiled"));
  CHECK(at::equal(next, at::rand({1})));
  CHECK_FALSE(nn::in_recompute());
  // Nothing of either is left: a graph made now keeps its tensors, and the same one can be gone through again.
  const Tensor plain = at::ones({1}).requires_grad_();
  plain.sin().backward();
  CHECK(at::equal(plain.grad(), at::ones({1}).cos()));
  stack.take_gradients();
  spoil_recompute = false;
  y.sum().backward();
  CHECK(stack.blocks[0]->in->weight.grad().defined());
  CHECK(calls == 4);
}

TEST_CASE("a function that cannot be left early is run to its end") {
  const Tensor w = at::ones({kWidth}).requires_grad_();
  int ends = 0;
  const auto function = [&, w](const Tensor& x) {
    const Tensor y = (x * w).sin();
    const Tensor z = y + 1;  // saves nothing
    ++ends;
    return z;
  };
  nn::checkpoint(function, input()).sum().backward();
  CHECK(ends == 1);
  nn::checkpoint({.early_stop = false}, function, input()).sum().backward();
  CHECK(ends == 3);
  // A catch of std::exception does not hold what ends the recompute.
  const auto catches = [w](const Tensor& x) {
    try {
      return (x * w).sin();
    } catch (const std::exception&) {
      return x;
    }
  };
  CHECK_NOTHROW(nn::checkpoint(catches, input()).sum().backward());
}

TEST_CASE("a function may run its own backward") {
  const Tensor x = input();
  const auto function = [](const Tensor& given, const Tensor& w) {
    const Tensor y = (given * w).sin();
    const Tensor z = y.exp();
    const Tensor slope = torch::autograd::grad({z.sum()}, {w}, {}, /*retain_graph=*/true)[0];
    return (z * slope).sum();
  };
  const auto gradient = [&](const nn::CheckpointOptions* options) {
    const Tensor w = at::ones({kWidth}).requires_grad_();
    (options ? nn::checkpoint(*options, function, x, w) : function(x, w)).backward();
    return w.grad();
  };
  const nn::CheckpointOptions early, whole{.early_stop = false};
  const Tensor expected = gradient(nullptr);
  CHECK(at::equal(expected, gradient(&early)));
  CHECK(at::equal(expected, gradient(&whole)));
}

TEST_CASE("two threads run their own checkpoints concurrently") {
  // No dropout: the CPU's generator is the process's.
  const auto work = [](const Stack& stack, bool checkpointed, size_t number) {
    const Tensor x = at::ones({8, kWidth}) * static_cast<double>(number + 1);
    for (int step = 0; step < 20; ++step) stack.forward(x, checkpointed).square().sum().backward();
    return stack.take_gradients();
  };
  std::vector<std::vector<Tensor>> expected, found(2);
  std::vector<Stack> stacks;
  for (size_t i = 0; i < 2; ++i) {
    expected.push_back(work(Stack(3, 0.0), false, i));
    stacks.emplace_back(3, 0.0);
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i) threads.emplace_back([&, i] { found[i] = work(stacks[i], true, i); });
  for (auto& thread : threads) thread.join();
  CHECK(same(expected[0], found[0]));
  CHECK(same(expected[1], found[1]));
}

TEST_CASE("backward on another thread than forward recomputes there") {
  const Stack stack(2);
  const Tensor x = input();
  const auto run = [&](bool elsewhere) {
    return outcome(stack, [&] {
      const Tensor y = stack.forward(x, true);
      const Tensor loss = y.square().sum();
      if (elsewhere)
        std::thread([&] { loss.backward(); }).join();
      else
        loss.backward();
      return y;
    });
  };
  CHECK(same(run(false), run(true)));
}

TEST_CASE("between forward and backward a checkpoint holds its input; in backward one block at a time") {
  constexpr int64_t rows = 64, blocks = 8;
  const Stack stack(blocks, 0.0);
  const Tensor x = at::randn({rows, kWidth});
  struct Sizes {
    int64_t held, peak;
  };
  const auto measure = [&](bool checkpointed, bool retain_graph = false) {
    const test::LiveMemory memory;
    Tensor y = stack.forward(x, checkpointed);
    Sizes sizes{memory.bytes(), 0};
    for (const auto& block : stack.blocks)  // gradients are not what is measured
      for (Tensor& parameter : block->parameters()) parameter.mutable_grad() = at::zeros_like(parameter);
    const int64_t gradients = memory.bytes() - sizes.held;
    y.backward(at::ones_like(y), retain_graph);
    sizes.peak = memory.peak() - gradients;
    return sizes;
  };
  const Sizes plain = measure(false), checkpointed = measure(true), retained = measure(true, /*retain_graph=*/true);
  stack.take_gradients();
  // A block saves its input, and input and output of the GELU: (1 + 4 + 4) widths. The last output lives too, the first
  // input is not counted; and a checkpoint keeps 5 kB of generator state only if it drew from it.
  const int64_t width = rows * kWidth * static_cast<int64_t>(sizeof(float));
  CHECK(plain.held == blocks * 9 * width);
  CHECK(checkpointed.held == blocks * width);
  CHECK(checkpointed.peak < (blocks + 16) * width);
  CHECK(retained.peak < (blocks + 16) * width);  // a value goes when it is used, not with the graph
  CHECK(plain.peak > 9 * blocks * width);
}

TEST_CASE("a long chain of checkpoints is gone through, and given up, without a deep stack") {
  const auto chain = [](const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 20000; ++i) y = nn::checkpoint([](const Tensor& given) { return given.sin(); }, y);
    return y;
  };
  const Tensor x = at::ones({1}).requires_grad_();
  Tensor y = chain(x);
  y = Tensor();
  chain(x).backward();
  CHECK(x.grad().item<float>() > 0);
}

TEST_CASE("running statistics of a checkpointed batch norm see a batch once") {
  for (const auto momentum : {std::optional(0.1), std::optional<double>()}) {
    nn::BatchNorm1d plain(nn::BatchNormOptions(kWidth).momentum(momentum)),
        checkpointed(nn::BatchNormOptions(kWidth).momentum(momentum));
    for (int step = 0; step < 3; ++step) {
      const Tensor x = at::randn({8, kWidth});
      plain(x).square().sum().backward();
      nn::checkpoint(checkpointed, x).square().sum().backward();
    }
    CHECK(at::equal(plain->running_mean, checkpointed->running_mean));
    CHECK(at::equal(plain->running_var, checkpointed->running_var));
    CHECK(checkpointed->num_batches_tracked.item<int64_t>() == 3);
    CHECK(at::equal(plain->weight.grad(), checkpointed->weight.grad()));
  }
}

TEST_CASE("a sequence is checkpointed by segments") {
  at::manual_seed(2);
  torch::nn::Sequential modules;
  int calls = 0;
  for (int i = 0; i < 5; ++i) {
    modules->push_back(torch::nn::Linear(kWidth, kWidth));
    modules->push_back(torch::nn::Functional([&calls](const Tensor& x) {
      ++calls;
      return x.sigmoid();
    }));
  }
  const Tensor x = input();
  const auto run = [&](int64_t segments) {
    calls = 0;
    const Tensor y = segments == 0 ? modules->forward(x) : nn::checkpoint_sequential(modules, segments, x);
    y.sum().backward();
    std::vector<Tensor> all = {y.detach()};
    for (Tensor& parameter : modules->parameters()) {
      all.push_back(parameter.grad());
      parameter.mutable_grad() = Tensor();
    }
    return all;
  };
  const auto plain = run(0);
  CHECK(calls == 5);
  CHECK(same(plain, run(1)));
  CHECK(calls == 5);  // the last segment is never checkpointed
  CHECK(same(plain, run(3)));
  CHECK(calls == 5 + 3);  // segments of 3, 3 and 4 modules: activations 1, 2 | 3 | 4, 5
  CHECK(same(plain, run(10)));
  CHECK(calls == 5 + 4 + 1 - 1);
  CHECK_THAT(message_of<Error>([&] { nn::checkpoint_sequential(modules, 11, x); }),
             ContainsSubstring("[nn.checkpoint_sequential]") && ContainsSubstring("10; got 11"));
  CHECK_THROWS_AS(nn::checkpoint_sequential(modules, 0, x), Error);
}

TEST_CASE("hooks of saved tensors pack and unpack what operations save") {
  const Tensor w = at::ones({4}).requires_grad_();
  int packed = 0, unpacked = 0;
  const auto pack = [&](const Tensor& tensor) -> std::any {
    ++packed;
    return tensor.detach().to(at::kDouble) * 2;
  };
  const auto unpack = [&](const std::any& value) {
    ++unpacked;
    return std::any_cast<const Tensor&>(value).to(at::kFloat);
  };
  Tensor y;
  {
    const nn::SavedTensorsHooks hooks(pack, unpack);
    y = (w * 3).sin();
    {
      const nn::SavedTensorsHooks inner([](const Tensor& tensor) -> std::any { return tensor.detach(); },
                                        [](const std::any& value) { return std::any_cast<const Tensor&>(value); });
      y = y + w.exp();
    }
    const int before = packed;
    nn::checkpoint([&](const Tensor& x) { return x.sin().sin(); }, w);
    CHECK(packed == before + 1);  // the input of the checkpoint, nothing that it drops
  }
  CHECK(w.exp().requires_grad());
  const int before = packed;
  y.sum().backward();
  CHECK(packed == before);
  CHECK(unpacked > 0);
  // sin's cosine was taken of twice the value.
  CHECK(at::allclose(w.grad(), 3 * at::cos(at::ones({4}) * 6) + at::exp(at::ones({4}))));
}

TEST_CASE("steps with checkpoints are captured on the CPU, unless the function draws random numbers") {
  for (const double dropout : {0., 0.5}) {
    INFO(dropout);
    at::manual_seed(2);
    Block block(dropout);
    Tensor x = at::randn({4, kWidth});
    for (const Tensor& parameter : block.parameters()) parameter.mutable_grad() = at::zeros_like(parameter);
    const auto step = [&] {
      nn::checkpoint([&block](const Tensor& own) { return block.forward(own); }, x).square().sum().backward();
    };
    step();
    const auto program = CapturedProgram::record(step);
    REQUIRE(program->refusals().empty());
    program->prepare();
    const auto difference = program->check_replay();
    CHECK(difference.has_value() == (dropout > 0));
    if (difference) {
      CHECK_THAT(*difference, Catch::Matchers::ContainsSubstring("random numbers"));
      continue;
    }
    const auto gradients = [&] {
      std::vector<Tensor> found;
      for (const Tensor& parameter : block.parameters()) {
        found.push_back(parameter.grad().clone());
        parameter.grad().zero_();
      }
      return found;
    };
    gradients();
    x.copy_(at::randn({4, kWidth}));
    program->replay();
    const std::vector<Tensor> replayed = gradients();
    step();
    const std::vector<Tensor> eager = gradients();
    for (size_t i = 0; i < eager.size(); ++i) CHECK(at::equal(replayed[i], eager[i]));
  }
}

}  // namespace checkpoint_test
