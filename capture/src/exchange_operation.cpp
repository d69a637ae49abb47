#include "fulgur/capture/exchange_operation.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "exchange_log.h"
#include "fulgur/core/text/errors.h"
#include "host_writes.h"

namespace fulgur {
namespace {

using Function = std::function<void(const Tensor&)>;

thread_local detail::ExchangeLog* used_log = nullptr;
thread_local detail::ExchangeMode used_mode = detail::ExchangeMode::keep;

// An operation has numbers as arguments, not functions.
struct Known {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<const Function>> functions;
  int64_t made = 0;
};
Known& known() {
  static Known all;
  return all;
}

void repeat(detail::ExchangeLog& log, const Tensor& values, uint64_t given) {
  if (log.next >= log.entries.size() || log.entries[log.next].received.nbytes() != values.nbytes())
    throw Error("[CapturedProgram.replay] a step that is repeated has the exchanges of the first time; it has others.");
  const detail::ExchangeLog::Entry& entry = log.entries[log.next++];
  log.differs = log.differs || entry.given != given;
  Tensor(values).copy_(entry.received);
}

void exchange_on_cpu(const Tensor& values, int64_t number) {
  detail::ExchangeLog* const log = used_log;
  const uint64_t given =
      log ? detail::checksum_of({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}) : 0;
  if (log && used_mode == detail::ExchangeMode::repeat) return repeat(*log, values, given);
  std::shared_ptr<const Function> function;
  {
    const std::lock_guard lock(known().mutex);
    const auto found = known().functions.find(number);
    if (found != known().functions.end()) function = found->second;
  }
  if (!function)
    throw Error("[CapturedProgram.replay] the processes of an exchange are still connected; these are not.");
  (*function)(values);
  if (log) log->entries.push_back({.given = given, .received = values.clone()});
}

TORCH_LIBRARY(fulgur_exchange, library) { library.def("exchange_(Tensor(a!) values, int number) -> ()"); }
TORCH_LIBRARY_IMPL(fulgur_exchange, CPU, library) { library.impl("exchange_", &exchange_on_cpu); }

}  // namespace

namespace detail {

LoggedExchanges::LoggedExchanges(ExchangeLog& log, ExchangeMode mode) {
  log.next = 0;
  used_log = &log;
  used_mode = mode;
}
LoggedExchanges::~LoggedExchanges() { used_log = nullptr; }

}  // namespace detail

ExchangeOperation::ExchangeOperation(std::function<void(const Tensor&)> exchange) {
  const std::lock_guard lock(known().mutex);
  number_ = known().made++;
  known().functions.emplace(number_, std::make_shared<const Function>(std::move(exchange)));
}

ExchangeOperation::~ExchangeOperation() {
  const std::lock_guard lock(known().mutex);
  known().functions.erase(number_);
}

void ExchangeOperation::operator()(const Tensor& values) const {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("fulgur_exchange::exchange_", "")
                                    .typed<void(const Tensor&, int64_t)>();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  operation.call(values, number_);
}

}  // namespace fulgur
