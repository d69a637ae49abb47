#include "forked.h"

#include <ATen/ops/arange.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>

#include "events.h"
#include "fulgur/checkpoint/safetensors.h"
#include "fulgur/core/system/system_calls.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"
#include "fulgur/trainer/trainer.h"
#include "fulgur/trainer/yaml.h"
#include "process/run_clock.h"
#include "support/free_port.h"
#include "support/temporary_folder.h"

namespace fulgur::test {
namespace fs = std::filesystem;

namespace {

[[noreturn]] void be_child(int64_t rank, const fs::path& log, const std::function<int(int64_t)>& work) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGSEGV, SIGABRT, SIGFPE, SIGILL}) ::signal(number, SIG_DFL);
  const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  int code = 1;
  try {
    code = work(rank);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    code = static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

bool Ended::all(int code) const {
  return !hung && std::ranges::all_of(codes, [&](int each) { return each == code; });
}

Ended in_processes(int64_t count, const fs::path& log, const std::function<int(int64_t rank)>& work) {
  std::fflush(nullptr);  // what is in the buffers would be written by each process
  std::vector<pid_t> pids;
  for (int64_t rank = 0; rank < count; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid == 0) be_child(rank, log, work);
    pids.push_back(pid);
  }
  Ended ended;
  ended.codes.assign(pids.size(), 0);
  const auto begun = std::chrono::steady_clock::now();
  for (size_t left = pids.size(); left > 0;) {
    bool some = false;
    for (size_t i = 0; i < pids.size(); ++i) {
      int status = 0;
      if (pids[i] == 0 || ::waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
      ended.codes[i] = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
      pids[i] = 0, --left, some = true;
    }
    if (some) continue;
    if (!ended.hung && std::chrono::steady_clock::now() - begun > std::chrono::seconds(kTimeoutS)) {
      ended.hung = true;
      for (const pid_t pid : pids)
        if (pid != 0) ::kill(pid, SIGKILL);
    }
    ::usleep(500);
  }
  ended.text = read_text(log);
  return ended;
}

namespace {

// A config read in a process of a run, which knows its place by its environment.
struct TrainerComponents {
  TrainerComponents(const std::string& text, int64_t rank, int64_t ranks, int port) {
    if (ranks > 1) {
      for (const auto& [name, value] : {std::pair<const char*, int64_t>{"RANK", rank},
                                        {"LOCAL_RANK", rank},
                                        {"WORLD_SIZE", ranks},
                                        {"LOCAL_WORLD_SIZE", ranks},
                                        {"MASTER_PORT", port}})
        ::setenv(name, std::to_string(value).c_str(), 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    }
    Problems problems;
    config = config_from_node(parse_yaml(text, "plan", problems));
    data = config.data.create();
    trainer.emplace(Trainer::from_config(config));
    trainer->prepare_process();
    module = config.model.create();
  }
  Config config;
  std::shared_ptr<DataModule> data;
  std::optional<Trainer> trainer;
  std::shared_ptr<LightningModule> module;
};

}  // namespace

namespace {

// Each batch takes a second.
std::chrono::steady_clock::time_point clock_of_batches() {
  return std::chrono::steady_clock::time_point(std::chrono::seconds(1000 + batches_of_process));
}

// Nothing can be written between two batches.
class FullDisk final : public fulgur::detail::SystemCalls {
 public:
  FullDisk(int64_t from, int64_t until) : from_(from), until_(until) {}
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return full() ? -1 : SystemCalls::write(fd, data, bytes);
  }
  ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) override {
    return full() ? -1 : SystemCalls::pwrite(fd, data, bytes, at);
  }
  int mkdir(const char* path, mode_t mode) override { return full() ? -1 : SystemCalls::mkdir(path, mode); }

 private:
  bool full() const {
    if (batches_of_process < from_ || batches_of_process >= until_) return false;
    errno = ENOSPC;
    return true;
  }
  int64_t from_, until_;
};

}  // namespace

Ended fit(const Plan& config, const fs::path& folder, int64_t ranks) {
  fs::create_directories(folder);
  const int port = ranks > 1 ? free_port() : 0;
  const std::string text = config.dump();
  const Plan events = value_at(config, "/trainer/callbacks/0/init_args", Plan::object());
  return in_processes(ranks, folder / "log", [&](int64_t rank) {
    batches_of_process = 0;
    if (events.value("clock", false)) fulgur::detail::set_run_clock(clock_of_batches);
    std::optional<FullDisk> disk;
    std::optional<fulgur::detail::ScopedSystemCalls> calls;
    if (const auto full = events.value("full", std::vector<int64_t>()); full.size() == 2)
      calls.emplace(disk.emplace(full[0], full[1]));
    TrainerComponents components(text, rank, ranks, port);
    return static_cast<int>(
        components.trainer->fit(components.module, DataSource(components.data), components.config.ckpt_path).exit_code);
  });
}

Ended fit_by_program(const Plan& config, const fs::path& folder) {
  fs::create_directories(folder);
  const fs::path file = folder / "plan.yaml";
  std::ofstream(file) << to_yaml(config);
  return in_processes(1, folder / "log", [&](int64_t) -> int {
    ::execl(FULGUR_TRAINER_BIN, FULGUR_TRAINER_BIN, "fit", "--plugin", FULGUR_DIFFERENTIAL_PARTS, "-c", file.c_str(),
            static_cast<char*>(nullptr));
    throw std::runtime_error(cat("the program did not start: ", std::strerror(errno)));
  });
}

Ended evaluate(const Plan& config, const fs::path& folder, int64_t ranks) {
  const int port = ranks > 1 ? free_port() : 0;
  const std::string text = config.dump();
  return in_processes(ranks, folder / "log", [&](int64_t rank) {
    TrainerComponents components(text, rank, ranks, port);
    const EvalReport tested = components.trainer->test(components.module, DataSource(components.data), "last");
    if (tested.checkpoint)
      std::printf("tested %s\n", tested.checkpoint->parent_path().parent_path().filename().c_str());
    const PredictReport predicted = components.trainer->predict(components.module, DataSource(components.data), "last");
    const auto metric =
        std::ranges::find(tested.loaders.at(0), "test_loss", [](const auto& each) { return each.first; })->second;
    if (rank != 0) return 0;
    // The report has this rank's share; the file has all.
    const NamedTensors written = read_safetensors(predicted.files.at(0)).tensors;
    std::map<std::string, Tensor> outputs(written.begin(), written.end());
    const Tensor error = (outputs.at("out").to(at::kDouble) - outputs.at("y").to(at::kDouble)).square();
    const auto recomputed = error.mean().item<double>();
    const int64_t samples = outputs.at("id").numel();
    if (tested.samples != samples)
      throw std::runtime_error(cat("tested on ", tested.samples, " samples, predicted ", samples));
    if (!outputs.at("id").equal(at::arange(1000, 1000 + samples, at::kLong)))
      throw std::runtime_error("predictions are not in the order of the data");
    if (std::abs(metric - recomputed) > 1e-9 * (1 + std::abs(recomputed)))
      throw std::runtime_error(cat("test_loss is ", metric, ", by the predictions it is ", recomputed));
    return 0;
  });
}

}  // namespace fulgur::test
