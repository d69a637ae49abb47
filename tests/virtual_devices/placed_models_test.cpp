// Encoder and decoder on different devices, and on groups of them: the same numbers as on one device.
#include <ATen/ops/allclose.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <vector>

#include "fulgur/core/contracts/module.h"
#include "fulgur/models/autoencoder.h"
#include "fulgur/models/seq2seq.h"
#include "fulgur/nn/replica_tensors.h"
#include "fulgur/virtual_devices/virtual_devices.h"

namespace placed_models_test {

using namespace fulgur;

namespace {

using Devices = std::vector<at::Device>;

/// `model` with its encoder and its decoder on these devices: losses, gradients and `of(model, batch)` are those of
/// `one`, on the CPU.
template <class Model, class Of>
void check_placed(Model& one, Model& model, const Batch& batch, const Devices& encoder, const Devices& decoder,
                  const Of& of) {
  {
    const at::NoGradGuard no_grad;
    for (const auto& item : one.named_parameters()) model.named_parameters()[item.key()].copy_(item.value());
  }
  std::vector<nn::ReplicaTensors> groups;
  for (size_t i = 0; i < 2; ++i) {
    PlacedModule& placed = *fulgur::detail::ComponentAccess::placed_modules(model)[i];
    placed.place(i == 0 ? encoder : decoder);
    groups.emplace_back(*placed.module(), std::vector(placed.replicas().begin() + 1, placed.replicas().end()))
        .copy_values();
  }
  const Batch there = batch.to(encoder[0]);
  const Tensor expected = one.training_step(batch, 0).loss, loss = model.training_step(there, 0).loss;
  CHECK(loss.device() == decoder[0]);
  CHECK(at::allclose(loss.cpu(), expected, 1e-5, 1e-6));
  expected.backward();
  loss.backward();
  for (nn::ReplicaTensors& group : groups) group.reduce_gradients();
  const auto parameters = model.named_parameters();
  for (const auto& item : one.named_parameters()) {
    CAPTURE(item.key());
    const Tensor& parameter = parameters[item.key()];
    CHECK(parameter.device() == (item.key().starts_with("encoder") ? encoder : decoder)[0]);
    REQUIRE(parameter.grad().defined());
    CHECK(parameter.grad().device() == parameter.device());
    CHECK(at::allclose(parameter.grad().cpu(), item.value().grad(), 1e-4, 1e-6));
  }
  one.zero_grad();
  const at::NoGradGuard no_grad;
  CHECK(at::allclose(of(model, there).cpu(), of(one, batch), 1e-5, 1e-6));
}

Devices virtual_devices(int64_t first, int64_t last) {
  Devices devices;
  for (int64_t i = first; i <= last; ++i) devices.push_back(virtual_device(i));
  return devices;
}

}  // namespace

TEST_CASE("an autoencoder on two devices gives the results of one") {
  const Autoencoder::Options options{.in_features = 12, .hidden = {16}, .code_size = 6};
  const Batch batch({at::randn({7, 3, 4})});
  const auto reconstruction = [](Autoencoder& model, const Batch& given) {
    return model.predict_step(given, 0, 0)["reconstruction"];
  };
  Autoencoder one(options), parallel(options), hybrid(options);
  check_placed(one, parallel, batch, virtual_devices(0, 0), virtual_devices(1, 1), reconstruction);
  check_placed(one, hybrid, batch, virtual_devices(0, 1), virtual_devices(2, 3), reconstruction);
}

TEST_CASE("a Seq2Seq on two devices gives the results of one") {
  for (const RecurrentCell cell : {RecurrentCell::gru, RecurrentCell::lstm}) {
    CAPTURE(enum_text(cell));
    const Seq2Seq::Options options{.vocabulary = 7, .embedding = 8, .hidden = 12, .layers = 2, .cell = cell};
    const Tensor source = at::randint(1, 7, {5, 4}, at::kLong);
    const Batch batch({Batch::Entry{"source", source}, Batch::Entry{"target", source.flip(1)}});
    const auto tokens = [](Seq2Seq& model, const Batch& given) { return model.predict_step(given, 0, 0)["tokens"]; };
    Seq2Seq one(options), parallel(options), hybrid(options);
    check_placed(one, parallel, batch, virtual_devices(0, 0), virtual_devices(1, 1), tokens);
    check_placed(one, hybrid, batch, virtual_devices(0, 1), virtual_devices(2, 3), tokens);
    CHECK_NOTHROW(hybrid.validation_step(batch.to(virtual_device(0)), 0, 0));
  }
}

}  // namespace placed_models_test
