#include "fulgur/strategies/process_group.h"

#include <c10/util/Flags.h>
#include <c10/util/Logging.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "fulgur/core/errors.h"
#include "fulgur/core/text.h"
#include "fulgur/strategies/nccl_backend.h"
#include "node_numbers.h"
#include "process_group_impl.h"
#include "rendezvous.h"

C10_DECLARE_int(caffe2_log_level);

namespace fulgur {
namespace {

MakeNcclBackend g_make_nccl = nullptr;

std::chrono::milliseconds milliseconds(double seconds) { return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)); }

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

bool comes_from_an_exchange(std::string_view text) {
  for (const char* mark : {"gloo", "Gloo", "NCCL", "Connection closed by peer", "Timed out waiting", "c10d", "TCPStore", "Connection reset by peer"})
    if (text.find(mark) != text.npos) return true;
  return false;
}

}  // namespace

void register_nccl_backend(MakeNcclBackend make) { g_make_nccl = make; }

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::shared_ptr<ProcessGroup> ProcessGroup::connect(const ProcessPlace& place, const ProcessGroupOptions& options) {
  // LibTorch's recorder of exchanges may crash where it is read while a group is made (measured with threads as ranks). NCCL's
  // own watchdog writes from it what hung.
  if (options.backend != "nccl") setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  // LibTorch warns of every lost connection with a stack of addresses; our errors say what was lost.
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->place = place;
  impl->store = detail::meet(place, options.start_timeout_s);
  impl->address = detail::choose_gloo_address(place.main_address);
  const int rank = static_cast<int>(place.rank), world_size = static_cast<int>(place.world_size);
  const auto timeout = milliseconds(options.start_timeout_s);
  try {
    impl->group = c10::make_intrusive<c10d::ProcessGroup>(impl->store, rank, world_size);
    const auto gloo = detail::make_gloo_backend(impl->store, rank, world_size, impl->address, timeout);
    impl->group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
    impl->backends.push_back(gloo);
    if (options.backend == "nccl") {
      if (!g_make_nccl) throw ConfigError("[strategies.ddp] NCCL comes with libfulgur_cuda.so, which is not loaded. Use trainer.accelerator: cuda.");
      const auto nccl = g_make_nccl(impl->store, rank, world_size, timeout);
      impl->group->setBackend(options.device.type(), c10d::ProcessGroup::BackendType::NCCL, nccl);
      impl->group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
      impl->backends.push_back(nccl);
    } else {
      if (!options.device.is_cpu()) impl->group->setBackend(options.device.type(), c10d::ProcessGroup::BackendType::GLOO, gloo);
      impl->group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    }
    impl->group->setGroupName("fulgur");
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    throw DistributedError(cat("[strategies.process_group] rank ", rank, " of ", world_size, " cannot connect to the others from ", impl->address.text, ": ", text.substr(0, text.find('\n')),
                               ". Name the interface between the machines with GLOO_SOCKET_IFNAME, and for GPUs NCCL_SOCKET_IFNAME."));
  }
  impl->heartbeat.emplace(impl->store, place.rank, place.world_size);
  const std::shared_ptr<ProcessGroup> group(new ProcessGroup(std::move(impl)));
  group->impl_->collectives.emplace(*group, group->impl_->group);
  // MPI numbers no nodes, and from one of them it cannot be seen how many ranks the others have.
  if (place.environment == "mpi") group->impl_->place = detail::number_nodes(place, group->collectives().gather_text(detail::node_word(host_name(), place)));
  return group;
}

ProcessGroup::~ProcessGroup() {
  if (!impl_) return;
  impl_->heartbeat.reset();
  // The destructors of the backends wait for exchanges under way, and their peers may be gone. What they hold ends with the
  // process.
  for (auto& backend : impl_->backends) (void)backend.release();
  (void)impl_->group.release();
  (void)impl_->store.release();
}

const ProcessPlace& ProcessGroup::place() const { return impl_->place; }
Collectives& ProcessGroup::collectives() { return *impl_->collectives; }

void ProcessGroup::use_short_timeout() {
  if (impl_->short_timeout) return;
  impl_->short_timeout = true;
  for (auto& backend : impl_->backends) backend->setTimeout(milliseconds(impl_->options.timeout_s));
}

std::string ProcessGroup::text() const {
  std::string text = cat(impl_->options.backend, " over ", impl_->address.text);
  if (impl_->options.backend == "nccl") {
    const char* interface = std::getenv("NCCL_SOCKET_IFNAME");
    text += interface ? cat(", NCCL over ", interface, " (NCCL_SOCKET_IFNAME)") : std::string(", NCCL over what it finds");
  }
  return text;
}

void ProcessGroup::rethrow(const char* operation) const {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    if (!comes_from_an_exchange(text)) throw;
    const ProcessPlace& place = impl_->place;
    const bool late = text.find("imed out") != text.npos || text.find("imeout") != text.npos;
    throw DistributedError(cat("[strategies.", operation, "] rank ", place.rank, " of ", place.world_size, late ? " waited in vain for another rank: " : " lost another rank: ",
                               text.substr(0, text.find('\n')), "\nwhat the ranks did:", impl_->heartbeat->report(),
                               late ? "\nA rank that did not come hangs, or does something else than the others. Longer pauses than trainer.strategy.init_args.timeout_s are no error: raise it."
                                    : "\nIts own message says why it ended."));
  }
}

}  // namespace fulgur
