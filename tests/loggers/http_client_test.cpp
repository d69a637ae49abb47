#include "mlflow/http_client.h"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "fulgur/core/text/errors.h"
#include "loggers/http_stand_in.h"
#include "support/expect_error.h"
#include "support/temporary_folder.h"

namespace http_client_test {

using namespace fulgur;
using namespace fulgur::test;
using Clock = std::chrono::steady_clock;

TEST_CASE("requests have their method, target and content, and answers their status and content") {
  const TemporaryFolder folder;
  const HttpStandIn server([](const HttpRequest& request) {
    return HttpReply{.status = request.method == "GET" ? 200 : 404, .body = request.method};
  });
  HttpClient client({.token = "", .user = "me", .password = "secret"});
  CHECK(client.get(server.uri() + "/a?b=c").body == "GET");
  CHECK(client.post_json(server.uri() + "/p", "{}").status == 404);
  CHECK(client.put_bytes(server.uri() + "/b", std::string(100000, 'x')).body == "PUT");
  write_text(folder / "f", "content");
  CHECK(client.put_file(server.uri() + "/f", folder / "f").body == "PUT");
  const auto requests = server.requests();
  REQUIRE(requests.size() == 4);
  CHECK(requests[0].target == "/a?b=c");
  CHECK(requests[0].authorization == "Basic bWU6c2VjcmV0");
  CHECK(requests[1].body == "{}");
  CHECK(requests[2].body == std::string(100000, 'x'));
  CHECK(requests[3].body == "content");
}

TEST_CASE("a server that answers after more than ten seconds is not asked again") {
  const auto late = [](const HttpRequest&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(11500));
    return HttpReply();
  };
  const HttpStandIn json(late), upload(late);
  auto upload_status = std::async(
      std::launch::async, [&] { return HttpClient(HttpClient::Identity()).put_bytes(upload.uri(), "content").status; });
  CHECK(HttpClient(HttpClient::Identity()).post_json(json.uri(), "{}").status == 200);
  CHECK(upload_status.get() == 200);
}

TEST_CASE("a request that the run does not wait for any longer ends") {
  std::promise<void> answers;
  const std::shared_future<void> answered = answers.get_future().share();
  std::atomic<bool> over = false;
  const HttpStandIn server([&](const HttpRequest&) {
    over = true;
    answered.wait_for(std::chrono::seconds(60));
    return HttpReply();
  });
  HttpClient client(HttpClient::Identity(), [&] { return over.load(); });
  const auto began = Clock::now();
  CHECK_FALSE(message_of<Error>([&] { client.get(server.uri()); }).empty());
  CHECK(Clock::now() - began < std::chrono::seconds(8));
  answers.set_value();
}

}  // namespace http_client_test
