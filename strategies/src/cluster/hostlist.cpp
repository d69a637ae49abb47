#include <algorithm>
#include <string_view>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/cluster_environment.h"

namespace fulgur {
namespace {

constexpr size_t kMaxHosts = 1 << 20;

/// Expands one list; keeps the whole text for error messages.
class Hostlist {
 public:
  explicit Hostlist(std::string_view text) : text_(text) {}

  std::vector<std::string> expand() {
    std::vector<std::string> out;
    size_t begin = 0, depth = 0;
    for (size_t i = 0; i <= text_.size(); ++i) {
      const char c = i < text_.size() ? text_[i] : ',';
      if (c == '[' && ++depth > 1) fail("brackets within brackets");
      if (c == ']' && depth-- == 0) fail("a bracket that closes nothing");
      if (c != ',' || (depth > 0 && i < text_.size())) continue;
      if (depth > 0) fail("a bracket that is not closed");
      const std::vector<std::string> hosts = expand_host(text_.substr(begin, i - begin));
      out.insert(out.end(), hosts.begin(), hosts.end());
      if (out.size() > kMaxHosts) fail("too many hosts");
      begin = i + 1;
    }
    return out;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw DistributedError(
        cat("[strategies.expand_hostlist] a list of hosts is written as 'node[001-016,020],gpu-a3'; '", text_, "' has ",
            what,
            ". Set MASTER_ADDR to the first host of the job and unset the list, or name another cluster_environment."));
  }

  /// `rack[1-2]node[01-16]`: the last bracket counts fastest.
  std::vector<std::string> expand_host(std::string_view item) const {
    if (item.empty()) fail("an empty name");
    std::vector<std::string> out{""};
    while (!item.empty()) {
      const size_t open = std::min(item.find('['), item.size());
      for (std::string& name : out) name += item.substr(0, open);
      if (open == item.size()) break;
      const size_t close = item.find(']', open);
      const std::vector<std::string> numbers = expand_bracket(item.substr(open + 1, close - open - 1));
      if (out.size() * numbers.size() > kMaxHosts) fail("too many hosts");
      std::vector<std::string> longer;
      for (const std::string& name : out) {
        for (const std::string& number : numbers) longer.push_back(name + number);
      }
      out = std::move(longer);
      item.remove_prefix(close + 1);
    }
    return out;
  }

  std::vector<std::string> expand_bracket(std::string_view inside) const {
    std::vector<std::string> out;
    while (true) {
      const size_t comma = std::min(inside.find(','), inside.size());
      const std::string_view part = inside.substr(0, comma);
      const size_t dash = part.find('-');
      const std::string first(part.substr(0, dash));
      const std::string last(dash == std::string_view::npos ? part : part.substr(dash + 1));
      const int64_t low = number(first), high = number(last);
      if (high < low) fail(cat("a range that runs backwards, '", part, "'"));
      if (static_cast<size_t>(high - low) + out.size() >= kMaxHosts) fail("too many hosts");
      for (int64_t i = low; i <= high; ++i) {
        std::string digits = std::to_string(i);
        if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
        out.push_back(std::move(digits));
      }
      if (comma == inside.size()) return out;
      inside.remove_prefix(comma + 1);
    }
  }

  int64_t number(const std::string& text) const {
    if (!all_digits(text) || text.size() > 9) fail(cat("'", text, "' instead of a number"));
    return std::stoll(text);
  }

  std::string_view text_;
};

}  // namespace

std::vector<std::string> expand_hostlist(const std::string& list) { return Hostlist(list).expand(); }

}  // namespace fulgur
