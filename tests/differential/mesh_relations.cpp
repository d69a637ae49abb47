// Runs whose ranks divide the layers and what they keep, `strategy: mesh`.
#include "fulgur/core/text/text.h"
#include "relation_parts.h"

namespace fulgur::test {
namespace fs = std::filesystem;

namespace {

// Axes that several ranks have; twice the one in which most has failed.
Plan axes_of(SplitMix64& random) {
  return one_of(
      random,
      {Plan{{"tensor", 2}}, Plan{{"pipeline", 2}}, Plan{{"shard", 2}}, Plan{{"shard", 2}, {"tensor", 2}},
       Plan{{"shard", 2}, {"tensor", 2}}, Plan{{"data", 2}, {"tensor", 2}}, Plan{{"shard", 2}, {"pipeline", 2}},
       Plan{{"data", 2}, {"pipeline", 2}}, Plan{{"tensor", 2}, {"pipeline", 2}}, Plan{{"data", 2}, {"shard", 2}}});
}

int64_t along(const Plan& plan, const char* axis) { return value_at<int64_t>(plan, cat("/mesh/mesh/", axis), 1); }

}  // namespace

MeshPlan on_mesh(const Plan& given, SplitMix64& random) {
  Plan plan = given;
  // These step whole parameters.
  const std::string optimizer = value_at<std::string>(given, "/optimizer/class_path", "");
  if (optimizer == "LBFGS" || optimizer == "Muon")
    plan["optimizer"] = Plan{{"class_path", "AdamW"}, {"init_args", {{"lr", 0.02}, {"eps", 1e-6}}}};
  Plan& options = plan["mesh"] = Plan::object();
  options["mesh"] = axes_of(random);
  const bool has_stages = along(plan, "pipeline") > 1, has_parts = along(plan, "tensor") > 1;
  for (const char* key : {"unused", "norm", "average", "manual", "manual_steps"}) plan["model"].erase(key);
  // Stages compute the batch of one loader.
  if (has_stages)
    for (const char* key : {"second", "mode"}) plan["data"].erase(key);
  if (has_parts) {
    plan["model"]["hidden"] = (value_at<int64_t>(plan, "/model/hidden", 4) + 1) / 2 * 2;
    const bool tied = value_at(plan, "/model/tied", false);
    // Layers that share a weight divide it alike, and stages exchange whole values.
    options["tensor_plan"] =
        tied         ? Plan{{"middle", "gathered_column"}, {"again", "gathered_column"}}
        : has_stages ? Plan{{"first", "gathered_column"}, {"last", "gathered_column"}}
                     : one_of(random, {Plan{{"first", "column"}, {"middle", "row"}},
                                       Plan{{"first", "column"}, {"middle", "row"}, {"last", "gathered_column"}},
                                       Plan{{"middle", "gathered_column"}}});
  }
  if (has_stages) {
    const int64_t micro_batches = 1 + static_cast<int64_t>(random.below(3));
    options["micro_batches"] = micro_batches;
    options["schedule"] = one_of(random, {"1f1b", "gpipe", "zero_bubble"});
    plan["data"]["batch_size"] = value_at<int64_t>(plan, "/data/batch_size", 2) * micro_batches;
  }
  if ((has_stages || has_parts) && random.below(2) == 0) options["evaluation"] = "units";
  if (random.below(2) == 0) options["state_dict_type"] = "sharded";
  if ((along(plan, "shard") > 1 || options.contains("evaluation")) && random.below(2) == 0)
    options["units"] = Plan::array({"first", "last"});
  // It needs whole gradients.
  without_callback(plan, "GradientMonitor");
  const int64_t shares = along(plan, "data") * along(plan, "shard"),
                ranks = shares * along(plan, "tensor") * along(plan, "pipeline");
  return {.plan = std::move(plan), .shares = shares, .ranks = ranks};
}

Verdict meshes_equal_one(const Plan& given, const fs::path& folder) {
  SplitMix64 random = random_of(given, 23);
  MeshPlan mesh = on_mesh(given, random);
  // Masks of ranks differ, and Lion steps by signs.
  mesh.plan["model"].erase("dropout");
  if (value_at<std::string>(mesh.plan, "/optimizer/class_path", "") == "Lion")
    mesh.plan["optimizer"] = Plan{{"class_path", "SGD"}, {"init_args", {{"lr", 0.05}, {"momentum", 0.9}}}};
  return shares_equal_one(mesh.plan, mesh.shares, mesh.ranks, folder);
}

}  // namespace fulgur::test
