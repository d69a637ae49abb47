#include "fulgur/optim/parameter_rules.h"

#include <ATen/ops/ones.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/optim/adam.h"
#include "fulgur/optim/muon.h"

namespace parameter_rules_test {

using namespace fulgur;
using Catch::Matchers::ContainsSubstring;

namespace {

std::vector<ParamGroup> network() {
  ParamGroup group;
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<int64_t>>>{{"embed.weight", {10, 4}},
                                                                                             {"fc.weight", {4, 4}},
                                                                                             {"fc.bias", {4}},
                                                                                             {"norm.weight", {4}},
                                                                                             {"norm.bias", {4}},
                                                                                             {"head.weight", {3, 4}},
                                                                                             {"head.bias", {3}}}) {
    group.params.push_back(at::ones(shape).requires_grad_());
    group.names.push_back(name);
  }
  return {group};
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("the first pattern that matches takes a parameter; the rest stays first") {
  AdamW::Options options;
  options.lr = 0.01;
  options.weight_decay = 0.1;
  options.parameters.groups = {{.pattern = "head.*", .lr = 0.5, .name = "head"},
                               {.pattern = "*.bias", .weight_decay = 0.0}};
  AdamW optimizer(options);
  optimizer.attach(network());
  const auto& groups = optimizer.groups();
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].names == Names{"embed.weight", "fc.weight", "norm.weight"});
  CHECK(groups[0].lr == 0.01);
  CHECK(groups[0].name.empty());
  CHECK_FALSE(groups[0].weight_decay);
  CHECK(groups[1].names == Names{"head.weight", "head.bias"});
  CHECK(groups[1].name == "head");
  CHECK(groups[1].lr == 0.5);
  CHECK(groups[1].initial_lr == 0.5);
  CHECK(groups[2].names == Names{"fc.bias", "norm.bias"});
  CHECK(groups[2].name == "*.bias");
  CHECK(groups[2].lr == 0.01);
  CHECK(groups[2].weight_decay == 0.0);
}

TEST_CASE("no_decay_norm_and_bias spares what has fewer than two dimensions, but not what a pattern decides") {
  ParameterRules rules;
  rules.no_decay_norm_and_bias = true;
  auto groups = rules.apply(network());
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].names == Names{"embed.weight", "fc.weight", "head.weight"});
  CHECK(groups[1].name == "no_decay");
  CHECK(groups[1].names == Names{"fc.bias", "norm.weight", "norm.bias", "head.bias"});
  CHECK(groups[1].weight_decay == 0.0);

  rules.groups = {{.pattern = "norm.*", .weight_decay = 0.3}, {.pattern = "head.*", .lr = 0.5, .name = "head"}};
  groups = rules.apply(network());
  REQUIRE(groups.size() == 5);
  CHECK(groups[1].names == Names{"fc.bias"});
  CHECK(groups[2].names == Names{"norm.weight", "norm.bias"});
  CHECK(groups[2].weight_decay == 0.3);
  CHECK(groups[3].names == Names{"head.weight"});
  CHECK_FALSE(groups[3].weight_decay);
  CHECK(groups[4].name == "head_no_decay");
  CHECK(groups[4].lr == 0.5);
}

TEST_CASE("a pattern that matches nothing names near parameters") {
  const auto refuse = [](std::vector<ParameterRule> rules, const std::string& expected) {
    CHECK_THROWS_AS((ParameterRules{.groups = rules}.apply(network())), ConfigError);
    CHECK_THROWS_WITH((ParameterRules{.groups = rules}.apply(network())), ContainsSubstring(expected));
  };
  refuse({{.pattern = "fc.wieght"}}, "'fc.wieght' matches no parameter; similar names are fc.weight");
  refuse({{.pattern = "*.biass"}}, "similar names are fc.bias, norm.bias, head.bias");
  refuse({{.pattern = "transformer.layers.*"}}, "the parameters are embed.weight, fc.weight");
  refuse({{.pattern = "*.bias"}, {.pattern = "fc.bias"}}, "'fc.bias' are already matched by earlier patterns");
}

TEST_CASE("Muon steps matrices, AdamW what is not a matrix or is named") {
  Muon::Options options;
  options.adamw.lr = 0.003;
  options.adamw_parameters = {"embed.*", "head.*"};
  options.parameters.no_decay_norm_and_bias = true;
  Muon optimizer(options);
  optimizer.attach(network());
  const auto& groups = optimizer.groups();
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].names == Names{"fc.weight"});
  CHECK(groups[0].lr == 1e-3);
  CHECK(groups[1].name == "adamw");
  CHECK(groups[1].names == Names{"embed.weight", "head.weight"});
  CHECK(groups[1].lr == 0.003);
  CHECK(optimizer.weight_decay(groups[0]) == 0.1);
  CHECK(optimizer.weight_decay(groups[1]) == 0.01);
  CHECK(groups[2].name == "no_decay_adamw");
  CHECK(groups[2].weight_decay == 0.0);
  options.adamw_parameters = {"hed.*"};
  Muon wrong(options);
  CHECK_THROWS_WITH(wrong.attach(network()),
                    ContainsSubstring("Muon.adamw_parameters") && ContainsSubstring("head.weight"));
}

}  // namespace parameter_rules_test
