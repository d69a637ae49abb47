// Threads that the system refuses.
#include "fulgur/core/system/start_thread.h"

#include <sys/resource.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "support/expect_error.h"

namespace start_thread_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a thread that the system refuses is an error that says which, and what to do") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  SKIP("a sanitizer needs memory for each thread");
#endif
  // Threads need memory for their stacks. They stay until the end, since stacks of ended threads are used again.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  std::mutex mutex;
  std::condition_variable ended;
  bool ends = false;
  std::vector<std::thread> threads;
  threads.reserve(1000);
  const rlimit none{.rlim_cur = 1, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_AS, &none) == 0);
  std::string message;
  try {
    while (threads.size() < 1000)
      threads.push_back(start_thread("test.component", "Do this.", [&] {
        std::unique_lock lock(mutex);
        ended.wait(lock, [&] { return ends; });
      }));
  } catch (const Error& error) {
    message = error.what();
  } catch (const std::bad_alloc&) {
    message = "no memory";
  }
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  {
    const std::lock_guard lock(mutex);
    ends = true;
  }
  ended.notify_all();
  for (std::thread& thread : threads) thread.join();
  CHECK_THAT(message, ContainsSubstring("[test.component] the system must provide a thread; it provided none (") &&
                          ContainsSubstring("). Do this. ") && ContainsSubstring("ulimit -u"));
}

}  // namespace start_thread_test
