#include "reading/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fulgur/core/system/unique_fd.h"
#include "reading/json_row.h"

namespace fulgur::history {
namespace fs = std::filesystem;
namespace {

constexpr off_t kEndBytes = off_t{1} << 16;

/// The end of a file; empty if it cannot be read. Reading the rows reports why.
std::string end_of_file(const fs::path& path) {
  const detail::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found {};
  if (fd.get() < 0 || ::fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode)) return {};
  std::string text(static_cast<size_t>(std::min(found.st_size, kEndBytes)), '\0');
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), found.st_size - static_cast<off_t>(text.size()));
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

std::optional<int64_t> step_in(std::string_view text) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() ? std::optional(step) : std::nullopt;
}

/// The step of the last complete row; nullopt if there is none.
std::optional<int64_t> last_step(const fs::path& log) {
  const std::string text = end_of_file(log);
  const size_t end = text.rfind('\n');
  if (end == std::string::npos || end == 0) return std::nullopt;
  const size_t before = text.rfind('\n', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const std::string_view row = std::string_view(text).substr(begin, end - begin);
  if (log.extension() == ".csv") return step_in(row.substr(0, row.find(',')));
  std::optional<int64_t> step;
  const bool good = for_each_number(row, [&](std::string_view name, std::string_view number, double) {
    if (name == "step") step = step_in(number);
  });
  return good ? step : std::nullopt;
}

}  // namespace

fs::path log_file(const fs::path& run_dir, bool ended) {
  const fs::path table = run_dir / kLogs[0], lines = run_dir / kLogs[1];
  std::error_code error;
  if (!fs::exists(lines, error)) return fs::exists(table, error) ? table : fs::path();
  if (!fs::exists(table, error)) return lines;
  // An optional without a value is the smallest.
  return ended || last_step(table) > last_step(lines) ? table : lines;
}

}  // namespace fulgur::history
