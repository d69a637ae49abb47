// Not part of the tests that ctest runs: it writes 130 MB and measures time.
#include <sys/resource.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cmath>
#include <iostream>

#include "fulgur/history/report_page.h"
#include "history/written_run.h"

using namespace fulgur::test;

namespace large_run_test {

TEST_CASE("a page of a run of 1,000,000 rows takes at most 2 s and 3 MB", "[.large]") {
  const TemporaryFolder folder;
  const WrittenRun run(folder / "version_0");
  {
    std::ofstream file(run.folder / "metrics.csv");
    file << "step,epoch,train_loss,train_acc,lr-SGD,device/samples_per_sec,data_wait_share,loss_scale,grad_norm\n";
    file.precision(17);
    for (int i = 1; i <= 1'000'000; ++i)
      file << i << ',' << i / 10'000 << ',' << std::exp(-i / 3e5) + std::sin(i) * 0.1 << ',' << std::cos(i) << ','
           << 0.1 * (1 - i / 1e6) << ',' << 1000 + std::sin(i) << ',' << std::abs(std::sin(i * 0.1)) << ",65536.0,"
           << std::abs(std::cos(i * 0.1)) << '\n';
  }
  run.finished(100, 1'000'000, 7200);
  const auto start = std::chrono::steady_clock::now();
  const std::string page = fulgur::history::report_page({run.folder});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::cout << std::filesystem::file_size(run.folder / "metrics.csv") << " bytes of rows, " << seconds << " s, "
            << page.size() << " bytes of page, " << usage.ru_maxrss << " kB of memory at most\n";
  CHECK(seconds < 2);
  CHECK(page.size() < 3'000'000);
}

}  // namespace large_run_test
