#include "fulgur/strategies/process_group.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/Flags.h>
#include <c10/util/Logging.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <climits>
#include <cstdlib>

#include "distributed/mismatched_exchange.h"
#include "distributed/node_ranks.h"
#include "distributed/process_group_impl.h"
#include "distributed/rendezvous.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/nccl_backend.h"

C10_DECLARE_int(caffe2_log_level);

namespace fulgur {
namespace {

MakeNcclBackend g_make_nccl = nullptr;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Without the stack trace that LibTorch adds, which names c10d for each error of a device inside an exchange, too.
std::string message_of(const std::exception& error) {
  const auto* const traced = dynamic_cast<const c10::Error*>(&error);
  return traced ? traced->what_without_backtrace() : error.what();
}

bool comes_from_an_exchange(const std::exception& error, std::string_view text) {
  if (dynamic_cast<const c10::DistError*>(&error)) return true;
  // Gloo's threads report errors without saying that they are Gloo's.
  for (const char* mark :
       {"gloo", "Gloo", "NCCL", "c10d", "TCPStore", "Timed out waiting", "Connection closed by peer",
        "onnection reset by peer", "pair closure", "Connect timeout", "Read timeout", "Write timeout"})
    if (text.find(mark) != text.npos) return true;
  return false;
}

std::string late_hint(bool short_timeout, const ProcessGroupOptions& options) {
  return cat("\nA rank that did not arrive hangs, or does something different from the others, ",
             detail::kMismatchCauses, "\nRanks waited for ",
             format_double(short_timeout ? options.timeout_s : options.start_timeout_s),
             " s (trainer.strategy.init_args.", short_timeout ? "timeout_s" : "start_timeout_s",
             "). If one may pause for longer, raise it.");
}

// What LibTorch's NCCL backend does when an exchange fails; variables already set in the environment win.
void set_nccl_defaults() {
  // Its watchdog aborts the communicators, so that kernels that wait for a lost rank return, and leaves the error
  // report to us (`ProcessGroup::check`). By default it ends the process with SIGABRT.
  if (!std::getenv("NCCL_ASYNC_ERROR_HANDLING")) setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  // A second thread would end the process while the run is still reporting why it failed.
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
  // After a kernel assertion the watchdog would also end the process, with the exception that the run reports.
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", /*overwrite=*/0);
  // Otherwise the watchdog sleeps for a minute before it aborts, so that all ranks can write records of their
  // exchanges.
  setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", /*overwrite=*/0);
}

// Throws the error of a device that has failed: every exchange over NCCL then fails too, with an error of NCCL's. Does
// not wait for the device.
void throw_if_device_failed(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  try {
    static_cast<void>(guard.queryStream(guard.getStream(device)));
  } catch (const std::exception& error) {
    // A stream that is being captured cannot be asked.
    if (std::string_view(error.what()).find("captur") == std::string_view::npos) throw;
  }
}

// The first error of the groups.
c10d::ErrorType nccl_error(const std::vector<c10::intrusive_ptr<c10d::Backend>>& backends) {
  for (const auto& nccl : backends)
    if (const c10d::ErrorType error = nccl->getError(); error != c10d::ErrorType::SUCCESS) return error;
  return c10d::ErrorType::SUCCESS;
}

void abort_backend(c10d::Backend& nccl) noexcept {
  try {
    nccl.abort();
  } catch (const std::exception& error) {
    log::debug(cat("[strategies.process_group] NCCL cannot be aborted: ", error.what()));
  }
}

}  // namespace

void register_nccl_backend(MakeNcclBackend make) { g_make_nccl = make; }

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

c10::intrusive_ptr<c10d::ProcessGroup> ProcessGroup::Impl::make_group(const std::string& prefix, int rank, int size) {
  const auto timeout = milliseconds(short_timeout ? options.timeout_s : options.start_timeout_s);
  try {
    auto made = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    // The backends of all groups and the heartbeat write keys, which must not collide.
    const auto prefixed = [&](const char* backend) {
      return c10::make_intrusive<c10d::PrefixStore>(prefix + backend, store);
    };
    gloo.push_back(detail::make_gloo_backend(prefixed("gloo"), rank, size, address, timeout));
    made->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo.back());
    if (options.backend == "nccl") {
      nccl.push_back(g_make_nccl(prefixed("nccl"), rank, size, timeout));
      made->setBackend(options.device.type(), c10d::ProcessGroup::BackendType::NCCL, nccl.back());
      made->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    } else {
      if (!options.device.is_cpu())
        made->setBackend(options.device.type(), c10d::ProcessGroup::BackendType::GLOO, gloo.back());
      made->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    }
    made->setGroupName("fulgur" + prefix);
    return made;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(
        cat("[strategies.process_group] rank ", place.rank, " of ", place.world_size,
            " cannot connect to the others from ", address.text, ": ", first_line(error.what()),
            ". Name the interface between the machines with GLOO_SOCKET_IFNAME, and for GPUs NCCL_SOCKET_IFNAME."));
  }
}

std::shared_ptr<ProcessGroup> ProcessGroup::connect(const ProcessPlace& place, const ProcessGroupOptions& options) {
  // LibTorch's flight recorder may crash if it is read while a group is created (measured with threads as ranks).
  // NCCL's own watchdog uses it to report what hung.
  if (options.backend != "nccl") setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  if (options.backend == "nccl") {
    // A device exists, so libfulgur_cuda.so is loaded.
    if (!g_make_nccl)
      throw ConfigError(
          "[strategies.ddp] libfulgur_cuda.so was built without NCCL: its headers (nvidia-nccl-cu13) were not found. "
          "Use trainer.strategy.init_args.process_group_backend: gloo, or build Fulgur with them.");
    set_nccl_defaults();
  }
  // LibTorch warns of every lost connection with a stack trace; our errors say what was lost.
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->place = place;
  impl->store = detail::meet(place, options.start_timeout_s);
  impl->address = detail::choose_gloo_address(place.main_address);
  impl->group = impl->make_group("", static_cast<int>(place.rank), static_cast<int>(place.world_size));
  impl->heartbeat.emplace(impl->store, place.rank, place.world_size);
  detail::report_mismatches(*impl->heartbeat, place);
  const std::shared_ptr<ProcessGroup> group(new ProcessGroup(std::move(impl)));
  group->impl_->collectives.emplace(*group, group->impl_->group);
  // MPI does not number nodes, and one node cannot see how many ranks the others have.
  if (place.environment == "mpi")
    group->impl_->place =
        detail::number_nodes(place, group->collectives().gather_text(detail::node_identity(host_name(), place)));
  return group;
}

ProcessGroup::~ProcessGroup() {
  if (!impl_) return;
  abort();
  detail::forget_mismatches(*impl_->heartbeat);
  impl_->heartbeat.reset();
  // Gloo's destructor waits for exchanges in progress, and their peers may be gone. Its resources end with the process;
  // NCCL's threads must not live that long, since they would use CUDA while it is torn down.
  impl_->collectives.reset();
  for (auto& gloo : impl_->gloo) (void)gloo.release();
  impl_->nccl.clear();
  impl_->group.reset();
  (void)impl_->store.release();
}

void ProcessGroup::shut_down() noexcept {
  if (impl_->nccl.empty() || impl_->ended) return;
  try {
    // NCCL's ranks end together: one left alone would wait for the others.
    impl_->collectives->start_max({0})->take();
    check();
    for (const auto& nccl : impl_->nccl) nccl->shutdown();
    impl_->ended = true;
  } catch (const std::exception& error) {
    log::debug(cat("[strategies.process_group] the ranks do not end together: ", error.what()));
    abort();
  }
}

void ProcessGroup::abort() noexcept {
  if (std::exchange(impl_->ended, true)) return;
  for (const auto& nccl : impl_->nccl) abort_backend(*nccl);
}

void ProcessGroup::abort_late_launch() noexcept {
  impl_->launch_was_late = true;
  for (const auto& nccl : impl_->nccl) abort_backend(*nccl);
}

std::chrono::milliseconds ProcessGroup::timeout() const {
  return milliseconds(impl_->short_timeout ? impl_->options.timeout_s : impl_->options.start_timeout_s);
}

void ProcessGroup::check() const {
  if (impl_->nccl.empty() || impl_->ended) return;
  if (impl_->launch_was_late)
    lose("exchange", true,
         cat("a captured step with exchanges over NCCL took longer than ",
             format_double(static_cast<double>(timeout().count()) / 1000), " s"));
  const c10d::ErrorType error = nccl_error(impl_->nccl);
  if (error == c10d::ErrorType::SUCCESS) return;
  // If the device itself has failed, that is the reason: this throws its error. The communicators are aborted by now,
  // so nothing waits for a rank any more.
  if (error != c10d::ErrorType::TIMEOUT)
    c10::impl::VirtualGuardImpl(impl_->options.device.type()).synchronizeDevice(impl_->options.device.index());
  const bool late = error == c10d::ErrorType::TIMEOUT;
  const double timeout_s = impl_->short_timeout ? impl_->options.timeout_s : impl_->options.start_timeout_s;
  lose("exchange", late,
       late ? cat("an exchange over NCCL took longer than ", format_double(timeout_s), " s")
            : std::string("an exchange over NCCL failed"));
}

const ProcessPlace& ProcessGroup::place() const { return impl_->place; }
Collectives& ProcessGroup::collectives() { return *impl_->collectives; }

void ProcessGroup::use_short_timeout() {
  if (impl_->short_timeout) return;
  impl_->short_timeout = true;
  for (const auto* backends : {&impl_->gloo, &impl_->nccl})
    for (const auto& backend : *backends) backend->setTimeout(milliseconds(impl_->options.timeout_s));
}

std::string ProcessGroup::describe() const {
  const std::string gloo = cat("gloo over ", impl_->address.text);
  if (impl_->options.backend != "nccl") return gloo;
  const char* interface = std::getenv("NCCL_SOCKET_IFNAME");
  return cat(
      "gradients: nccl, ",
      interface ? cat("over ", interface, " (NCCL_SOCKET_IFNAME)") : "which chooses its route (NCCL_SOCKET_IFNAME)",
      " · the rest: ", gloo);
}

void ProcessGroup::rethrow(const char* operation) const {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;  // the exchange's buffers did not fit: this rank itself failed
  } catch (const std::exception& error) {
    const std::string message = message_of(error);
    const std::string_view text = message;
    if (!comes_from_an_exchange(error, text)) throw;
    // An exchange over aborted communicators reports that they were aborted, not why.
    const bool aborted_late =
        impl_->launch_was_late || (!impl_->ended && nccl_error(impl_->nccl) == c10d::ErrorType::TIMEOUT);
    if (!impl_->nccl.empty() && !aborted_late) throw_if_device_failed(impl_->options.device);
    const bool late = aborted_late || text.find("imed out") != text.npos || text.find("imeout") != text.npos;
    lose(operation, late, first_line(text));
  }
}

void ProcessGroup::lose(const char* operation, bool late, std::string_view why) const {
  const ProcessPlace& place = impl_->place;
  throw DistributedError(cat(
      "[strategies.", operation, "] rank ", place.rank, " of ", place.world_size,
      late ? " timed out waiting for another rank: " : " lost another rank: ", why,
      "\nwhat the ranks did:", impl_->heartbeat->report(),
      late ? late_hint(impl_->short_timeout, impl_->options) : std::string("\nIts own message says why it ended.")));
}

}  // namespace fulgur
