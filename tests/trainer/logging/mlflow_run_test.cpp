// Runs that log to a real MLflow server, one that is down for a while, and one that does not exist.
#include <ATen/ops/full.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "fulgur/callbacks/model_checkpoint.h"
#include "fulgur/core/text/text.h"
#include "fulgur/loggers/mlflow_logger.h"
#include "mlflow/http_client.h"
#include "support/free_port.h"
#include "support/shown_lines.h"
#include "trainer/boring.h"

namespace mlflow_run_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;
using Values = std::vector<std::pair<int64_t, double>>;

namespace {

/// The program `mlflow`: FULGUR_TEST_MLFLOW, or the one beside FULGUR_TEST_PYTHON.
std::string mlflow_program() {
  if (const char* named = std::getenv("FULGUR_TEST_MLFLOW")) return named;
  const char* python = std::getenv("FULGUR_TEST_PYTHON");
  const auto beside = std::filesystem::path(python == nullptr ? "" : python).parent_path() / "mlflow";
  return python != nullptr && std::filesystem::exists(beside) ? beside.string() : "";
}

/// A server with its store in a folder, which survives restarts.
class Server {
 public:
  explicit Server(const TemporaryFolder& folder) : folder_(folder), port_(free_port()) {
    ::setenv("no_proxy", "127.0.0.1", 1);
    start();
  }
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void start() {
    const std::string program = mlflow_program(), store = cat("sqlite:///", folder_ / "store.db");
    const std::string artifacts = folder_ / "artifacts", port = cat(port_), log = folder_ / "server.log";
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      ::setsid();
      ::setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false", 1);  // processes that these tests do not need
      if (std::freopen(log.c_str(), "a", stdout) != nullptr) ::dup2(1, 2);
      ::execl(program.c_str(), program.c_str(), "server", "--backend-store-uri", store.c_str(),
              "--artifacts-destination", artifacts.c_str(), "--host", "127.0.0.1", "--port", port.c_str(), "--workers",
              "1", nullptr);
      ::_exit(127);
    }
    for (int i = 0; i < 600; ++i) {
      try {
        if (http_.get(cat(uri(), "/health")).status == 200) return;
      } catch (const Error&) {
      }
      REQUIRE(::waitpid(child_, nullptr, WNOHANG) == 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    FAIL("the MLflow server does not answer:\n" << read_text(log));
  }
  void stop() {
    if (child_ <= 0) return;
    ::kill(-child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }
  std::string uri() const { return cat("http://127.0.0.1:", port_); }
  Json get(const std::string& function) {
    return Json::parse(http_.get(cat(uri(), "/api/2.0/mlflow/", function)).body);
  }
  Json run(const std::string& id) { return get(cat("runs/get?run_id=", id))["run"]; }
  Values history(const std::string& run, const std::string& metric) {
    Values values;
    const Json answer = get(cat("metrics/get-history?run_id=", run, "&metric_key=", metric));
    for (const Json& value : answer["metrics"])
      values.emplace_back(value["step"].get<int64_t>(), value["value"].get<double>());
    std::sort(values.begin(), values.end());
    return values;
  }
  std::vector<std::string> artifacts(const std::string& run, const std::string& path) {
    std::vector<std::string> names;
    const std::string query = path.empty() ? "" : "&path=" + path;
    const Json answer = get(cat("artifacts/list?run_id=", run, query));
    for (const Json& file : answer["files"]) names.push_back(file["path"].get<std::string>());
    return names;
  }

 private:
  const TemporaryFolder& folder_;
  int port_;
  pid_t child_ = -1;
  HttpClient http_{HttpClient::Identity()};
};

struct Drawing : SelfPlanned {
  void on_train_epoch_end() override {
    log_media(ImageRecord{"val/picture", at::full({1, 2, 2}, 7, at::kByte)});
    log_media(TextRecord{"note", "text"});
  }
};

struct Fitted {
  std::shared_ptr<MLflowLogger> mlflow;
  std::shared_ptr<MemoryLogger> memory = std::make_shared<MemoryLogger>();
  FitReport report;
  std::string lines;
  std::string id() const { return mlflow->state().at("run_id").as_string(); }
};

Fitted fit(const TemporaryFolder& folder, MLflowLogger::Options options, int64_t epochs = 1,
           std::shared_ptr<Callback> callback = nullptr) {
  Fitted fitted;
  fitted.mlflow = std::make_shared<MLflowLogger>(options);
  TrainerOptions trainer = quiet(folder);
  trainer.max_epochs = epochs;
  TrainerComponents components;
  components.seed = 5;
  components.loggers = {fitted.mlflow, fitted.memory};
  if (callback) components.add(std::move(callback));
  fitted.lines = shown_lines([&] {
    fitted.report = Trainer(trainer, components).fit(std::make_shared<Drawing>(), regression_data(), "auto");
  });
  CHECK(fitted.report.exit_code == ExitCode::ok);
  return fitted;
}

}  // namespace

TEST_CASE("a run with an MLflow server that does not exist ends normally, and says what is lost") {
  const TemporaryFolder folder;
  MLflowLogger::Options options;
  options.tracking_uri = cat("http://127.0.0.1:", free_port());
  ::setenv("no_proxy", "127.0.0.1", 1);
  const Fitted fitted = fit(folder, options);
  CHECK(fitted.memory->values("train_loss").size() == 10);
  CHECK_THAT(fitted.lines, ContainsSubstring("logger.unreachable"));
  CHECK_THAT(fitted.lines,
             ContainsSubstring("[loggers.MLflowLogger]") && ContainsSubstring("were not sent and are lost"));
  CHECK(fitted.mlflow->state().is_null());
  REQUIRE(fitted.report.logger_losses.size() == 1);
  CHECK_THAT(fitted.report.logger_losses[0],
             ContainsSubstring("[loggers.MLflowLogger]") && ContainsSubstring("are lost"));
}

TEST_CASE("an MLflow server has what was logged, also by a resumed run and after it was down") {
  if (mlflow_program().empty())
    SKIP("there is no MLflow: FULGUR_TEST_MLFLOW names its program (pip install mlflow, 850 MB)");
  const TemporaryFolder store, folder, other;
  Server server(store);
  MLflowLogger::Options options;
  options.tracking_uri = server.uri() + "/";
  options.experiment_name = "an experiment, named";
  options.tags = {{"team", "ü"}};
  options.log_model = MLflowModels::best;

  const Fitted first = fit(folder, options);
  const std::string id = first.id();
  Json run = server.run(id);
  CHECK(run["info"]["status"] == "FINISHED");
  CHECK(run["info"]["run_name"] == "fulgur_logs/version_0");
  std::map<std::string, std::string> tags;
  for (const Json& tag : run["data"]["tags"]) tags[tag["key"]] = tag["value"];
  CHECK(tags["team"] == "ü");
  CHECK(server.get("experiments/get?experiment_id=" +
                   run["info"]["experiment_id"].get<std::string>())["experiment"]["name"] == "an experiment, named");
  CHECK(server.history(id, "train_loss") == first.memory->values("train_loss"));
  CHECK(server.history(id, "epoch").size() >= 10);
  CHECK(server.artifacts(id, "media/val/picture") == std::vector<std::string>{"media/val/picture/step=10.png"});
  CHECK(server.artifacts(id, "media/note") == std::vector<std::string>{"media/note/step=10.txt"});
  CHECK(server.artifacts(id, "checkpoints/best").size() >= 4);

  const Fitted resumed = fit(folder, options, 2);
  CHECK(resumed.id() == id);
  Values all = first.memory->values("train_loss");
  for (const auto& value : resumed.memory->values("train_loss")) all.push_back(value);
  CHECK(all.size() == 20);
  CHECK(server.history(id, "train_loss") == all);
  CHECK(server.run(id)["info"]["status"] == "FINISHED");

  struct Stopping : Callback {
    Server& server;
    explicit Stopping(Server& of) : server(of) {}
    void on_train_batch_end(RunContext&, const StepOutput&, const Batch&, int64_t i) override {
      if (i == 2) server.stop();
      if (i == 6) std::this_thread::sleep_for(std::chrono::seconds(30));  // tries that fail
      if (i == 7) server.start();
    }
  };
  const Fitted interrupted = fit(other, options, 1, std::make_shared<Stopping>(server));
  CHECK_THAT(interrupted.lines, ContainsSubstring("logger.unreachable"));
  CHECK_THAT(interrupted.lines, !ContainsSubstring("are lost"));
  CHECK(server.history(interrupted.id(), "train_loss") == interrupted.memory->values("train_loss"));
  CHECK(server.run(interrupted.id())["info"]["status"] == "FINISHED");
  CHECK(interrupted.id() != id);
}

TEST_CASE("an MLflow server takes hyper-parameters once, any name, values that are not finite, and many values") {
  if (mlflow_program().empty())
    SKIP("there is no MLflow: FULGUR_TEST_MLFLOW names its program (pip install mlflow, 850 MB)");
  const TemporaryFolder store, folder;
  Server server(store);
  MLflowLogger::Options options;
  options.tracking_uri = server.uri();
  options.run_name = "mine";
  ConfigNode hparams = ConfigNode::map({{"optimizer", ConfigNode::map({{"lr", ConfigNode::number(0.25)}})},
                                        {"long", ConfigNode::string(std::string(7000, 'x'))}});
  for (int i = 0; i < 120; ++i) hparams.set(cat("p", i), ConfigNode::integer(i));
  std::string id;
  {
    MLflowLogger logger(options);
    logger.start(folder / "logs/version_0", std::nullopt);
    logger.log_hyperparams(hparams);
    Metrics many;
    for (int i = 0; i < 2500; ++i) many.emplace_back(cat("m", i), i);
    logger.log_metrics(many, 1);
    logger.log_metrics({{"a,b", 1}, {"../x", 2}, {"", 3}, {"nan", std::nan("")}, {"inf", INFINITY}}, 2);
    write_text(folder / "a b.txt", "text");
    logger.log_artifact(folder / "a b.txt");
    logger.log_artifact(folder / "nowhere");
    logger.flush();
    id = logger.state().at("run_id").as_string();
    logger.finalize(RunStatus::interrupted);
  }
  Json run = server.run(id);
  CHECK(run["info"]["run_name"] == "mine");
  CHECK(run["info"]["status"] == "KILLED");
  std::map<std::string, std::string> params;
  for (const Json& param : run["data"]["params"]) params[param["key"]] = param["value"];
  CHECK(params.size() == 122);
  CHECK(params["optimizer/lr"] == "0.25");
  CHECK(params["long"] == std::string(6000, 'x'));
  CHECK(run["data"]["metrics"].size() == 2505);
  CHECK(server.history(id, "a_b") == Values{{2, 1}});
  CHECK(server.history(id, "__/x") == Values{{2, 2}});
  CHECK(server.artifacts(id, "").size() == 1);

  MLflowLogger again(options);
  again.load_state(StateTree::map({{"run_id", id}, {"experiment_id", "1"}}));
  again.start(folder / "logs/version_0", 2);
  CHECK(server.run(id)["info"]["status"] == "RUNNING");
  const std::string lines = shown_lines([&] {
    hparams.set("p0", ConfigNode::integer(77));
    hparams.set("new", ConfigNode::integer(1));
    again.log_hyperparams(hparams);
  });
  CHECK_THAT(lines, ContainsSubstring("'p0' stays '0' and is now '77'"));
  again.finalize(RunStatus::failed);
  run = server.run(id);
  CHECK(run["info"]["status"] == "FAILED");
  CHECK(run["data"]["params"].size() == 123);
}

}  // namespace mlflow_run_test
