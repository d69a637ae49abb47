#include "launch/launch_store.h"

#include <unistd.h>

#include <c10/util/Logging.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fulgur/core/system/no_signals.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "launch/listening_socket.h"
#include "launch/no_name_lookups.h"

namespace fulgur::detail {

namespace {

/// We report a lost peer ourselves; c10d's warning is a stack trace.
class NoWarnings {
 public:
  NoWarnings() : before_(FLAGS_caffe2_log_level) {
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = std::max<int>(before_, c10::GLOG_ERROR);
  }
  ~NoWarnings() { FLAGS_caffe2_log_level = before_; }

 private:
  int before_;
};

}  // namespace

struct LaunchStore::Impl {
  NoWarnings quiet;
  c10::intrusive_ptr<c10d::TCPStore> store;
  std::string where;

  /// LibTorch's error is a stack trace; ours says whose store it was.
  template <class Use>
  auto use(Use&& what) -> decltype(what(*store)) {
    try {
      return what(*store);
    } catch (const std::exception&) {
      throw DistributedError(cat("[strategies.launcher] the launcher of node 0 hosts the store of the run, ", where,
                                 "; it no longer answers. Find out why it ended."));
    }
  }
};

LaunchStore::LaunchStore(const LaunchOptions& options) : impl_(std::make_unique<Impl>()) {
  c10d::TCPStoreOptions store_options;
  store_options.isServer = options.node_rank == 0;
  store_options.waitWorkers = false;
  store_options.timeout = std::chrono::seconds(30);
  std::string address = options.main_address;
  if (store_options.isServer) {
    const bool on_one_node = options.num_nodes == 1;
    const ListeningSocket socket =
        listen_on(on_one_node ? "127.0.0.1" : options.main_address, options.main_port, on_one_node);
    store_options.masterListenFd = socket.fd;
    store_options.port = static_cast<uint16_t>(socket.port);
    address = socket.address;
  } else {
    address = wait_for_listener(address, options.main_port, options.start_timeout_s);
    store_options.port = static_cast<uint16_t>(options.main_port);
  }
  impl_->where = cat("port ", static_cast<int64_t>(store_options.port), " of '",
                     store_options.isServer ? address : options.main_address, "'");
  const NoSignals for_its_threads;
  const NoNameLookups quick;
  try {
    impl_->store = c10::make_intrusive<c10d::TCPStore>(address, store_options);
  } catch (const std::exception& error) {
    throw DistributedError(cat("[strategies.launcher] the store of the run must answer on port ",
                               static_cast<int64_t>(store_options.port), " of '", address, "'; node ",
                               options.node_rank, " of ", options.num_nodes, " got: ", first_line(error.what()),
                               ". Check that no other program uses that port."));
  }
}

LaunchStore::~LaunchStore() = default;

int64_t LaunchStore::port() const { return impl_->store->getPort(); }

bool LaunchStore::put_first(const std::string& key, const std::string& value) {
  const std::vector<uint8_t> wanted(value.begin(), value.end());
  return impl_->use([&](c10d::TCPStore& store) { return store.compareSet(key, {}, wanted) == wanted; });
}

std::optional<std::string> LaunchStore::get(const std::string& key) {
  return impl_->use(
      [&](c10d::TCPStore& store) { return store.check({key}) ? std::optional(store.get_to_str(key)) : std::nullopt; });
}

std::string LaunchStore::wait_for(const std::string& key) {
  return impl_->use([&](c10d::TCPStore& store) { return store.get_to_str(key); });
}

int64_t LaunchStore::add(const std::string& key, int64_t amount) {
  return impl_->use([&](c10d::TCPStore& store) { return store.add(key, amount); });
}

}  // namespace fulgur::detail
