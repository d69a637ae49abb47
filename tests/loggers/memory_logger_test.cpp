#include "fulgur/loggers/memory_logger.h"

#include <catch2/catch_test_macros.hpp>

namespace memory_logger_test {

using namespace fulgur;

TEST_CASE("a memory logger keeps what is logged and cuts a resumed past") {
  MemoryLogger logger;
  logger.start("run", std::nullopt);
  logger.log_metrics({{"a", 1}, {"b", 2}}, 1);
  logger.log_metrics({{"a", 3}}, 2);
  logger.log_media(TextRecord{"note", "text"}, 2);
  using Values = std::vector<std::pair<int64_t, double>>;
  CHECK(logger.values("a") == Values{{1, 1}, {2, 3}});
  CHECK_FALSE(logger.status.has_value());
  logger.finalize(RunStatus::interrupted);
  CHECK(logger.status == RunStatus::interrupted);
  logger.start("run", 1);
  CHECK(logger.values("a") == Values{{1, 1}});
  CHECK(logger.media.empty());
  CHECK(logger.log_dir == "run");
}

}  // namespace memory_logger_test
