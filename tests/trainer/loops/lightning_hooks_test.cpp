// The hooks of Fulgur against those that Lightning calls (lightning_hooks.json, by record_lightning_hooks.py). If the
// two differ on purpose, a rule below makes Lightning's sequence ours; its name is a row of a table in
// docs/coming_from_lightning.md, which says why. Any other difference fails.
#include "trainer/loops/recorder.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/trainer/yaml.h"
#include "support/source_text.h"

namespace lightning_hooks_test {

using namespace fulgur;
using namespace fulgur::test;
using Json = nlohmann::json;

namespace {

// ---- the runs ----

struct Failure : std::exception {};

std::optional<int64_t> number(const Json& settings, const char* key) {
  return settings.contains(key) ? std::optional(settings.at(key).get<int64_t>()) : std::nullopt;
}

struct CaseModule : RecordingModule {
  Json settings;
  CaseModule(Calls& list, Json of_case) : RecordingModule(list), settings(std::move(of_case)) {
    if (settings.contains("schedule"))
      schedule = settings.at("schedule") == "step" ? ScheduleInterval::step : ScheduleInterval::epoch;
  }
  bool automatic_optimization() const override { return !settings.contains("manual"); }
  int on_train_batch_start(const Batch& batch, int64_t i) override {
    RecordingModule::on_train_batch_start(batch, i);
    return number(settings, "skip_epoch_at") == i ? -1 : 0;
  }
  StepOutput training_step(const Batch& batch, int64_t i) override {
    StepOutput output = RecordingModule::training_step(batch, i);
    if (number(settings, "fail_at") == i) throw Failure();
    if (number(settings, "no_loss_at") == i) return {};
    if (automatic_optimization()) return output;
    manual_backward(output.loss);
    optimizers().step();
    optimizers().zero_grad();
    return output;
  }
  Outputs validation_step(const Batch& batch, int64_t i, int64_t loader) override {
    Outputs outputs = RecordingModule::validation_step(batch, i, loader);
    if (number(settings, "fail_in_validation_at") == i) throw Failure();
    return outputs;
  }
  Outputs test_step(const Batch& batch, int64_t i, int64_t loader) override {
    Outputs outputs = RecordingModule::test_step(batch, i, loader);
    if (number(settings, "fail_in_test_at") == i) throw Failure();
    return outputs;
  }
};

struct Watcher : Recorder {
  Json settings;
  int64_t batches = 0, validations = 0;
  Watcher(Calls& list, Json of_case) : Recorder(list), settings(std::move(of_case)) {}
  void on_train_batch_end(RunContext& run, const StepOutput& output, const Batch& batch, int64_t i) override {
    Recorder::on_train_batch_end(run, output, batch, i);
    if (number(settings, "stop") == batches++) run.request_stop("enough");
  }
  void on_validation_end(RunContext& run) override {
    Recorder::on_validation_end(run);
    if (number(settings, "stop_in_validation") == ++validations) run.request_stop("enough");
  }
  StateTree state() const override {
    calls.push_back("c.state");
    return StateTree::map({{"batches", batches}});
  }
  void load_state(const StateTree& state) override {
    note("load_state");
    batches = state.at("batches").as_int();
  }
};

struct RecordingData : TensorDataModule {
  Calls& calls;
  RecordingData(Calls& list, Sets sets)
      : TensorDataModule(std::move(sets), {.batch_size = 4, .eval_batch_size = {}, .shuffle = false}), calls(list) {}
  void prepare_data() override { calls.emplace_back("d.prepare_data"); }
  void setup(TrainerFn) override { calls.emplace_back("d.setup"); }
  void teardown(TrainerFn) override { calls.emplace_back("d.teardown"); }
  void on_exception(const std::exception&) override { calls.emplace_back("d.on_exception"); }
  Loaders loaders(RunningStage stage) override {
    const char* const name = stage == RunningStage::train      ? "train"
                             : stage == RunningStage::validate ? "val"
                             : stage == RunningStage::test     ? "test"
                                                               : "predict";
    calls.push_back(cat("d.", name, "_dataloader"));
    return TensorDataModule::loaders(stage);
  }
  StateTree state() const override {
    calls.emplace_back("d.state");
    return StateTree::map({{"train", int64_t{1}}});
  }
  void load_state(const StateTree&) override { calls.emplace_back("d.load_state"); }
};

TrainerOptions options_of(const TemporaryFolder& folder, const Json& of_case, const Json& run) {
  TrainerOptions options = quiet(folder);
  options.logger.enabled = false;
  options.enable_checkpointing = !of_case.at("checkpoint").is_null();
  Problems problems;
  const ConfigNode node = parse_yaml(run.at("trainer").dump(), "lightning_hooks.json", problems);
  Fields fields;
  options.fields(fields);
  fields.read(node, problems, "trainer");
  problems.throw_if_any();
  return options;
}

TrainerComponents parts_of(Calls& calls, const Json& of_case) {
  TrainerComponents components;
  components.callbacks = {std::make_shared<Watcher>(calls, of_case.at("callback"))};
  const Json& checkpoint = of_case.at("checkpoint");
  if (checkpoint.is_null()) return components;
  ModelCheckpoint::Options options;
  options.every_n_train_steps = number(checkpoint, "every_n_train_steps");
  options.save_top_k = number(checkpoint, "save_top_k").value_or(1);
  if (checkpoint.contains("monitor")) options.monitor = checkpoint.at("monitor").get<std::string>();
  components.callbacks.push_back(std::make_shared<ModelCheckpoint>(options));
  return components;
}

// What each run of the case calls here.
std::vector<Calls> run_case(const Json& of_case) {
  TemporaryFolder folder;
  std::vector<Calls> of_runs;
  Calls calls;
  std::optional<Trainer> trainer;
  CheckpointChoice checkpoint;
  for (const Json& run : of_case.at("runs")) {
    calls.clear();
    if (!run.value("same_trainer", false)) trainer.emplace(options_of(folder, of_case, run), parts_of(calls, of_case));
    auto module = std::make_shared<CaseModule>(calls, of_case.at("module"));
    TensorDataModule::Sets sets;
    sets.train = regression(4 * of_case.at("train").get<int64_t>(), 1);
    if (const auto count = of_case.at("val").get<int64_t>(); count > 0)
      sets.val = sets.test = sets.predict = regression(4 * count, 2);
    const auto data = std::make_shared<RecordingData>(calls, std::move(sets));
    const CheckpointChoice from = run.value("resumes", false) ? checkpoint : std::nullopt;
    try {
      const std::string verb = run.at("verb");
      if (verb == "validate") trainer->validate(module, data, from);
      if (verb == "test") trainer->test(module, data, from);
      if (verb == "predict") trainer->predict(module, data, from);
      if (verb == "fit") {
        const FitReport report = trainer->fit(module, data, from);
        if (report.last_checkpoint) checkpoint = report.last_checkpoint->string();
      }
    } catch (const Failure&) {
      calls.emplace_back("Failure");
    }
    of_runs.push_back(calls);
  }
  return of_runs;
}

// ---- the differences ----

Calls split(const std::string& text) {
  Calls calls;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(", ", begin), text.size());
    calls.push_back(text.substr(begin, end - begin));
    begin = end + 2;
  }
  return calls;
}

bool is(const Calls& calls, size_t at, const Calls& pattern) {
  return at + pattern.size() <= calls.size() &&
         std::equal(pattern.begin(), pattern.end(), calls.begin() + static_cast<int64_t>(at));
}

// Where `pattern` begins, from `at` on; the end if there is none.
size_t find(const Calls& calls, const Calls& pattern, size_t at = 0) {
  while (at < calls.size() && !is(calls, at, pattern)) ++at;
  return std::min(at, calls.size());
}

bool has(const Calls& calls, const std::string& call) { return find(calls, {call}) < calls.size(); }

void insert(Calls& calls, size_t at, const Calls& more) {
  calls.insert(calls.begin() + static_cast<int64_t>(at), more.begin(), more.end());
}

void erase(Calls& calls, size_t at, size_t count) {
  calls.erase(calls.begin() + static_cast<int64_t>(at), calls.begin() + static_cast<int64_t>(at + count));
}

void erase_all(Calls& calls, const Calls& pattern) {
  for (size_t at = find(calls, pattern); at < calls.size(); at = find(calls, pattern, at))
    erase(calls, at, pattern.size());
}

// `more` after each `call`.
void insert_after(Calls& calls, const std::string& call, const Calls& more) {
  for (size_t at = find(calls, {call}); at < calls.size(); at = find(calls, {call}, at + 1))
    insert(calls, at + 1, more);
}

// The training batches of an epoch.
int64_t batches_of(const Json& of_case, const Json& run) {
  const auto all = of_case.at("train").get<int64_t>();
  if (!run.at("trainer").contains("limit_train_batches")) return all;
  const Json& limit = run.at("trainer").at("limit_train_batches");
  return limit.is_number_integer() ? limit.get<int64_t>()
                                   : static_cast<int64_t>(limit.get<double>() * static_cast<double>(all));
}

const Calls kEpochEnd = both({"on_train_epoch_end"});
const Calls kZeroGrad{"c.on_before_zero_grad", "on_before_zero_grad", "optimizer_zero_grad"};
const Calls kSave{"c.state", "d.state", "c.on_save_checkpoint", "on_save_checkpoint"};

// The first run of the case is the last argument, if this is a later one.
using Rule = void (*)(Calls& calls, const Json& of_case, const Json& run, const Calls& first_run);

struct Difference {
  std::string name;
  Rule apply;
};

// In this order: a rule sees what those before it have made.
const std::vector<Difference> kDifferences{
    {"gradients",
     [](Calls& calls, const Json&, const Json&, const Calls&) {
       erase_all(calls, kZeroGrad);
       // After the step, which is at the end of all that follows the clipping.
       insert_after(calls, "configure_gradient_clipping", kZeroGrad);
     }},
    {"`optimizer_step`",
     [](Calls& calls, const Json&, const Json&, const Calls&) {
       erase_all(calls, {"optimizer_step"});
       insert_after(calls, "configure_gradient_clipping", {"optimizer_step"});
     }},
    {"schedules",
     [](Calls& calls, const Json& of_case, const Json&, const Calls&) {
       if (!has(calls, "lr_scheduler_step")) return;
       erase_all(calls, {"lr_scheduler_step"});
       insert_after(calls, of_case.at("module").at("schedule") == "step" ? "optimizer_step" : "on_train_epoch_end",
                    {"lr_scheduler_step"});
     }},
    {"a step without a loss",
     [](Calls& calls, const Json& of_case, const Json& run, const Calls&) {
       const auto batch = number(of_case.at("module"), "no_loss_at");
       if (!batch || run.at("trainer").contains("accumulate_grad_batches")) return;
       const size_t begin = find(calls, {cat("training_step ", *batch)}) + 1;
       erase(calls, begin, find(calls, {cat("c.on_train_batch_end ", *batch)}, begin) - begin);
     }},
    {"loaders",
     [](Calls& calls, const Json&, const Json& run, const Calls&) {
       std::erase_if(calls, [](const std::string& call) { return call.ends_with("_dataloader"); });
       const std::string verb = run.at("verb");
       Calls loaders{cat("d.", verb == "fit" ? "train" : verb == "validate" ? "val" : verb, "_dataloader")};
       if (verb == "fit" && run.at("trainer").value("limit_val_batches", 1.0) > 0)
         loaders.emplace_back("d.val_dataloader");
       insert_after(calls, "configure_model", loaders);
     }},
    {"the data module's state",
     [](Calls& calls, const Json&, const Json&, const Calls&) {
       if (!has(calls, "d.load_state")) return;
       erase_all(calls, {"d.load_state"});
       insert(calls, find(calls, {"d.setup"}), {"d.load_state"});
     }},
    {"a callback's state",
     [](Calls& calls, const Json&, const Json&, const Calls&) { insert(calls, find(calls, {"setup"}), {"c.state"}); }},
    {"`min_steps`",
     [](Calls& calls, const Json& of_case, const Json& run, const Calls&) {
       const Json& trainer = run.at("trainer");
       if (!trainer.contains("min_steps") || trainer.contains("min_epochs")) return;
       const int64_t last = batches_of(of_case, run) - 1, enough = trainer.at("min_steps").get<int64_t>() - 1;
       if (enough >= last) return;
       const size_t begin = find(calls, {cat("on_train_batch_end ", enough)}) + 1;
       erase(calls, begin, find(calls, {cat("on_train_batch_end ", last)}, begin) + 1 - begin);
     }},
    {"an epoch that is not over",
     [](Calls& calls, const Json& of_case, const Json& run, const Calls&) {
       const size_t end = find(calls, {"c.on_train_end"});
       if (end == calls.size() || of_case.at("module").contains("skip_epoch_at")) return;
       size_t last = end;
       while (last > 0 && !calls[last - 1].starts_with("on_train_batch_end")) --last;
       if (last == 0 || calls[last - 1] == cat("on_train_batch_end ", batches_of(of_case, run) - 1)) return;
       erase(calls, find(calls, kEpochEnd, last), kEpochEnd.size());
     }},
    {"a fit without a step",
     [](Calls& calls, const Json&, const Json& run, const Calls&) {
       if (run.at("verb") == "fit" && has(calls, "on_fit_start") && has(calls, "on_fit_end") &&
           !has(calls, "on_train_start"))
         insert_after(calls, "on_fit_start", both({"on_train_start", "on_train_end"}));
     }},
    {"`on_validation_model_zero_grad`",
     [](Calls& calls, const Json&, const Json&, const Calls&) {
       for (size_t at = find(calls, {"on_validation_model_zero_grad"}); at < calls.size();
            at = find(calls, {"on_validation_model_zero_grad"}, at + 1))
         if (calls[at + 1] != "on_validation_model_eval") erase(calls, at--, 1);
     }},
    {"`on_predict_model_train`",
     [](Calls& calls, const Json&, const Json&, const Calls&) {
       insert_after(calls, "on_predict_end", {"on_predict_model_train"});
     }},
    {"checkpoints",
     [](Calls& calls, const Json& of_case, const Json& run, const Calls&) {
       const std::string last_batch = cat("on_train_batch_end ", batches_of(of_case, run) - 1);
       for (size_t at = find(calls, kSave); at < calls.size(); at = find(calls, kSave, at + 1)) {
         size_t before = at;  // the batch, or the end of an epoch, that this belongs to
         while (!calls[before].starts_with("c.on_train_batch_end") && calls[before] != "c.on_train_epoch_end") --before;
         erase(calls, at, kSave.size());
         size_t behind = before + 1;
         if (calls[before] == "c." + last_batch)
           behind = find(calls, {"on_train_epoch_end"}, at);
         else if (calls[at] == "on_validation_end")
           behind = find(calls, {"on_validation_model_train"}, at);
         insert(calls, behind + 1, kSave);
         at = behind + kSave.size();
       }
     }},
    {"the last checkpoint",
     [](Calls& calls, const Json& of_case, const Json& run, const Calls&) {
       const size_t end = find(calls, {"on_train_end"});
       if (of_case.at("checkpoint").is_null() || run.at("verb") != "fit" || end == calls.size()) return;
       size_t saved = 0;
       for (size_t at = find(calls, kSave); at < calls.size(); at = find(calls, kSave, at + 1)) saved = at;
       if (find(calls, {"optimizer_step"}, saved) < calls.size()) insert(calls, end + 1, kSave);
     }},
    {"an exception in an evaluation",
     [](Calls& calls, const Json&, const Json& run, const Calls&) {
       const size_t failed = find(calls, {"c.on_exception"});
       if (failed == calls.size()) return;
       const std::string verb =
           run.at("verb") == "fit" || run.at("verb") == "validate" ? "validation" : run.at("verb").get<std::string>();
       if (calls[failed - 1].starts_with(verb + "_step")) insert(calls, failed, {cat("on_", verb, "_model_train")});
     }},
    {"teardown",
     [](Calls& calls, const Json&, const Json&, const Calls&) {
       if (calls.back() == "Failure") insert(calls, calls.size() - 1, {"d.teardown", "c.teardown", "teardown"});
     }},
    {"a second fit",
     [](Calls& calls, const Json&, const Json& run, const Calls& first_run) {
       if (run.value("same_trainer", false)) calls = first_run;
     }},
};

Calls ours(Calls calls, const Json& of_case, const Json& run, const Calls& first_run, std::set<std::string>& used) {
  for (const Difference& difference : kDifferences) {
    const Calls before = calls;
    difference.apply(calls, of_case, run, first_run);
    if (calls != before) used.insert(difference.name);
  }
  return calls;
}

std::string around(const Calls& calls, size_t at) {
  std::string text;
  for (size_t i = at > 8 ? at - 8 : 0; i < std::min(calls.size(), at + 8); ++i)
    text += cat(i == at ? " >>" : " ", calls[i]);
  return text;
}

}  // namespace

TEST_CASE("hooks come in Lightning's order, except for the differences that the docs declare") {
  const Json recorded = Json::parse(text_of("tests/trainer/loops/lightning_hooks.json"));
  std::set<std::string> used;
  for (const Json& of_case : recorded.at("cases")) {
    const std::string name = of_case.at("name");
    std::vector<Calls> here = run_case(of_case);
    // A callback's state is also read before what a resume may repeat, and given back if that fails: no hooks.
    for (Calls& calls : here) {
      erase_all(calls, {"c.state"});
      for (size_t at = find(calls, {"c.load_state", "c.on_exception"}); at < calls.size();
           at = find(calls, {"c.load_state", "c.on_exception"}))
        erase(calls, at, 1);
      for (size_t at = find(calls, {"c.on_exception", "c.load_state"}); at < calls.size();
           at = find(calls, {"c.on_exception", "c.load_state"}))
        erase(calls, at + 1, 1);
    }
    Calls first_run;
    for (size_t r = 0; r < here.size(); ++r) {
      const Json& run = of_case.at("runs").at(r);
      Calls expected = ours(split(run.at("calls")), of_case, run, first_run, used);
      if (r == 0) first_run = expected;
      erase_all(expected, {"c.state"});
      const auto place = std::mismatch(here[r].begin(), here[r].end(), expected.begin(), expected.end());
      const auto at = static_cast<size_t>(place.first - here[r].begin());
      INFO(name << ", run " << r << ", call " << at << "\nhere:      " << around(here[r], at)
                << "\nLightning: " << around(expected, at));
      CHECK(here[r] == expected);
    }
  }
  for (const Difference& difference : kDifferences) {
    INFO(difference.name << ": no case shows this difference");
    CHECK(used.contains(difference.name));
  }
}

TEST_CASE("the docs list the differences in the order of hooks, each with a rule here") {
  const std::string docs = text_of("docs/coming_from_lightning.md");
  const std::string head = "\n| where | here | why |\n|---|---|---|\n";
  const size_t begin = docs.find(head);
  REQUIRE(begin != std::string::npos);
  std::istringstream lines(docs.substr(begin + head.size()));
  std::vector<std::string> names, expected;
  for (std::string line; std::getline(lines, line) && line.starts_with("| ");)
    names.push_back(line.substr(2, line.find(" | ", 2) - 2));
  for (const Difference& difference : kDifferences) expected.push_back(difference.name);
  CHECK(names == expected);
}

}  // namespace lightning_hooks_test
