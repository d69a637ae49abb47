// Plans that failed once, made as simple as they can be. A change of the generator does not lose them.
#include <catch2/catch_test_macros.hpp>

#include "plan.h"
#include "relations.h"
#include "support/temporary_folder.h"

namespace once_failed_test {

using namespace fulgur::test;

namespace {

void check(Verdict (*relation)(const Plan&, const std::filesystem::path&), const char* plan) {
  const TemporaryFolder folder;
  const Verdict verdict = relation(Plan::parse(plan), folder.path());
  INFO(verdict.text);
  CHECK(verdict.kind == Verdict::Kind::holds);
}

}  // namespace

TEST_CASE("once failed: a window that a stream's end closes right after a resume weighs its logs as it would have") {
  check(killed_equals_quiet, R"({"seed_everything": 26,
    "trainer": {"max_epochs": 3, "accumulate_grad_batches": 2, "log_grad_norm": true},
    "model": {}, "data": {"num_train": 2, "kind": "stream"}, "optimizer": {"class_path": "SGD"},
    "callbacks": [{"class_path": "ModelCheckpoint", "init_args": {"every_n_train_steps": 1}}], "events": {}})");
  check(killed_ranks_equal_quiet, R"({"seed_everything": 981,
    "trainer": {"max_epochs": 2, "accumulate_grad_batches": 4, "log_grad_norm": true},
    "model": {"hidden": 2}, "data": {"kind": "stream", "num_val": 6}, "optimizer": {"class_path": "Lion"},
    "callbacks": [], "events": {"save_at": [8, 2]}})");
}

TEST_CASE(
    "once failed: a rank without samples follows an evaluation between two backward calls of manual optimization") {
  check(ranks_equal_one, R"({"seed_everything": 335, "sharding": "parameters",
    "trainer": {"max_epochs": 2, "max_steps": 14, "num_sanity_val_steps": 2, "validate_first": true},
    "model": {"hidden": 3, "manual": true, "manual_steps": 2, "step_only": true},
    "data": {"batch_size": 3, "num_train": 5, "num_val": 2, "eval_batch_size": 4}, "optimizer": {"class_path": "SGD"},
    "callbacks": [], "events": {}})");
}

TEST_CASE("once failed: a validation sees averaged weights between two backward calls of manual optimization") {
  check(ranks_equal_one, R"({"seed_everything": 701, "sharding": "parameters",
    "trainer": {"max_epochs": 2, "num_sanity_val_steps": 0},
    "model": {"hidden": 2, "manual": true, "manual_steps": 2},
    "data": {"batch_size": 3, "num_train": 18, "num_val": 4, "eval_batch_size": 3},
    "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.05}},
    "callbacks": [{"class_path": "WeightAveraging", "init_args": {"decay": 0.9}}], "events": {}})");
}

TEST_CASE("once failed: the stages of a pipeline agree on whether a save waits for a validation") {
  check(killed_meshes_equal_quiet, R"({"seed_everything": 81,
    "trainer": {"max_epochs": 3}, "model": {"same_names": true},
    "data": {"batch_size": 3, "num_train": 6, "num_val": 9, "val_loaders": 2}, "optimizer": {"class_path": "SGD"},
    "callbacks": [{"class_path": "ModelCheckpoint", "init_args": {"every_n_train_steps": 2, "monitor": "loss"}}],
    "events": {}})");
}

TEST_CASE("once failed: a window that the data end after a validation is a step of the stages of a mesh") {
  check(meshes_equal_one, R"({"seed_everything": 179,
    "trainer": {"max_epochs": 2, "accumulate_grad_batches": 3, "val_check_interval": 1, "check_val_every_n_epoch": null},
    "model": {"hidden": 4}, "data": {"batch_size": 2, "num_train": 16, "kind": "stream", "num_val": 4,
    "eval_batch_size": 1}, "optimizer": {"class_path": "SGD"}, "callbacks": [], "events": {}})");
}

TEST_CASE("once failed: parameters that learn from the step on that would be recorded") {
  check(captured_ranks_equal_eager, R"({"seed_everything": 156, "trainer": {"max_epochs": 4}, "model": {},
    "data": {"batch_size": 1, "num_train": 6}, "optimizer": {"class_path": "Muon"},
    "callbacks": [{"class_path": "Finetuning", "init_args": {"freeze": ["first.*"],
      "unfreeze": [{"pattern": "first.*", "at": "1ep"}]}}], "events": {}})");
}

TEST_CASE("once failed: tokens of ranks are counted when a run stops inside an epoch") {
  check(ranks_equal_one, R"({"seed_everything": 1,
    "trainer": {"max_epochs": 2, "accumulate_grad_batches": 2, "val_check_interval": 0.5},
    "model": {}, "data": {}, "optimizer": {"class_path": "Adam"},
    "callbacks": [{"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss", "patience": 1}}],
    "events": {}})");
}

TEST_CASE("once failed: a window of manual optimization keeps over a resume what a skipped step puts back") {
  check(killed_ranks_equal_quiet, R"({"seed_everything": 889,
    "trainer": {"max_epochs": 2, "on_nonfinite": "skip"},
    "model": {"norm": true, "manual": true, "manual_steps": 3, "nan_every": 1}, "data": {"num_train": 13},
    "optimizer": {"class_path": "Adam"}, "callbacks": [], "events": {}})");
}

TEST_CASE("once failed: the norm of gradients does not depend on the devices that layers are placed on") {
  check(devices_equal_one, R"({"seed_everything": 549, "trainer": {"max_epochs": 1, "log_grad_norm": true},
    "model": {"norm": true}, "data": {"second": 2}, "optimizer": {"class_path": "Muon"}, "callbacks": [],
    "events": {}})");
}

TEST_CASE("once failed: a fraction of the validation's batches is one of all ranks' length") {
  check(ranks_equal_one, R"({"seed_everything": 1, "trainer": {"max_epochs": 1, "limit_val_batches": 0.5},
    "model": {}, "data": {"num_val": 5, "eval_batch_size": 1}, "optimizer": {"class_path": "SGD"}, "callbacks": [],
    "events": {}})");
}

TEST_CASE("once failed: a stop that min_epochs holds up is still requested after a resume") {
  check(killed_equals_quiet, R"({"seed_everything": 179, "trainer": {"max_epochs": 4, "min_epochs": 3},
    "model": {"hidden": 4, "unused": true, "dropout": 0.3, "manual": true, "manual_steps": 3},
    "data": {"batch_size": 1, "num_train": 24, "order": "weighted", "num_val": 2, "eval_batch_size": 4},
    "optimizer": {"class_path": "SGD",
      "init_args": {"lr": 0.05, "momentum": 0.8, "dampening": 0.1, "weight_decay": 0.01}},
    "callbacks": [{"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss", "patience": 1}}],
    "events": {}})");
}

}  // namespace once_failed_test
