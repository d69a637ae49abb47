#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fulgur/core/state/tensor.h"

namespace fulgur::detail {

/// What the exchanges of a step have got and given, in their order.
struct ExchangeLog {
  struct Entry {
    uint64_t given;   ///< a checksum of the values before the exchange
    Tensor received;  ///< a copy of those after it
  };
  std::vector<Entry> entries;
  size_t next = 0;       ///< entry of the next exchange, while they are repeated
  bool differs = false;  ///< an exchange that was repeated had other values than the first time
};

enum class ExchangeMode {
  keep,    ///< exchanges are added to the log
  repeat,  ///< they get what is in the log, from its beginning; nothing is exchanged
};

/// While it exists, exchanges of this thread use a log.
class LoggedExchanges {
 public:
  LoggedExchanges(ExchangeLog& log, ExchangeMode mode);
  ~LoggedExchanges();
  LoggedExchanges(const LoggedExchanges&) = delete;
  LoggedExchanges& operator=(const LoggedExchanges&) = delete;
};

}  // namespace fulgur::detail
