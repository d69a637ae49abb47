#include "plan.h"

#include <algorithm>
#include <initializer_list>

#include "fulgur/core/state/split_mix.h"
#include "fulgur/trainer/yaml.h"

namespace fulgur::test {

namespace {

/// Draws the parts of a plan.
class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed * 2654435761ULL + 12345) {}

  Plan make() {
    plan_ = Plan::object();
    plan_["seed_everything"] = number(1, 1000);
    trainer();
    model();
    data();
    optimizer();
    callbacks();
    events();
    // Last: the plans of seeds stay as they were.
    if (one_in(4)) plan_["model"]["average"] = true;
    if (plan_["model"].contains("nan_every") && one_in(3)) plan_["model"]["nan_is_constant"] = true;
    monitors();
    places();
    times();
    if (!plan_["data"].contains("kind") && one_in(4)) plan_["data"]["batches"] = true;
    if (one_in(4)) plan_["model"]["sums"] = true;
    if (plan_["trainer"].contains("reload_dataloaders_every_n_epochs")) plan_["data"]["by_epoch"] = true;
    short_streams();
    for (Plan& each : plan_["callbacks"])
      if (each["class_path"] == "ModelCheckpoint" && one_in(20))
        each["init_args"]["filename"] = one_of({"last", "best"});
    callbacks_of_weights_and_steps();
    sharding();
    return plan_;
  }

 private:
  int64_t number(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.next() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t times) { return number(1, times) == 1; }
  Plan one_of(std::initializer_list<Plan> choices) {
    return *(choices.begin() + number(0, static_cast<int64_t>(choices.size()) - 1));
  }

  void trainer() {
    Plan& t = plan_["trainer"];
    t["max_epochs"] = number(1, 4);
    if (one_in(4)) t["max_steps"] = number(1, 14);
    if (one_in(8)) t["min_epochs"] = number(1, t["max_epochs"].get<int64_t>());
    if (one_in(8)) t["min_steps"] = number(1, t.value("max_steps", int64_t{8}));
    if (one_in(2)) t["accumulate_grad_batches"] = number(2, 4);
    if (one_in(3)) {
      t["gradient_clip_val"] = one_of({0.01, 0.1, 1.0});
      if (one_in(3)) t["gradient_clip_algorithm"] = "value";
    }
    t["precision"] = one_of({"64-true", "64-true", "32-true", "32-true", "bf16-mixed", "bf16-true"});
    if (one_in(4)) t["limit_train_batches"] = one_of({2, 3, 5, 7, 9, 0.5, 0.7});
    if (one_in(4)) t["limit_val_batches"] = one_of({1, 2, 0.5});
    if (one_in(2)) t["val_check_interval"] = one_of({1, 2, 3, 0.3, 0.5, "2st", "5sa", "23sa", "7tok", "41tok", "1ep"});
    if (one_in(4)) t["check_val_every_n_epoch"] = one_of({2, nullptr});
    if (t.contains("val_check_interval") && t["val_check_interval"].is_string()) t["check_val_every_n_epoch"] = nullptr;
    t["num_sanity_val_steps"] = number(0, 2);
    if (one_in(6)) t["validate_first"] = true;
    t["log_every_n_steps"] = number(1, 4);
    if (one_in(5)) t["log_grad_norm"] = true;
    if (one_in(2)) t["async_checkpoint"] = false;
    if (one_in(6)) t["reload_dataloaders_every_n_epochs"] = number(1, 2);
    if (one_in(5)) {
      t["on_nonfinite"] = one_of({"skip", "rollback"});
      if (one_in(2)) t["check_every"] = number(1, 3);
    }
  }

  void model() {
    Plan& m = plan_["model"];
    m["hidden"] = number(2, 5);
    m["norm"] = one_in(3);
    m["tied"] = one_in(4);
    m["unused"] = one_in(4);
    if (one_in(3)) m["dropout"] = 0.3;
    if (one_in(8)) {
      m["manual"] = true;
      m["manual_steps"] = number(1, 3);
      for (const char* key :
           {"accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "log_grad_norm"})
        plan_["trainer"].erase(key);
    }
    if (one_in(6)) m["no_loss_every"] = number(2, 5);
    if (plan_["trainer"].contains("on_nonfinite")) m["nan_every"] = number(4, 9);
    if (one_in(8)) m["skip_epoch"] = Plan::array({number(0, 2), number(0, 3)});
  }

  void data() {
    Plan& d = plan_["data"];
    // Batch norm needs at least two samples, also in the last batch.
    const bool norm = plan_["model"]["norm"].get<bool>();
    d["batch_size"] = number(norm ? 2 : 1, 4);
    const int64_t batch = d["batch_size"].get<int64_t>();
    d["num_train"] = norm ? batch * number(2, 7) : number(3, 26);
    d["order"] = one_of({"sequential", "shuffled", "shuffled", "weighted"});
    if (one_in(4)) d["kind"] = "stream";
    if (one_in(5)) {
      d["second"] = norm ? batch * number(1, 4) : number(1, 14);
      d["mode"] = one_of({"max_size_cycle", "min_size", "max_size", "sequential"});
    }
    if (!norm && one_in(4)) {
      d["drop_last"] = true;
      // A loader without a whole batch is an error.
      d["num_train"] = std::max(d["num_train"].get<int64_t>(), batch);
      if (d.contains("second")) d["second"] = std::max(d["second"].get<int64_t>(), batch);
    }
    if (one_in(3)) d["num_workers"] = number(1, 3);
    d["num_val"] = number(0, 9);
    d["eval_batch_size"] = number(1, 4);
    if (one_in(4)) d["val_loaders"] = 2;
    Plan& t = plan_["trainer"];
    if (t.contains("limit_val_batches") && d["num_val"] <= d["eval_batch_size"]) t["limit_val_batches"] = 1;
    if (d["num_val"] == 0) {
      for (const char* key : {"validate_first", "limit_val_batches", "val_check_interval", "check_val_every_n_epoch"})
        t.erase(key);
    }
    fit_intervals();
  }

  // Intervals and limits that no loader of that length takes are errors.
  void fit_intervals() {
    Plan &t = plan_["trainer"], &d = plan_["data"];
    const bool sized = !d.contains("kind") || d.value("mode", "") == "never";
    if (!sized)
      for (const char* key : {"limit_train_batches", "val_check_interval"})
        if (t.contains(key) && t[key].is_number_float()) t[key] = 2;
    const auto least = [&](const char* limit, int64_t samples, int64_t batch) {
      if (t.contains(limit) && t[limit].is_number_float() &&
          static_cast<double>((samples + batch - 1) / batch - 1) * t[limit].get<double>() < 1)
        t[limit] = 1;
    };
    int64_t fewest = d["num_train"].get<int64_t>();
    if (d.contains("second")) fewest = std::min(fewest, d["second"].get<int64_t>());
    least("limit_train_batches", fewest, d["batch_size"].get<int64_t>());
    if (d["num_val"] != 0) least("limit_val_batches", d["num_val"].get<int64_t>(), d["eval_batch_size"].get<int64_t>());
    if (t.contains("val_check_interval") && t["val_check_interval"].is_number_integer()) {
      const int64_t batches = std::max<int64_t>(1, d["num_train"].get<int64_t>() / d["batch_size"].get<int64_t>());
      int64_t most = batches;
      if (d.contains("second"))
        most = std::min(most, std::max<int64_t>(1, d["second"].get<int64_t>() / d["batch_size"].get<int64_t>()));
      if (t.contains("limit_train_batches") && t["limit_train_batches"].is_number()) {
        const Plan& limit = t["limit_train_batches"];
        most = std::max<int64_t>(1, limit.is_number_integer()
                                        ? std::min(most, limit.get<int64_t>())
                                        : static_cast<int64_t>(static_cast<double>(most) * limit.get<double>()));
      }
      t["val_check_interval"] = std::min(t["val_check_interval"].get<int64_t>(), most);
    }
  }

  // With several ranks, by fsdp instead of ddp.
  void sharding() {
    const std::string name = plan_["optimizer"]["class_path"];
    if (name == "LBFGS" || name == "Muon" || !one_in(3)) return;
    if (plan_["trainer"].value("precision", "") == "bf16-true") plan_["master_weights"] = one_in(2);
    // GradientMonitor needs whole gradients.
    const bool monitors = std::ranges::any_of(plan_["callbacks"],
                                              [](const Plan& each) { return each["class_path"] == "GradientMonitor"; });
    plan_["sharding"] = monitors ? Plan("optimizer") : one_of({"optimizer", "gradients", "parameters"});
    plan_["sharded_checkpoints"] = one_in(2);
  }

  void optimizer() {
    const bool manual = plan_["model"].contains("manual"),
               accumulates = plan_["trainer"].contains("accumulate_grad_batches");
    plan_["optimizer"] = one_of({
        Plan{{"class_path", "SGD"}, {"init_args", {{"lr", 0.1}}}},
        Plan{{"class_path", "SGD"}, {"init_args", {{"lr", 0.05}, {"momentum", 0.9}, {"nesterov", true}}}},
        Plan{{"class_path", "SGD"},
             {"init_args", {{"lr", 0.05}, {"momentum", 0.8}, {"dampening", 0.1}, {"weight_decay", 0.01}}}},
        Plan{{"class_path", "Adam"}, {"init_args", {{"lr", 0.02}, {"eps", 1e-6}}}},
        Plan{{"class_path", "AdamW"}, {"init_args", {{"lr", 0.02}, {"eps", 1e-6}}}},
        Plan{{"class_path", "Adagrad"}, {"init_args", {{"lr", 0.05}, {"eps", 1e-6}}}},
        Plan{{"class_path", "RMSprop"}, {"init_args", {{"lr", 0.01}, {"eps", 1e-6}, {"momentum", 0.5}}}},
        Plan{{"class_path", "Lion"}, {"init_args", {{"lr", 0.01}}}},
        Plan{{"class_path", "Muon"}, {"init_args", {{"lr", 0.02}}}},
        Plan{{"class_path", "LBFGS"}, {"init_args", {{"lr", 0.5}, {"max_iter", 3}}}},
    });
    const bool closes = plan_["optimizer"]["class_path"] == "LBFGS";
    Plan& t = plan_["trainer"];
    if (closes && (manual || accumulates || t.contains("on_nonfinite") || plan_["model"].contains("no_loss_every") ||
                   t["precision"] == "bf16-true"))
      plan_["optimizer"] = Plan{{"class_path", "SGD"}, {"init_args", {{"lr", 0.1}}}};
    if (one_in(2)) return;
    plan_["lr_scheduler"] = one_of({
        Plan{{"class_path", "StepLR"}, {"init_args", {{"step_size", one_of({1, 2, "6sa", "3st"})}, {"gamma", 0.5}}}},
        Plan{{"class_path", "ExponentialLR"}, {"init_args", {{"gamma", 0.8}}}},
        Plan{{"class_path", "LinearLR"}, {"init_args", {{"total_iters", 4}}}},
        Plan{{"class_path", "CosineAnnealingLR"}, {"init_args", {{"t_max", 7}}}},
        Plan{{"class_path", "ReduceLROnPlateau"}, {"init_args", {{"patience", 0}, {"factor", 0.5}}}},
    });
    // Steps and samples are converted by the length of an epoch.
    Plan& of_schedule = plan_["lr_scheduler"]["init_args"];
    const bool sized = !plan_["data"].contains("kind") && !plan_["data"].contains("second");
    if (!sized && of_schedule.contains("step_size") && of_schedule["step_size"].is_string())
      of_schedule["step_size"] = 2;
    if (plan_["lr_scheduler"]["class_path"] == "ReduceLROnPlateau") {
      plan_["lr_scheduler_monitor"] = "train_loss";
      plan_["lr_scheduler_strict"] = false;
    } else {
      plan_["lr_scheduler_interval"] = one_of({"step", "epoch"});
      if (one_in(3)) plan_["lr_scheduler_frequency"] = 2;
    }
    if (manual) {
      plan_.erase("lr_scheduler");
      for (const char* key :
           {"lr_scheduler_monitor", "lr_scheduler_strict", "lr_scheduler_interval", "lr_scheduler_frequency"})
        plan_.erase(key);
    }
  }

  void callbacks() {
    Plan list = Plan::array();
    const bool validates = plan_["data"]["num_val"] != 0;
    const std::string val_loss = plan_["data"].contains("val_loaders") ? "val_loss/dataloader_idx_0" : "val_loss";
    const bool keeps = !plan_["trainer"].contains("on_nonfinite") || plan_["trainer"]["on_nonfinite"] != "rollback";
    if (one_in(2) || !keeps) {
      Plan options = Plan::object();
      switch (number(0, 4)) {
        case 0:
          options["every_n_train_steps"] = number(1, 4);
          break;
        case 1:
          options["every"] = one_of({"2st", "7sa", "29sa", "1ep", "11tok", "47tok"});
          break;
        case 2:
          options["every_n_epochs"] = number(1, 2);
          break;
        case 3:
          options["save_on_train_epoch_end"] = true;
          break;
        default:
          break;
      }
      if (one_in(2)) options["monitor"] = validates ? val_loss : "train_loss_epoch";
      options["save_top_k"] = options.contains("monitor") ? one_of({-1, 1, 2}) : one_of({-1, 1});
      list.push_back(Plan{{"class_path", "ModelCheckpoint"}, {"init_args", options}});
    }
    if (one_in(4)) {
      Plan options = Plan::object();
      options["every_n_train_steps"] = number(1, 3);
      options["filename"] = "second-{step}";
      options["save_top_k"] = one_of({-1, 1, 0});
      list.push_back(Plan{{"class_path", "ModelCheckpoint"}, {"init_args", options}});
    }
    if (one_in(4)) {
      Plan options = Plan::object();
      options["monitor"] = validates ? val_loss : "train_loss_epoch";
      options["patience"] = number(0, 2);
      options["check_finite"] = false;
      options["strict"] = false;
      list.push_back(Plan{{"class_path", "EarlyStopping"}, {"init_args", options}});
    }
    if (one_in(6) && !plan_["trainer"].contains("accumulate_grad_batches") && !plan_["model"].contains("manual") &&
        plan_["optimizer"]["class_path"] != "LBFGS")
      list.push_back(Plan{{"class_path", "GradientAccumulationScheduler"},
                          {"init_args",
                           {{"scheduling", one_of({Plan{{"0", 1}, {"1", 3}}, Plan{{"0", 2}}, Plan{{"3st", 2}},
                                                   Plan{{"0sa", 2}, {"9sa", 3}}})}}}});
    if (one_in(4)) list.push_back(Plan{{"class_path", "LearningRateMonitor"}});
    plan_["callbacks"] = list;
  }

  void callbacks_of_weights_and_steps() {
    Plan& list = plan_["callbacks"];
    const auto add = [&](const char* name, Plan options) {
      list.push_back(Plan{{"class_path", name}, {"init_args", std::move(options)}});
    };
    const bool automatic = !plan_["model"].contains("manual") && plan_["optimizer"]["class_path"] != "LBFGS";
    const bool accumulates =
        plan_["trainer"].contains("accumulate_grad_batches") || std::ranges::any_of(list, [](const Plan& each) {
          return each["class_path"] == "GradientAccumulationScheduler";
        });
    if (one_in(5)) {
      Plan options{{"decay", one_of({0.5, 0.9})}};
      if (one_in(2)) options["start"] = one_of({"3st", "1ep", "9sa"});
      if (one_in(3)) options["every"] = one_of({"2st", "1ep"});
      add("WeightAveraging", options);
    }
    if (one_in(6))
      add("GradientMonitor", {{"every", one_of({"1st", "3st"})}, {"norms", one_of({"total", "parameter"})}});
    if (automatic && one_in(6))
      add("SpikeDetection", {{"action", one_of({"warn", "skip"})}, {"window", number(2, 4)}, {"rtol", 0.05}});
    if (automatic && !accumulates && !plan_["data"].contains("batches") && !plan_["data"].contains("second") &&
        one_in(6))
      add("BatchSizeScheduler",
          {{"every", one_of({"1ep", "2st"})}, {"max", 8}, {"by", one_of({"batch", "accumulation"})}});
    if (automatic && one_in(8))
      add("Finetuning", {{"freeze", Plan::array({"first.*"})},
                         {"unfreeze", Plan::array({Plan{{"pattern", "first.*"}, {"at", one_of({"2st", "1ep"})}}})}});
  }

  // Metrics of steps alone, and a name that both stages log.
  void monitors() {
    Plan& m = plan_["model"];
    std::vector<std::string> names;
    if (one_in(4)) m["step_only"] = true, names.emplace_back("step_loss");
    if (one_in(4)) m["same_names"] = true, names.emplace_back("loss");
    if (names.empty() || m.contains("no_loss_every") || m.contains("nan_every")) return;
    const std::string name = names[static_cast<size_t>(number(0, static_cast<int64_t>(names.size()) - 1))];
    for (Plan& each : plan_["callbacks"])
      if (each.contains("init_args") && each["init_args"].contains("monitor") && one_in(2))
        each["init_args"]["monitor"] = name;
    if (plan_.contains("lr_scheduler_monitor") && one_in(2)) plan_["lr_scheduler_monitor"] = name;
  }

  // Where checkpoints and rows go, and what checkpoints are called.
  void places() {
    const bool has_loss = !plan_["model"].contains("no_loss_every") && !plan_["model"].contains("nan_every");
    for (Plan& each : plan_["callbacks"]) {
      if (each["class_path"] != "ModelCheckpoint") continue;
      if (one_in(4)) each["init_args"]["dirpath"] = "elsewhere";
      if (one_in(4) && !each["init_args"].contains("filename"))
        each["init_args"]["filename"] = has_loss ? one_of({"fixed", "{epoch}-{train_loss_step:.3f}"}) : Plan("fixed");
      if (one_in(6)) each["init_args"]["save_on_exception"] = true;
    }
    if (one_in(5))
      plan_["trainer"]["logger"] =
          Plan::array({Plan{{"class_path", "CsvLogger"}, {"init_args", {{"version", number(0, 3)}}}},
                       Plan{{"class_path", "JsonlLogger"}}});
  }

  // Limits and intervals of time, on a clock that goes by batches.
  void times() {
    if (!one_in(5)) return;
    plan_["events"]["clock"] = true;
    if (one_in(3)) plan_["trainer"]["max_time"] = std::to_string(number(3, 25)) + "s";
    if (one_in(2) && plan_["data"]["num_val"] != 0) {
      plan_["trainer"]["val_check_interval"] = std::to_string(number(2, 9)) + "s";
      plan_["trainer"]["check_val_every_n_epoch"] = nullptr;
    }
    for (Plan& each : plan_["callbacks"]) {
      if (each["class_path"] != "ModelCheckpoint" || !one_in(2)) continue;
      for (const char* key : {"every_n_train_steps", "every", "every_n_epochs"}) each["init_args"].erase(key);
      each["init_args"][one_in(2) ? "train_time_interval" : "every"] = std::to_string(number(2, 7)) + "s";
    }
  }

  // A limit above the length of a stream, and an interval between validations that follows from it.
  void short_streams() {
    if (!plan_["data"].contains("kind") || plan_["data"]["num_val"] == 0 || !one_in(3)) return;
    Plan& t = plan_["trainer"];
    t.erase("check_val_every_n_epoch");
    t["limit_train_batches"] = number(30, 60);
    t["val_check_interval"] = one_of({0.5, 0.9, 25});
  }

  void events() {
    Plan& e = plan_["events"] = Plan::object();
    if (one_in(3)) e["save_at"] = Plan::array({number(1, 20), number(1, 20)});
    if (one_in(6)) e["stop_at"] = Plan::array({number(1, 12)});
  }

  SplitMix64 random_;
  Plan plan_;
};

// All plans with one leaf or list entry below `node` left out; `node` is in `plan` at `pointer`.
void leave_out(const Plan& plan, const Plan& node, const Plan::json_pointer& pointer, std::vector<Plan>& out) {
  const auto visit = [&](const auto& key, const Plan& value) {
    const Plan::json_pointer at = pointer / key;
    Plan without = plan;
    if constexpr (std::is_same_v<std::decay_t<decltype(key)>, size_t>)
      without.at(pointer).erase(key);
    else
      without.at(pointer).erase(key);
    // These have no default.
    const bool needed = at == Plan::json_pointer("/model") || at == Plan::json_pointer("/data") ||
                        at == Plan::json_pointer("/trainer") || at == Plan::json_pointer("/optimizer") ||
                        at == Plan::json_pointer("/events") || at == Plan::json_pointer("/callbacks") ||
                        at == Plan::json_pointer("/seed_everything") ||
                        at == Plan::json_pointer("/trainer/max_epochs") || at.back() == "class_path";
    if (!needed) out.push_back(std::move(without));
    if (value.is_structured()) leave_out(plan, value, at, out);
    if (value.is_number_integer() && value.get<int64_t>() > 1)
      for (const int64_t smaller : {value.get<int64_t>() / 2, value.get<int64_t>() - 1}) {
        Plan less = plan;
        less.at(at) = smaller;
        out.push_back(std::move(less));
      }
  };
  if (node.is_array())
    for (size_t i = 0; i < node.size(); ++i) visit(i, node[i]);
  else if (node.is_object())
    for (const auto& [key, value] : node.items()) visit(key, value);
}

}  // namespace

Plan make_plan(uint64_t seed) { return Maker(seed).make(); }

bool names_a_link(const Plan& plan) {
  const Plan callbacks = plan.value("callbacks", Plan::array());
  return std::any_of(callbacks.begin(), callbacks.end(), [](const Plan& each) {
    const Plan options = each.value("init_args", Plan::object());
    const std::string name = options.value("filename", "");
    return !options.contains("dirpath") && (name == "last" || name == "best");
  });
}

std::vector<Plan> simpler(const Plan& plan) {
  std::vector<Plan> all;
  leave_out(plan, plan, Plan::json_pointer(), all);
  // Whole sections first: fewer tries.
  std::ranges::stable_sort(all, {}, [](const Plan& each) { return each.dump().size(); });
  return all;
}

Plan config_of(const Plan& plan, const std::filesystem::path& folder, int64_t ranks) {
  Plan config = plan;
  const Plan events = plan.value("events", Plan::object()), callbacks = plan.value("callbacks", Plan::array());
  config.erase("events");
  config.erase("callbacks");
  config.erase("sharding");
  config.erase("mesh");
  config.erase("sharded_checkpoints");
  config.erase("master_weights");
  Plan& t = config["trainer"];
  if (plan.value("master_weights", false) && t.value("precision", "") == "bf16-true")
    t["precision"] = {{"class_path", "bf16-true"}, {"init_args", {{"master_weights", true}}}};
  t["accelerator"] = "cpu";
  t["default_root_dir"] = folder.string();
  t["enable_progress_bar"] = false;
  t["enable_model_summary"] = false;
  if (ranks > 1) {
    t["devices"] = ranks;
    t["strategy"] = {{"class_path", "ddp"},
                     {"init_args", {{"timeout_s", 20}, {"start_timeout_s", 30}, {"check_replicas_every", 1}}}};
    if (plan.contains("sharding")) {
      t["strategy"]["class_path"] = "fsdp";
      t["strategy"]["init_args"]["sharding"] = plan["sharding"];
      if (plan.value("sharded_checkpoints", false)) t["strategy"]["init_args"]["state_dict_type"] = "sharded";
    }
    if (plan.contains("mesh")) {
      Plan& strategy = t["strategy"];
      strategy["class_path"] = "mesh";
      for (const char* of_fsdp : {"sharding", "state_dict_type"}) strategy["init_args"].erase(of_fsdp);
      strategy["init_args"].update(plan["mesh"]);
    }
    if (value_at(plan, "/model/norm", false)) t["sync_batchnorm"] = true;
    if (value_at(plan, "/model/unused", false)) t["strategy"]["init_args"]["find_unused_parameters"] = true;
  }
  Plan noting = events;
  noting["folder"] = folder.string();
  t["callbacks"] = Plan::array({Plan{{"class_path", "DifferentialStepEvents"}, {"init_args", noting}}});
  for (Plan each : callbacks) {
    if (each.contains("init_args") && each["init_args"].contains("dirpath"))
      each["init_args"]["dirpath"] = (folder / each["init_args"]["dirpath"].get<std::string>()).string();
    t["callbacks"].push_back(each);
  }
  config["model"] = {{"class_path", "DifferentialNet"}, {"init_args", plan.value("model", Plan::object())}};
  config["data"] = {{"class_path", "DifferentialData"}, {"init_args", plan.value("data", Plan::object())}};
  return config;
}

std::string to_yaml(const Plan& config) {
  Problems problems;
  return fulgur::to_yaml(parse_yaml(config.dump(), "plan", problems));
}

}  // namespace fulgur::test
