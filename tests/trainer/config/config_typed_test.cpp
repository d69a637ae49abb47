#include "trainer/config/config_components.h"

#include <chrono>

#include "fulgur/core/text/text.h"
#include "support/expect_error.h"
#include "support/full_speed.h"

namespace config_typed_test {

using namespace fulgur;
using test::load;
using test::load_error;
using test::value_at;

namespace {
bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
}  // namespace

TEST_CASE("nothing given: all defaults, and no model") {
  const Config config = load("");
  CHECK_FALSE(config.model);
  CHECK_FALSE(config.seed_everything.enabled);
  CHECK(config.trainer.strategy.class_path() == "single_device");
  CHECK(config.trainer.num_sanity_val_steps == 2);
}

TEST_CASE("the written config reads back as itself, through YAML") {
  const Config config = load(
      "seed_everything: 42\n"
      "trainer: {max_epochs: 3, limit_train_batches: 1.0, limit_val_batches: 2, fast_dev_run: 2, num_threads: 2, "
      "gradient_clip_val: 0.1,\n"
      "          logger: [ConfigLogger], callbacks: [{class_path: ConfigCallback, init_args: {monitor: 'true', "
      "patience: 0}}]}\n"
      "model: {class_path: ConfigModel, init_args: {classes: 3, rate: 0.30000000000000004, name: '007', widths: [1]}}\n"
      "data: ConfigData\n"
      "ckpt_path: 'C:\\dir: x'\n"
      "link: {model.init_args.classes: data.classes}\n"
      "silence: [a.b, '1']\n");
  const ConfigNode written = config.write();
  for (const bool comments : {false, true}) {
    const std::string yaml = to_yaml(written, {.comments = comments, .skip_null = comments});
    INFO(yaml);
    const Config again = load(yaml);
    CHECK(again.write().same_as(written));
  }
  CHECK(config_from_node(written).write().same_as(written));
  CHECK(value_at(config, "trainer.limit_train_batches") == "1.0");
  CHECK(value_at(config, "trainer.limit_val_batches") == "2");
  CHECK(value_at(config, "model.init_args.name") == "\"007\"");
}

TEST_CASE("the default config reads back as itself") {
  const ConfigNode written = load("").write();
  CHECK(load(to_yaml(written)).write().same_as(written));
}

TEST_CASE("the library of matrix products is one of three words") {
  CHECK(load("").trainer.cpu_matmul == CpuMatmul::automatic);
  CHECK(load("trainer: {cpu_matmul: onednn}").trainer.cpu_matmul == CpuMatmul::onednn);
  CHECK(load("trainer: {cpu_matmul: mkl}").trainer.cpu_matmul == CpuMatmul::mkl);
  CHECK(value_at(load(""), "trainer.cpu_matmul") == "auto");
  const std::string message = load_error("trainer: {cpu_matmul: blas}");
  INFO(message);
  CHECK(says(message, "trainer.cpu_matmul"));
  CHECK(says(message, "onednn"));
  CHECK(says(message, "blas"));
}

TEST_CASE("seeds and development runs are a switch or a number") {
  CHECK(load("seed_everything: 7").seed_everything.seed == 7);
  CHECK(load("seed_everything: true").seed_everything.enabled);
  CHECK_FALSE(load("seed_everything: true").seed_everything.seed);
  CHECK_FALSE(load("seed_everything: false").seed_everything.enabled);
  CHECK(value_at(load("seed_everything: true"), "seed_everything") == "true");
  CHECK(says(load_error("seed_everything: -1"), "at least 0"));
  CHECK(says(load_error("seed_everything: yes"), "expected bool or int"));
  CHECK(load("trainer: {fast_dev_run: true}").trainer.fast_dev_run.batches == 1);
  CHECK(load("trainer: {fast_dev_run: 4}").trainer.fast_dev_run.batches == 4);
  CHECK(load("trainer: {fast_dev_run: false}").trainer.fast_dev_run.batches == 0);
  CHECK(says(load_error("trainer: {fast_dev_run: -1}"), "at least 0"));
  CHECK(says(load_error("trainer: {fast_dev_run: on}"), "expected bool or int"));
}

TEST_CASE("F40 all problems are in one report, with place, path and nearest name") {
  const std::string message = load_error(
      "optimzer: {class_path: AdamW}\n"
      "trainer:\n"
      "  max_epochs: three\n"
      "  accumulate_grad_batches: 0\n"
      "  limit_train_batches: 1.5\n"
      "  callbacks: [{class_path: ConfigCallbak}]\n"
      "  precision: 8\n"
      "model:\n"
      "  class_path: ConfigModel\n"
      "  init_args:\n"
      "    rate: -1\n");
  CHECK(says(message, "8 problems"));
  CHECK(says(message, "c.yaml:1:1: optimzer: unknown key; did you mean 'optimizer'?"));
  CHECK(says(message, "c.yaml:3:15: trainer.max_epochs: expected int; got 'three'"));
  CHECK(says(message, "c.yaml:4:28: trainer.accumulate_grad_batches: must be at least 1; got 0"));
  CHECK(says(message, "c.yaml:5:24: trainer.limit_train_batches: must be at least 0 and at most 1; got 1.5"));
  CHECK(says(
      message,
      "c.yaml:6:28: trainer.callbacks.0.class_path: unknown callback 'ConfigCallbak'; did you mean 'ConfigCallback'?"));
  CHECK(says(message, "trainer.precision.class_path: unknown precision '8'"));
  CHECK(says(message, "c.yaml:11:11: model.init_args.rate: must be greater than 0; got -1"));
}

TEST_CASE("timeouts that are longer than clocks can add are refused") {
  for (const char* strategy : {"ddp", "fsdp", "mesh"})
    for (const char* option : {"timeout_s", "start_timeout_s"}) {
      const std::string place = fulgur::cat("trainer.strategy.init_args.", option);
      const std::string message =
          load_error(fulgur::cat("model: {class_path: ConfigModel}\ntrainer:\n  strategy: {class_path: ", strategy,
                                 ", init_args: {", option, ": 1.0e+10}}\n"));
      CHECK(says(message, fulgur::cat(place, ": must be at least 0.001 and at most 1")));
    }
}

TEST_CASE("F40 a missing required option is reported at the class") {
  CHECK(says(load_error("model:\n  class_path: ConfigModel\n"),
             "c.yaml:2:15: model.init_args.classes: required option is missing: Classes to tell apart."));
}

TEST_CASE("F40 the old and other names of Lightning's options say what to write today") {
  CHECK(
      says(load_error("trainer: {gpus: 1}"), "trainer.gpus: unknown key; write `accelerator: cuda` and `devices: N`"));
  CHECK(says(load_error("trainer: {distributed_backend: ddp}"), "write `strategy: NAME`"));
  CHECK(says(load_error("trainer: {amp_level: O2}"), "write `precision: NAME`"));
  CHECK(says(load_error("trainer: {resume_from_checkpoint: x}"), "ckpt_path"));
  CHECK(says(load_error("lr_scheduler: {class_path: ReduceLROnPlateau, init_args: {monitor: val_loss}}"),
             "write `lr_scheduler_monitor` at the top"));
  for (const char* strategy : {"ddp", "fsdp", "mesh", "model_parallel", "hybrid"})
    CHECK(says(load_error(cat("trainer: {strategy: {class_path: ", strategy, ", init_args: {sync_batchnorm: true}}}")),
               "sync_batchnorm: unknown key; it is an option of the Trainer: trainer.sync_batchnorm"));
  CHECK(says(load_error("trainer: {keep_freed_memory: false}"),
             "trainer.keep_freed_memory: unknown key; it is an option of allocator: write `allocator: "
             "{keep_freed_memory: …}`"));
  for (const char* key : {"num_processes", "auto_select_gpus", "amp_backend", "checkpoint_callback", "weights_summary",
                          "progress_bar_refresh_rate", "terminate_on_nan", "auto_lr_find", "auto_scale_batch_size"}) {
    INFO(key);
    CHECK(says(load_error(cat("trainer: {", key, ": 1}")), "unknown key; "));
  }
}

TEST_CASE("F40 a component that is written in another form: the message shows the right one") {
  const auto error = [](const std::string& callbacks) { return load_error(cat("trainer:\n  callbacks:", callbacks)); };
  // The class as a key.
  const std::string as_key = error("\n    - ConfigCallback: {monitor: a, patience: 2}\n");
  CHECK(says(as_key, "c.yaml:3:7: trainer.callbacks.0.ConfigCallback: unknown key; "));
  CHECK(says(as_key, "write {class_path: ConfigCallback, init_args: {monitor: a, patience: 2}}"));
  CHECK(says(error(" [ConfigCallback: {monitor: [a]}]"), "write {class_path: ConfigCallback, init_args: {…}}"));
  CHECK(says(error("\n    - ConfigCallback:\n"), "write {class_path: ConfigCallback}"));
  CHECK(says(load_error("model: {ConfigModel: {classes: 3}}"),
             "model.ConfigModel: unknown key; the class is the value of class_path: write {class_path: ConfigModel, "
             "init_args: {classes: 3}}"));
  // Here a class is chosen already, and the name is that of a registered class.
  CHECK(says(load_error("trainer: {strategy: {single_device: {}}}"), "write {class_path: single_device}"));
  // A map in place of a list.
  CHECK(says(error(" {class_path: ConfigCallback, init_args: {monitor: a}}"),
             "write a list: [{class_path: ConfigCallback, init_args: {monitor: a}}]"));
  CHECK(says(error("\n    ConfigCallback: {monitor: a}\n    Other: {init_args: {b: 1}}\n"),
             "write a list: [{class_path: ConfigCallback, init_args: {monitor: a}}, {class_path: Other, init_args: "
             "{b: 1}}]"));
  // A list in place of a map.
  CHECK(says(load_error("trainer: [max_epochs: 1]"), "expected map; got a list of 1; write its keys without '- '"));
  CHECK(says(load_error("model: {class_path: ConfigModel, init_args: [classes: 3]}"), "write its keys without '- '"));
}

TEST_CASE("F40 an option of a strategy or a precision under trainer is pointed to its place") {
  CHECK(says(
      load_error("trainer: {stages_per_rank: 4}"),
      "trainer.stages_per_rank: unknown key; it is an option of strategy: mesh. Write `strategy: {class_path: mesh, "
      "init_args: {stages_per_rank: …}}`"));
  CHECK(says(load_error("trainer: {pipeline: 2}"), "init_args: {mesh: {pipeline: …}}}`"));
  CHECK(says(load_error("trainer: {sharding: full}"), "an option of strategy: fsdp"));
  CHECK(says(load_error("trainer: {strategy: {class_path: mesh, init_args: {tensor: 2}}}"),
             "tensor: unknown key; write `mesh: {tensor: N}`"));
  CHECK(says(load_error("trainer: {bucket_cap_mb: 1}"), "an option of strategy: ddp or fsdp. Write"));
  CHECK(says(load_error("trainer: {master_weights: true}"),
             "Write `precision: {class_path: …, init_args: {master_weights: …}}`"));
}

TEST_CASE("F40 a missing space after a colon is named, wherever it is") {
  const std::string hint = "write 'max_epochs: 3', with a space after the colon";
  CHECK(says(load_error("trainer:\n  max_epochs:3\n"),
             cat("c.yaml:2:3: trainer: expected map; got 'max_epochs:3'; ", hint)));
  CHECK(says(load_error("trainer:\n  max_epochs:3\n  devices:1\n"), hint));
  CHECK(says(load_error("trainer: {max_epochs:3}"), cat("trainer.max_epochs:3: unknown key; ", hint)));
  CHECK(says(load_error("model:ConfigModel\n"), "write 'model: ConfigModel', with a space"));
  CHECK(says(load_error("trainer: {callbacks: [class_path:ConfigCallback]}"), "write 'class_path: ConfigCallback'"));
  CHECK(says(load_error("trainer: {callbacks: [{class_path:ConfigCallback}]}"), "write 'class_path: ConfigCallback'"));
  CHECK(says(load_error("model: {class_path: ConfigModel, init_args: {classes:3}}"), "write 'classes: 3'"));
  CHECK(says(load_error("model: {class_path: ConfigModel, init_args: classes:3}"), "write 'classes: 3'"));
  for (const char* text : {"https://host", "a::b", "12:30", "C:\\x", "'max_epochs:3'", "max_epochs:"}) {
    INFO(text);
    CHECK_FALSE(says(load_error(cat("model: ", text)), "with a space after the colon"));
  }
}

TEST_CASE("F45 a class of another kind and hostile names are looked up only") {
  CHECK(says(load_error("model: ConfigCallback"), "unknown model 'ConfigCallback'; there is a callback of that name"));
  CHECK(says(load_error("model: ';rm -rf'"), "unknown model ';rm -rf'"));
  CHECK(says(load_error("model: '%n %s {}'"), "unknown model '%n %s {}'"));
  CHECK(says(load_error("model: [ConfigModel]"), "expected the name of a model"));
  CHECK(says(load_error("model: {class_path: [x]}"), "expected the name of a model"));
  CHECK(says(load_error("trainer: {strategy: null}"), "trainer.strategy: expected strategy; got null"));
  CHECK(says(load_error("trainer: {callbacks: [null]}"), "trainer.callbacks.0"));
}

TEST_CASE("F40 a config is a map") {
  CHECK(says(load_error("[a, b]"), "a config is a map"));
  CHECK(says(load_error("text"), "a config is a map"));
  CHECK(says(load_error("trainer: 5"), "trainer: expected map; got '5'"));
}

TEST_CASE("F41 10,000 unknown keys are reported in less than a second") {
  std::string yaml = "trainer:\n";
  for (int i = 0; i < 10'000; ++i) yaml += cat("  some_key_", i, ": 1\n");
  const auto start = std::chrono::steady_clock::now();
  const std::string message = load_error(yaml);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK((!test::kRunsAtFullSpeed || took.count() < 1));
  CHECK(says(message, "10000 problems"));
  CHECK(message.size() < 50'000);
}

TEST_CASE("paths and texts with odd characters survive") {
  const Config config = load("", {{"trainer.default_root_dir", "runs/a b/ö #1"}});
  CHECK(config.trainer.default_root_dir == "runs/a b/ö #1");
  CHECK(load(to_yaml(config.write())).trainer.default_root_dir == "runs/a b/ö #1");
}

}  // namespace config_typed_test
