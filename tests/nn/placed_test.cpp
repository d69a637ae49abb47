#include "fulgur/nn/placed.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <thread>

#include "fulgur/core/text/errors.h"
#include "fulgur/nn/checkpoint.h"
#include "fulgur/nn/parallel_apply.h"
#include "fulgur/nn/replica_tensors.h"
#include "support/expect_error.h"

namespace placed_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

namespace {

const at::Device kCpu(at::kCPU), kMeta(at::kMeta);
const std::vector<at::Device> kThree = {kCpu, kCpu, kCpu};

/// What the calls of one layer were: the number of rows, and on which thread.
struct Calls {
  std::mutex mutex;
  std::vector<int64_t> rows;
  std::set<std::thread::id> threads;
};

struct Layer : torch::nn::Module {
  explicit Layer(int64_t width = 4, std::shared_ptr<Calls> on = nullptr) : calls(std::move(on)), linear(width, 3) {
    register_module("linear", linear);
  }
  Tensor forward(const Tensor& x) {
    if (calls) {
      const std::lock_guard<std::mutex> lock(calls->mutex);
      calls->rows.push_back(x.size(0));
      calls->threads.insert(std::this_thread::get_id());
    }
    return linear(x).tanh();
  }
  std::shared_ptr<Calls> calls;
  torch::nn::Linear linear;
};

/// A user's module with one placed submodule, M.
template <class M>
struct Model : LightningModule {
  template <class... Args>
  explicit Model(const Args&... args) : layer(nn::register_placed<M>(*this, "layer", args...)) {}
  StepOutput training_step(const Batch&, int64_t) override { return {}; }
  PlacedModule& placed() { return *fulgur::detail::ComponentAccess::placed_modules<LightningModule>(*this).at(0); }
  /// On `devices`, with equal copies.
  nn::ReplicaTensors on(std::vector<at::Device> devices) {
    placed().place(std::move(devices));
    nn::ReplicaTensors tensors(*layer, {placed().replicas().begin() + 1, placed().replicas().end()});
    tensors.copy_values();
    return tensors;
  }
  nn::Placed<M> layer;
};

/// A module without parameters that does what its type says.
template <auto kForward>
struct Does : torch::nn::Module {
  template <class... Args>
  auto forward(Args&&... args) {
    return kForward(std::forward<Args>(args)...);
  }
};

/// With one parameter, in a layer of it.
struct Weighted : torch::nn::Module {
  explicit Weighted(at::Device device) { inner->register_parameter("weight", at::ones({2}, device)); }
  Tensor forward(int, const std::vector<Tensor>& list) { return list.at(0) * inner->named_parameters()["weight"]; }
  std::shared_ptr<torch::nn::Module> inner = register_module("inner", std::make_shared<torch::nn::Module>());
};

template <class Call>
std::string error_of(Call&& call) {
  return message_of<Error>(std::forward<Call>(call));
}

}  // namespace

TEST_CASE("a placed submodule is a submodule as any other, and known to strategies") {
  Model<Layer> model(int64_t{5});
  CHECK(model.named_parameters().contains("layer.linear.weight"));
  CHECK(model.named_parameters().size() == 2);
  REQUIRE(fulgur::detail::ComponentAccess::placed_modules(model).size() == 1);
  CHECK(model.placed().name() == "layer");
  CHECK(model.placed().module() == model.layer.ptr());
  CHECK(&model.layer.placement() == &model.placed());
  CHECK(model.layer->linear->options.in_features() == 5);
  CHECK(&(*model.layer).linear == &model.layer->linear);
  CHECK(static_cast<bool>(model.layer));
  // Copies are made of the same arguments.
  model.placed().place(kThree);
  REQUIRE(model.placed().replicas().size() == 3);
  for (const auto& replica : model.placed().replicas())
    CHECK(replica->named_parameters()["linear.weight"].size(1) == 5);
  CHECK(model.placed().replicas()[0] == model.placed().module());
  CHECK(model.named_parameters().size() == 2);
}

TEST_CASE("a placed submodule that is nowhere in particular is called directly") {
  const auto calls = std::make_shared<Calls>();
  Model<Layer> model(int64_t{4}, calls);
  const Tensor x = at::randn({6, 4});
  const Tensor y = model.layer(x);
  CHECK((y.equal(model.layer->linear(x).tanh())));
  CHECK((model.layer.forward(x).equal(y)));
  CHECK((calls->rows == std::vector<int64_t>{6, 6}));
  CHECK((calls->threads == std::set<std::thread::id>{std::this_thread::get_id()}));
}

namespace {

struct Shares : torch::nn::Module {
  Tensor forward(const Tensor& x, int64_t times, const std::string& text = "ab") {
    return x * times + static_cast<int64_t>(text.size());
  }
};
struct TakesOver : torch::nn::Module {
  Tensor forward(Tensor& x, std::unique_ptr<int64_t> owned, std::string& log) {
    log += "called";
    return x * *owned;
  }
};

}  // namespace

TEST_CASE(
    "a placed submodule takes what its forward takes: default arguments, temporaries; on one device also what it "
    "changes") {
  Model<Shares> shares;
  const Tensor x = at::ones({4, 2});
  for (const std::vector<at::Device>& devices : {std::vector<at::Device>{}, {kCpu}, kThree}) {
    shares.placed().place(devices);
    CHECK((shares.layer(x, 3).equal(at::full({4, 2}, 5.0))));
    CHECK((shares.layer(x, 3, "abcd").equal(at::full({4, 2}, 7.0))));
  }
  Model<TakesOver> takes;
  Tensor y = at::ones({4, 2});
  std::string log;
  CHECK((takes.layer(y, std::make_unique<int64_t>(6), log).equal(at::full({4, 2}, 6.0))));
  CHECK(log == "called");
  takes.placed().place(kThree);
  CHECK_THAT(
      error_of([&] { takes.layer(y, std::make_unique<int64_t>(6), log); }),
      ContainsSubstring("'layer' computes on 3 devices") && ContainsSubstring("it modifies or takes ownership of one"));
}

TEST_CASE("on one device: tensors go there, in whatever structure, and the rest passes as it is") {
  constexpr auto forward = [](const Tensor& a, const std::optional<Tensor>& none,
                              const std::optional<std::tuple<Tensor, Tensor>>& state, const std::vector<Tensor>& list,
                              const std::pair<Tensor, int>& pair, at::Device* seen, const std::string& text) {
    if (text != "text") throw std::logic_error(text);
    *seen = a.device();
    const auto all_meta = [](const auto&... tensors) { return (tensors.is_meta() && ...); };
    if (none || !all_meta(a, std::get<0>(*state), std::get<1>(*state), list.at(0), list.at(1), pair.first) ||
        pair.second != 7)
      throw std::logic_error("left");
    return std::vector<Tensor>{a};
  };
  Model<Does<forward>> model;
  model.placed().place({kMeta});
  const Tensor x = at::ones({2, 3});
  at::Device seen = kCpu;
  const auto result = model.layer(x, std::optional<Tensor>(), std::optional(std::tuple(x, x)),
                                  std::vector<Tensor>{x, x}, std::pair(x, 7), &seen, "text");
  CHECK(seen == kMeta);
  CHECK((result.at(0).sizes() == at::IntArrayRef({2, 3})));
  CHECK(x.is_cpu());
}

TEST_CASE(
    "on one device: a list of tensors and a tuple of references go there as well; an undefined tensor stays "
    "undefined") {
  constexpr auto forward = [](at::TensorList list, const std::tuple<Tensor, Tensor>& tuple, const Tensor& undefined) {
    if (undefined.defined() || !list.at(0).is_meta() || !std::get<1>(tuple).is_meta()) throw std::logic_error("left");
    return list[0];
  };
  Model<Does<forward>> model;
  model.placed().place({kMeta});
  Tensor a = at::ones({2}), b = at::ones({2});
  CHECK(model.layer(at::TensorList(a), std::tie(a, b), Tensor()).is_meta());
}

TEST_CASE("on one device: a tensor that is there is shared, one that comes from elsewhere is differentiable") {
  constexpr auto same = [](const Tensor& x) { return x; };
  Model<Does<same>> model;
  model.placed().place({kCpu});
  const Tensor x = at::ones({2});
  CHECK(model.layer(x).is_same(x));
  model.placed().place({kMeta});
  Tensor learns = at::ones({2}).set_requires_grad(true);
  const Tensor moved = model.layer(learns);
  CHECK(moved.requires_grad());
  REQUIRE(moved.grad_fn());
}

TEST_CASE("on a group: values and gradients are those of the module on one device, also for uneven and tiny batches") {
  struct Size {
    int64_t samples;
    std::vector<int64_t> parts;
  };
  for (const Size& size : {Size{9, {3, 3, 3}}, Size{8, {3, 3, 2}}, Size{7, {3, 2, 2}}, Size{3, {1, 1, 1}},
                           Size{2, {1, 1}}, Size{1, {1}}, Size{0, {0}}}) {
    CAPTURE(size.samples);
    const auto calls = std::make_shared<Calls>();
    Model<Layer> model(int64_t{4}, calls), plain;
    convert_floating(model, at::kDouble);
    convert_floating(plain, at::kDouble);
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : plain.named_parameters()) item.value().copy_(model.named_parameters()[item.key()]);
    }
    model.placed().place(kThree);
    for (const auto& replica : model.placed().replicas()) convert_floating(*replica, at::kDouble);
    nn::ReplicaTensors tensors(*model.layer, {model.placed().replicas().begin() + 1, model.placed().replicas().end()});
    tensors.copy_values();
    const Tensor x = at::randn({size.samples, 4}, at::kDouble).set_requires_grad(true),
                 x_plain = x.detach().clone().set_requires_grad(true);
    const Tensor y = model.layer(x), y_plain = plain.layer(x_plain);
    CHECK((y.sizes() == y_plain.sizes()));
    CHECK(at::allclose(y, y_plain, 1e-12, 1e-12));
    std::sort(calls->rows.rbegin(), calls->rows.rend());
    CHECK((calls->rows == size.parts));
    CHECK((calls->threads.size() == size.parts.size()));

    y.square().sum().backward();
    y_plain.square().sum().backward();
    CHECK(at::allclose(x.grad(), x_plain.grad(), 1e-12, 1e-12));
    tensors.reduce_gradients();
    for (const auto& item : plain.named_parameters())
      CHECK(at::allclose(model.named_parameters()[item.key()].grad(), item.value().grad(), 1e-12, 1e-12));
  }
}

TEST_CASE("on a group: each copy of the module computes its own part") {
  Model<Layer> model;
  model.placed().place(kThree);  // without equal values
  const Tensor x = at::randn({5, 4});
  const Tensor y = model.layer(x);
  int64_t from = 0;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t rows = i < 2 ? 2 : 1;
    const auto& replica = dynamic_cast<Layer&>(*model.placed().replicas()[i]);
    CHECK(
        (y.narrow(0, from, rows)
             .equal(at::tanh(replica.linear->weight.matmul(x.narrow(0, from, rows).t()).t() + replica.linear->bias)) ||
         at::allclose(y.narrow(0, from, rows),
                      (x.narrow(0, from, rows).matmul(replica.linear->weight.t()) + replica.linear->bias).tanh())));
    from += rows;
  }
}

TEST_CASE("on a group: results in structures are joined one by one, in the order of samples") {
  constexpr auto forward = [](const Tensor& x, const std::vector<Tensor>& more) {
    using Nested =
        std::tuple<Tensor, std::pair<std::optional<Tensor>, std::optional<Tensor>>, std::vector<Tensor>, Tensor>;
    return Nested{x, {x + 1, std::nullopt}, {x * 2, x.flatten(0, 1) + more[0].sum()}, Tensor()};
  };
  Model<Does<forward>> model;
  model.placed().place(kThree);
  const Tensor x = at::arange(14).view({7, 2});
  const auto [first, pair, list, undefined] = model.layer(x, std::vector<Tensor>{at::zeros({7})});
  CHECK((first.equal(x)));
  CHECK((pair.first->equal(x + 1)));
  CHECK_FALSE(pair.second);
  REQUIRE(list.size() == 2);
  CHECK((list[0].equal(x * 2)));
  CHECK((list[1].equal(at::arange(14))));
  CHECK_FALSE(undefined.defined());
}

TEST_CASE(
    "on a group: tensors without dimensions and undefined ones go to each device whole; one tensor passed twice is "
    "split the same way") {
  constexpr auto forward = [](const Tensor& x, const Tensor& again, const Tensor& factor, const Tensor& undefined,
                              double plus) {
    if (undefined.defined()) throw std::logic_error("defined");
    return x * again * factor + plus;
  };
  Model<Does<forward>> model;
  model.placed().place(kThree);
  const Tensor x = at::arange(5);
  CHECK((model.layer(x, x, at::full({}, 3, at::kLong), Tensor(), 1.0).equal(x * x * 3 + 1.0)));
}

TEST_CASE("on a group: without a batch the first device alone computes") {
  const auto calls = std::make_shared<Calls>();
  constexpr auto forward = [](const std::shared_ptr<Calls>& on, int64_t count) {
    on->rows.push_back(count);
    return at::ones({count, 2});
  };
  Model<Does<forward>> model;
  model.placed().place(kThree);
  CHECK((model.layer(calls, 4).sizes() == at::IntArrayRef({4, 2})));
  CHECK((calls->rows == std::vector<int64_t>{4}));
}

TEST_CASE("on a group: inputs go to their devices, and results to the first") {
  constexpr auto forward = [](const Tensor& x) { return x.is_meta() ? at::full({x.size(0)}, 1.0) : x * 0; };
  Model<Does<forward>> model;
  model.placed().place({kCpu, kMeta});
  const Tensor y = model.layer(at::arange(5, at::kFloat));
  CHECK(y.is_cpu());
  CHECK((y.equal(at::zeros({5}).index_fill_(0, at::arange(3, 5), 1.0))));
}

TEST_CASE("on a group: the error of a copy is thrown, once the others have ended") {
  static std::atomic<int> ended = 0;
  constexpr auto forward = [](const Tensor& x) {
    ++ended;
    if (x[0].item<int64_t>() >= 2) throw DataError("sample " + std::to_string(x[0].item<int64_t>()));
    return x;
  };
  Model<Does<forward>> model;
  model.placed().place(kThree);
  CHECK((message_of<DataError>([&] { model.layer(at::arange(6)); }) == "sample 2"));
  CHECK(ended == 3);
}

TEST_CASE("on a group: what cannot be cut or joined is named") {
  Model<torch::nn::GRUImpl> gru(torch::nn::GRUOptions(2, 3).batch_first(true).num_layers(2));
  gru.placed().place(kThree);
  CHECK_THAT(error_of([&] {
               gru.layer(at::ones({8, 4, 2}), at::ones({2, 8, 3}));
             }),
             ContainsSubstring("[nn.Placed] 'layer' computes on 3 devices") &&
                 ContainsSubstring("argument 0 has 8, argument 1 has 2 (shape [2, 8, 3])"));
  // Its state comes as (layers, N, H).
  CHECK_THAT(error_of([&] {
               gru.layer(at::ones({7, 4, 2}));
             }),
             ContainsSubstring(
                 "the same number of rows for each; for 3 samples one has shape [2, 3, 3]. Return it transposed."));

  constexpr auto mean = [](const Tensor& x) { return x.mean(); };
  Model<Does<mean>> means;
  means.placed().place(kThree);
  for (const int64_t samples : {6, 1})
    CHECK_THAT(
        error_of([&] {
          means.layer(at::ones({samples, 2}));
        }),
        ContainsSubstring("a row for each sample") && ContainsSubstring("(a mean or a sum?). Return a row per sample"));

  constexpr auto some = [](const Tensor& x) {
    return x[0].item<int64_t>() == 0 ? std::vector<Tensor>{x} : std::vector<Tensor>{x, x};
  };
  Model<Does<some>> unlike;
  unlike.placed().place(kThree);
  CHECK_THAT(error_of([&] { unlike.layer(at::arange(6)); }),
             ContainsSubstring("must have the same structure for each part"));
  constexpr auto maybe = [](const Tensor& x) {
    return x[0].item<int64_t>() == 0 ? std::optional<Tensor>(x) : std::nullopt;
  };
  Model<Does<maybe>> sometimes;
  sometimes.placed().place(kThree);
  CHECK_THAT(error_of([&] { sometimes.layer(at::arange(6)); }),
             ContainsSubstring("must have the same structure for each part"));
}

TEST_CASE(
    "placed manually: nothing is moved, and a tensor elsewhere is an error that names module, parameter and both "
    "devices") {
  Model<Weighted> model(kCpu);
  model.placed().check_inputs(true);
  const Tensor x = at::full({2}, 3.0);
  CHECK((model.layer(1, std::vector<Tensor>{x}).equal(x)));
  CHECK_THAT(error_of([&] {
               model.layer(1, std::vector<Tensor>{x, at::empty({1}, kMeta)});
             }),
             ContainsSubstring("[nn.Placed] inputs of 'layer'") &&
                 ContainsSubstring("argument 1 is on meta, parameter 'layer.inner.weight' on cpu") &&
                 ContainsSubstring("placement: {layer: …}"));
  Model<Weighted> elsewhere(kMeta);
  elsewhere.placed().check_inputs(true);
  CHECK(elsewhere.layer(1, std::vector<Tensor>{x.to(kMeta), Tensor()}).is_meta());
  CHECK_THAT(error_of([&] { elsewhere.layer(1, std::vector<Tensor>{x}); }),
             ContainsSubstring("argument 1 is on cpu, parameter 'layer.inner.weight' on meta"));
  // Nothing is moved then, whatever devices a strategy has given.
  elsewhere.placed().place({kMeta});
  CHECK_THROWS_AS(elsewhere.layer(1, std::vector<Tensor>{x}), Error);

  constexpr auto second = [](int, const std::vector<Tensor>& list) { return list.at(1); };
  Model<Does<second>> none;  // no parameter says where it is
  none.placed().check_inputs(true);
  CHECK(none.layer(1, std::vector<Tensor>{x, at::empty({1}, kMeta)}).is_meta());
}

TEST_CASE("an empty Placed says how it gets its module") {
  const nn::Placed<Layer> empty;
  CHECK_FALSE(static_cast<bool>(empty));
  CHECK_THAT(error_of([&] { empty(at::ones({1, 4})); }), ContainsSubstring("nn::register_placed"));
  CHECK_THAT(error_of([&] { empty.placement(); }), ContainsSubstring("nn::register_placed"));
}

TEST_CASE("on a group: a checkpoint around the call gives the same gradients") {
  Model<Layer> model;
  const auto tensors = model.on(kThree);
  const Tensor x = at::randn({7, 4}).set_requires_grad(true), again = x.detach().clone().set_requires_grad(true);
  model.layer(x).square().sum().backward();
  std::vector<Tensor> gradients;
  const auto each_gradient = [&](const auto& with) {
    for (const auto& replica : model.placed().replicas())
      for (Tensor& parameter : replica->parameters()) with(parameter);
  };
  each_gradient([&](Tensor& parameter) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  });
  nn::checkpoint(model.layer, again).square().sum().backward();
  CHECK((again.grad().equal(x.grad())));
  size_t at = 0;
  each_gradient([&](Tensor& parameter) { CHECK((parameter.grad().equal(gradients[at++]))); });
  CHECK(at == 6);
}

TEST_CASE("a placed submodule may be called from several threads") {
  Model<Layer> model;
  const auto tensors = model.on(kThree);
  const Tensor x = at::randn({6, 4});
  const Tensor expected = model.layer->linear(x).tanh();
  std::vector<Tensor> results(8);
  nn::parallel_apply(8, [&](size_t i) { results[i] = model.layer(x); });
  for (const Tensor& result : results) CHECK(at::allclose(result, expected));
}

}  // namespace placed_test
