#include "sharding/flat_unit.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "sharding/parameter_units.h"
#include "support/expect_error.h"

namespace flat_unit_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<NamedParameter> some_parameters() {
  std::vector<NamedParameter> parameters{{"matrix", at::randn({7, 5})},
                                         {"scalar", at::randn({})},
                                         {"none", at::randn({0, 4})},
                                         {"images", at::randn({3, 2, 2, 4}).to(at::MemoryFormat::ChannelsLast)},
                                         {"turned", at::randn({6, 3}).t()}};
  for (NamedParameter& each : parameters) each.value.set_requires_grad(true);
  return parameters;
}

}  // namespace

TEST_CASE("a unit holds its parameters, and each element belongs to one rank") {
  const int64_t ranks = GENERATE(1, 2, 3, 8);
  std::vector<Tensor> owners;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto parameters = some_parameters();
    std::vector<Tensor> before;
    std::vector<std::vector<int64_t>> strides;
    for (const auto& [name, value] : parameters) {
      before.push_back(value.detach().clone());
      strides.push_back(value.strides().vec());
    }
    const fulgur::detail::FlatUnit unit(parameters, at::kCPU, rank, ranks);
    CHECK(unit.buffer().numel() % ranks == 0);
    CHECK(unit.own_part().numel() * ranks == unit.buffer().numel());
    // The padding is at most 64 bytes for each parameter and each rank.
    CHECK(unit.buffer().numel() <= 35 + 1 + 48 + 18 + 16 * (5 + ranks));
    int64_t owned = 0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      CAPTURE(parameters[i].name);
      const Tensor& value = parameters[i].value;
      CHECK(at::equal(value, before[i]));
      CHECK(value.strides() == at::IntArrayRef(strides[i]));
      CHECK(value.is_leaf());
      CHECK(value.requires_grad());
      // What is written into the shard is written into the parameter.
      const Tensor shard = unit.own_elements(i, unit.buffer());
      owned += shard.numel();
      CHECK(shard.numel() == unit.own_range(i).count);
      if (static_cast<int64_t>(owners.size()) <= static_cast<int64_t>(i)) owners.push_back(at::zeros_like(before[i]));
      shard.fill_(1000.0);
      owners[i] += value.detach().eq(1000.0);
      const Tensor other = at::arange(unit.buffer().numel(), at::kFloat);
      CHECK(unit.whole(i, other).sizes() == value.sizes());
      CHECK(at::equal(fulgur::detail::in_memory_order(unit.whole(i, other))
                          .narrow(0, unit.own_range(i).begin, unit.own_range(i).count),
                      unit.own_elements(i, other)));
    }
    CHECK(owned <= unit.own_part().numel());
  }
  for (const Tensor& owner : owners) CHECK(owner.eq(1).all().item<bool>());
}

TEST_CASE("released parameters have memory of their own again, with the same values") {
  const auto parameters = some_parameters();
  std::vector<Tensor> before;
  for (const auto& [name, value] : parameters) before.push_back(value.detach().clone());
  fulgur::detail::FlatUnit unit(parameters, at::kCPU, 1, 2);
  unit.release(at::kCPU);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& value = parameters[i].value;
    CHECK(at::equal(value, before[i]));
    CHECK(value.storage().nbytes() == static_cast<size_t>(value.numel()) * 4);
  }
}

TEST_CASE("a parameter with gaps in memory is refused by its name") {
  const std::vector<NamedParameter> gaps{{"layer.weight", at::randn({4, 6}).narrow(1, 0, 3)}};
  CHECK_THAT(test::message_of<ConfigError>([&] { fulgur::detail::FlatUnit(gaps, at::kCPU, 0, 2); }),
             ContainsSubstring("'layer.weight' is a view with gaps"));
}

TEST_CASE("parameters are divided into units by the elements of module lists, or by patterns") {
  struct Net : torch::nn::Module {
    Net() {
      register_module("embed", torch::nn::Linear(2, 3));
      torch::nn::ModuleList blocks, inner;
      inner->push_back(torch::nn::Linear(3, 3));
      inner->push_back(torch::nn::Linear(3, 3));
      blocks->push_back(inner);
      blocks->push_back(torch::nn::Linear(3, 3));
      register_module("blocks", blocks);
      register_module("head", torch::nn::Linear(3, 2));
    }
  };
  const auto net = std::make_shared<Net>();
  const auto units = [&](const std::optional<std::vector<std::string>>& patterns) {
    std::vector<std::pair<std::string, std::vector<std::string>>> out;
    for (const auto& unit : fulgur::detail::parameter_units(*net, unique_parameters(*net), patterns)) {
      out.emplace_back(unit.name, std::vector<std::string>());
      for (const NamedParameter& each : unit.parameters) out.back().second.push_back(each.name);
    }
    return out;
  };
  using Units = std::vector<std::pair<std::string, std::vector<std::string>>>;
  // A list inside an element belongs to the element.
  CHECK(units(std::nullopt) ==
        Units{{"", {"embed.weight", "embed.bias", "head.weight", "head.bias"}},
              {"blocks.0", {"blocks.0.0.weight", "blocks.0.0.bias", "blocks.0.1.weight", "blocks.0.1.bias"}},
              {"blocks.1", {"blocks.1.weight", "blocks.1.bias"}}});
  CHECK(units({{"head", "blocks"}}).size() == 3);
  CHECK(units({{"*"}}).size() == 3);
  CHECK(units(std::vector<std::string>()).size() == 1);
  CHECK_THAT(test::message_of<ConfigError>([&] {
               units({{"head", "hed"}});
             }),
             ContainsSubstring("'hed' matches none") && ContainsSubstring("blocks.0.1"));
}

}  // namespace flat_unit_test
