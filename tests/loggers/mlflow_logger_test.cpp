#include "fulgur/loggers/mlflow_logger.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <string>

#include "loggers/http_stand_in.h"
#include "mlflow/mlflow_client.h"
#include "support/expect_error.h"

namespace mlflow_logger_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("names become ones that MLflow accepts") {
  using mlflow::accepted_name;
  CHECK(accepted_name("val/loss_1 a-b.c:d") == "val/loss_1 a-b.c:d");
  CHECK(accepted_name("a,b\n\"ü") == "a_b____");
  CHECK(accepted_name("") == "_");
  CHECK(accepted_name("/a//b/") == "_/a/_/b/_");
  CHECK(accepted_name("../a/./b") == "__/a/_/b");
  CHECK(accepted_name(std::string(300, 'x')).size() == 250);
  CHECK(accepted_name(std::string(249, 'x') + "/y") == std::string(249, 'x') + "_");
}

TEST_CASE("parts of an address are escaped") {
  CHECK(HttpClient::escaped_path("media/a b%/step=1.png") == "media/a%20b%25/step%3D1.png");
  CHECK(HttpClient::escaped("a/b&ü") == "a%2Fb%26%C3%BC");
}

TEST_CASE("MLflowLogger needs the address of a server, from its option or the environment") {
  ::unsetenv("MLFLOW_TRACKING_URI");
  MLflowLogger::Options options;
  CHECK_THAT(message_of<ConfigError>([&] { MLflowLogger{options}; }),
             ContainsSubstring("it is missing") && ContainsSubstring("MLFLOW_TRACKING_URI"));
  options.tracking_uri = "sqlite:///mlflow.db";
  CHECK_THAT(message_of<ConfigError>([&] { MLflowLogger{options}; }), ContainsSubstring("'sqlite:///mlflow.db'"));
  ::setenv("MLFLOW_TRACKING_URI", "https://mlflow.example", 1);
  options.tracking_uri.reset();
  MLflowLogger logger(options);
  CHECK(logger.may_block());
  CHECK(logger.state().is_null());
  logger.finalize(RunStatus::failed);  // without a start
  ::unsetenv("MLFLOW_TRACKING_URI");
}

TEST_CASE("a user and a password are split from an address") {
  const auto split = [](const std::string& uri) {
    const HttpClient::Address address = HttpClient::address(uri);
    return std::vector<std::string>{address.uri, address.user, address.password};
  };
  using Parts = std::vector<std::string>;
  CHECK((split("http://host:5/a@b") == Parts{"http://host:5/a@b", "", ""}));
  CHECK((split("https://me:s%40e:c@r@host/x") == Parts{"https://host/x", "me", "s@e:c@r"}));
  CHECK((split("http://me@host?q=@") == Parts{"http://host?q=@", "me", ""}));
  CHECK((split("") == Parts{"", "", ""}));
}

TEST_CASE("a password in the address reaches the server, and no message") {
  const HttpStandIn server([](const HttpRequest&) { return HttpReply{.status = 500, .body = ""}; });
  MLflowLogger::Options options;
  options.tracking_uri = server.uri("me:secret@");
  const std::string refused = message_of<ConfigError>([&] { MLflowLogger{options}; });
  CHECK_THAT(refused, ContainsSubstring("MLFLOW_TRACKING_PASSWORD") && !ContainsSubstring("secret"));
  options.tracking_uri.reset();
  ::setenv("MLFLOW_TRACKING_URI", server.uri("me:secret@").c_str(), 1);
  MLflowLogger logger(options);
  const std::string failed = message_of<Error>([&] { logger.start("logs/version_0", std::nullopt); });
  CHECK_THAT(failed,
             ContainsSubstring("it answered 500") && ContainsSubstring(server.uri()) && !ContainsSubstring("secret"));
  REQUIRE(server.requests().size() == 1);
  CHECK(server.requests()[0].authorization == "Basic bWU6c2VjcmV0");
  ::setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@host/db", 1);
  CHECK_THAT(message_of<ConfigError>([&] { MLflowLogger{options}; }),
             ContainsSubstring("'postgresql://host/db'") && !ContainsSubstring("secret"));
  ::unsetenv("MLFLOW_TRACKING_URI");
}

TEST_CASE("log_model is false, best or all") {
  for (const auto& [text, value] : {std::pair("false", MLflowModels::none), std::pair("best", MLflowModels::best),
                                    std::pair("all", MLflowModels::all)})
    CHECK(enum_from<MLflowModels>(text) == value);
  CHECK_FALSE(enum_from<MLflowModels>("true"));
}

}  // namespace mlflow_logger_test
