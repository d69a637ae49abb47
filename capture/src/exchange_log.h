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

/// While it exists, exchanges of this thread are added to a log.
class KeepExchanges {
 public:
  explicit KeepExchanges(ExchangeLog& log);
  ~KeepExchanges();
  KeepExchanges(const KeepExchanges&) = delete;
  KeepExchanges& operator=(const KeepExchanges&) = delete;
};

/// While it exists, exchanges of this thread get what is in a log, from its beginning; nothing is exchanged.
class RepeatExchanges {
 public:
  explicit RepeatExchanges(ExchangeLog& log);
  ~RepeatExchanges();
  RepeatExchanges(const RepeatExchanges&) = delete;
  RepeatExchanges& operator=(const RepeatExchanges&) = delete;
};

}  // namespace fulgur::detail
