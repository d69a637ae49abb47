// Each operation on values of which each rank has a part is what one process computes, or an error that names it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <map>

#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/text/text.h"
#include "mesh_runs.h"

namespace width_sweep_test {

using namespace fulgur::test;
namespace fs = std::filesystem;
using fulgur::cat;
using fulgur::Tensor;

namespace {

// What a process has written: for each operation, `must` or `may`, and the text of an error, or loss and gradients.
struct Sweep {
  std::map<std::string, std::string> texts;
  std::map<std::string, Tensor> values;
};

Sweep sweep_of(const fs::path& folder, size_t rank) {
  auto file = fulgur::read_safetensors(folder / cat("width_", rank, ".safetensors"));
  Sweep sweep{.texts = std::move(file.metadata), .values = {}};
  for (auto& [name, value] : file.tensors) sweep.values.emplace(name, std::move(value));
  return sweep;
}

// The whole values that the ranks have parts of, or those of each of them.
std::vector<Tensor> whole_values(const std::string& of, const std::vector<Tensor>& parts) {
  if (of == "up.weight" || of == "up.bias") return {at::cat(parts, 0)};
  if (of == "down.weight") return {at::cat(parts, 1)};
  if (of != "fused.weight" && of != "fused.bias") return parts;
  std::vector<Tensor> of_ranks;
  for (const Tensor& part : parts) of_ranks.push_back(part.unflatten(0, {3, -1}));
  return {at::cat(of_ranks, 1).flatten(0, 1)};
}

// The names of what differs from one process.
std::string differences(const std::string& operation, const Sweep& alone, const std::vector<Sweep>& ranks) {
  std::string found;
  for (const char* const of : {"loss", "x", "one", "rows", "width", "up.weight", "up.bias", "fused.weight",
                               "fused.bias", "down.weight", "down.bias"}) {
    const std::string name = cat(operation, "/", of);
    std::vector<Tensor> parts;
    for (const Sweep& rank : ranks) parts.push_back(rank.values.at(name));
    for (const Tensor& value : whole_values(of, parts))
      if (const Tensor& expected = alone.values.at(name);
          value.sizes() != expected.sizes() || !value.allclose(expected, 0, 1e-5))
        found += cat(" ", of);
  }
  return found;
}

}  // namespace

TEST_CASE("tensor: each operation on parts is what one process computes, or an error that names it") {
  const int tensor = GENERATE(2, 4);
  const Arguments options{"--model", "ProbeSweep", "--trainer.max_steps", "1", "--trainer.precision", "64-true"};
  const TemporaryFolder one, many;
  REQUIRE(all_exit(fit_alone(one.path(), options), 0));
  REQUIRE(all_exit(fit_mesh(many.path(), {.pipeline = 1, .tensor = tensor}, options), 0));
  const Sweep alone = sweep_of(one.path(), 0);
  std::vector<Sweep> ranks;
  for (int rank = 0; rank < tensor; ++rank) ranks.push_back(sweep_of(many.path(), static_cast<size_t>(rank)));
  size_t computed = 0, refused = 0;
  for (const auto& [operation, kind] : alone.texts) {
    if (operation.ends_with("/error")) {
      FAIL_CHECK(operation << " of one process: " << kind);
      continue;
    }
    CAPTURE(tensor, operation);
    size_t errors = 0;
    for (const Sweep& rank : ranks)
      if (const auto error = rank.texts.find(operation + "/error"); error != rank.texts.end()) {
        ++errors;
        CAPTURE(error->second);
        CHECK(rank.texts.at(operation) == "may");
        CHECK(says(error->second, "[strategies.mesh] aten::"));
      }
    if (errors > 0) {
      CHECK(errors == ranks.size());
      ++refused;
    } else {
      CHECK(differences(operation, alone, ranks) == "");
      ++computed;
    }
  }
  // A sweep that computes nothing, or refuses nothing, would compare nothing.
  CHECK(computed > 400);
  CHECK(refused > 200);
}

}  // namespace width_sweep_test
