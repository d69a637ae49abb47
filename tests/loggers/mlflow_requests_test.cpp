// What MLflowLogger asks a server for, and what it does with unusual answers. A stand-in answers for MLflow.
#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "fulgur/loggers/mlflow_logger.h"
#include "loggers/http_stand_in.h"
#include "loggers/warnings.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace mlflow_requests_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;

namespace {

/// Runs, metrics and artifacts of one server. Tests say which requests it does not accept.
class Tracking {
 public:
  std::function<HttpReply(const HttpRequest&)> first = [](const HttpRequest&) { return HttpReply{.status = 0}; };
  std::set<std::string> runs;
  std::vector<std::string> metrics, artifacts;  ///< names
  HttpStandIn server{[this](const HttpRequest& request) { return answer(request); }};

  MLflowLogger::Options options() const {
    MLflowLogger::Options options;
    options.tracking_uri = server.uri();
    return options;
  }

 private:
  static HttpReply refusal(int status, const char* code) {
    return {.status = status, .body = Json{{"error_code", code}, {"message", "no"}}.dump()};
  }
  static HttpReply run(const std::string& id) {
    const Json info{{"run_id", id}, {"experiment_id", "1"}, {"artifact_uri", "mlflow-artifacts:/1/" + id}};
    return {.body = Json{{"run", {{"info", info}}}}.dump()};
  }
  HttpReply answer(const HttpRequest& request) {
    if (HttpReply reply = first(request); reply.status != 0) return reply;
    const auto asks_for = [&](const char* what) { return request.target.find(what) != std::string::npos; };
    if (asks_for("experiments/get-by-name")) return {.body = R"({"experiment": {"experiment_id": "1"}})"};
    if (asks_for("runs/create")) {
      const std::string id = "new" + std::to_string(runs.size() + 1);
      runs.insert(id);
      return run(id);
    }
    if (asks_for("runs/get")) {
      const std::string id = request.target.substr(request.target.find('=') + 1);
      return runs.count(id) > 0 ? run(id) : refusal(404, "RESOURCE_DOES_NOT_EXIST");
    }
    if (asks_for("runs/log-batch")) {
      const Json batch = Json::parse(request.body);
      for (const Json& metric : batch["metrics"])
        if (metric["key"].get<std::string>().starts_with("bad")) return refusal(400, "INVALID_PARAMETER_VALUE");
      for (const Json& metric : batch["metrics"]) metrics.push_back(metric["key"].get<std::string>());
    }
    if (request.method == "PUT") artifacts.push_back(request.target.substr(request.target.find("/1/new1/") + 8));
    return {};
  }
};

}  // namespace

TEST_CASE("one value that the server does not accept costs no other value of its batch") {
  Tracking tracking;
  const CollectedWarnings warnings;
  MLflowLogger logger(tracking.options());
  logger.start("logs/version_0", std::nullopt);
  Metrics row;
  std::vector<std::string> good;
  for (int i = 0; i < 900; ++i) {
    const bool is_bad = i == 0 || i == 444 || i == 445 || i == 899;
    row.emplace_back((is_bad ? "bad" : "m") + std::to_string(i), i);
    if (!is_bad) good.push_back(row.back().first);
  }
  logger.log_metrics(row, 1);
  logger.flush();
  CHECK(tracking.metrics == good);
  CHECK(tracking.server.requests().size() < 150);
  CHECK(warnings.lines().size() == 1);
}

TEST_CASE("a server that accepts no value is not asked for each of them") {
  Tracking tracking;
  const CollectedWarnings warnings;
  MLflowLogger logger(tracking.options());
  logger.start("logs/version_0", std::nullopt);
  Metrics row;
  for (int i = 0; i < 900; ++i) row.emplace_back("bad" + std::to_string(i), i);
  logger.log_metrics(row, 1);
  logger.flush();
  CHECK(tracking.metrics.empty());
  CHECK(tracking.server.requests().size() < 50);
}

TEST_CASE("an upload on which the server always fails is given up only while the server answers other requests") {
  Tracking tracking;
  const CollectedWarnings warnings;
  std::atomic<bool> is_down = false;
  tracking.first = [&](const HttpRequest& request) {
    const bool fails = is_down || request.target.find("broken") != std::string::npos;
    return HttpReply{.status = fails ? 507 : 0, .body = ""};
  };
  MLflowLogger logger(tracking.options());
  logger.start("logs/version_0", std::nullopt);
  is_down = true;
  const TextRecord broken{"broken", "text"}, other{"other", "text"};
  for (int i = 0; i < 8; ++i)
    CHECK_THAT(message_of<Error>([&] { logger.log_media(broken, 1); }), ContainsSubstring("507"));
  is_down = false;
  for (int i = 0; i < 4; ++i)
    CHECK_THAT(message_of<Error>([&] { logger.log_media(broken, 1); }), ContainsSubstring("507"));
  logger.log_media(broken, 1);
  CHECK(warnings.lines().size() == 1);
  logger.log_media(other, 1);
  CHECK(tracking.artifacts == std::vector<std::string>{"media/other/step%3D1.txt"});
  // The next one has all its tries.
  CHECK_FALSE(message_of<Error>([&] { logger.log_media(broken, 2); }).empty());
}

TEST_CASE("the manifest of a checkpoint is sent last, and only with all other files") {
  const std::string trouble = GENERATE("none", "gone", "refused");
  CAPTURE(trouble);
  const TemporaryFolder folder;
  Tracking tracking;
  const CollectedWarnings warnings;
  for (const char* name : {"a.bin", "manifest.json", "state.json", "z.bin"}) write_text(folder / name, name);
  tracking.first = [&](const HttpRequest& request) {
    if (trouble == "gone" && request.target.ends_with("a.bin")) std::filesystem::remove(folder / "state.json");
    return HttpReply{.status = trouble == "refused" && request.target.ends_with("state.json") ? 413 : 0};
  };
  MLflowLogger::Options options = tracking.options();
  options.log_model = MLflowModels::best;
  MLflowLogger logger(options);
  logger.start("logs/version_0", std::nullopt);
  CheckpointInfo info;
  info.path = folder.path();
  info.request.best = true;
  logger.after_save_checkpoint(info);
  std::vector<std::string> sent{"checkpoints/best/a.bin", "checkpoints/best/z.bin"};
  if (trouble == "none") {
    sent.insert(sent.begin() + 1, "checkpoints/best/state.json");
    sent.emplace_back("checkpoints/best/manifest.json");
  }
  CHECK(tracking.artifacts == sent);
  REQUIRE(warnings.lines().size() == (trouble == "none" ? 0U : 1U));
  if (trouble != "none")
    CHECK_THAT(warnings.lines()[0], ContainsSubstring(trouble == "gone" ? "logger.artifact_gone" : "logger.refused"));
}

TEST_CASE("after a failure, a folder is tried again without the files that are stored") {
  Tracking tracking;
  const CollectedWarnings warnings;
  const TemporaryFolder folder;
  for (const char* name : {"a.bin", "b.bin", "manifest.json", "z.bin"}) write_text(folder / name, name);
  std::map<std::string, int> tries;
  // Of each file every second try fails, which would be more than five failures in total.
  tracking.first = [&](const HttpRequest& request) {
    const bool fails = request.method == "PUT" && tries[request.target]++ % 2 == 0;
    return HttpReply{.status = fails ? 507 : 0, .body = ""};
  };
  MLflowLogger::Options options = tracking.options();
  options.log_model = MLflowModels::best;
  MLflowLogger logger(options);
  logger.start("logs/version_0", std::nullopt);
  CheckpointInfo info;
  info.path = folder.path();
  info.request.best = true;
  int failures = 0;
  for (bool sent = false; !sent && failures < 10;) {
    try {
      logger.after_save_checkpoint(info);
      sent = true;
    } catch (const Error&) {
      ++failures;
    }
  }
  CHECK(failures == 4);
  CHECK(tracking.artifacts == std::vector<std::string>{"checkpoints/best/a.bin", "checkpoints/best/b.bin",
                                                       "checkpoints/best/z.bin", "checkpoints/best/manifest.json"});
  CHECK(warnings.lines().empty());
  // The next checkpoint of this name is sent as a whole.
  tracking.first = [](const HttpRequest&) { return HttpReply{.status = 0}; };
  tracking.artifacts.clear();
  logger.after_save_checkpoint(info);
  CHECK(tracking.artifacts.size() == 4);
}

TEST_CASE("metrics whose names become equal stay different") {
  Tracking tracking;
  const CollectedWarnings warnings;
  MLflowLogger logger(tracking.options());
  logger.start("logs/version_0", std::nullopt);
  const std::string tall(260, 'x');
  for (int64_t step = 1; step <= 2; ++step)
    logger.log_metrics({{"a,b", 1}, {"a_b", 2}, {"a;b", 3}, {tall + "1", 4}, {tall + "2", 5}}, step);
  logger.flush();
  REQUIRE(tracking.metrics.size() == 10);
  CHECK(std::equal(tracking.metrics.begin(), tracking.metrics.begin() + 5, tracking.metrics.begin() + 5));
  CHECK(tracking.metrics[0] == "a_b");
  CHECK(std::set<std::string>(tracking.metrics.begin(), tracking.metrics.end()).size() == 5);
  for (const std::string& name : tracking.metrics) CHECK(name.size() <= 250);
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.mlflow_name") && ContainsSubstring("'a,b' and 'a_b'"));
}

TEST_CASE("a run_id that does not exist hides neither the logger's own run nor that of a checkpoint") {
  Tracking tracking;
  const CollectedWarnings warnings;
  MLflowLogger::Options options = tracking.options();
  options.run_id = "missing";
  MLflowLogger logger(options);
  const auto run_of = [](MLflowLogger& of) { return of.state().at("run_id").as_string(); };
  logger.start("logs/version_0", std::nullopt);
  CHECK(run_of(logger) == "new1");
  REQUIRE(warnings.lines().size() == 1);
  CHECK_THAT(warnings.lines()[0], ContainsSubstring("logger.mlflow_new_run"));
  logger.start("logs/version_0", std::nullopt);  // the next stage
  CHECK(run_of(logger) == "new1");
  MLflowLogger resumed(options);
  resumed.load_state(logger.state());
  resumed.start("logs/version_0", 3);
  CHECK(run_of(resumed) == "new1");
  CHECK(tracking.runs.size() == 1);
  tracking.runs.insert("missing");
  MLflowLogger fresh(options);
  fresh.start("logs/version_1", std::nullopt);
  CHECK(run_of(fresh) == "missing");
}

TEST_CASE("artifacts of the same name from different folders are all sent") {
  const TemporaryFolder folder;
  Tracking tracking;
  MLflowLogger logger(tracking.options());
  logger.start("logs/version_0", std::nullopt);
  for (const char* made : {"x", "y"}) {
    std::filesystem::create_directory(folder / made);
    write_text(folder / made / std::string("plot.txt"), made);
    logger.log_artifact(folder / made / std::string("plot.txt"));
  }
  CHECK(tracking.artifacts == std::vector<std::string>{"plot.txt", "plot-v1.txt"});
}

}  // namespace mlflow_requests_test
