#include "restart.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "fulgur/checkpoint/run_layout.h"
#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::cli {
namespace fs = std::filesystem;
namespace {

double seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double now_s(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return seconds(time);
}

// The start time of the parent process, which has existed since the first start: the launcher or torchrun's agent.
double launched_s() {
  std::ifstream file(cat("/proc/", ::getppid(), "/stat"));
  // getline, as the process may end before the file is read, which makes a stream iterator throw.
  std::string text;
  std::getline(file, text, '\0');
  // "pid (name) state …": the start is the 20th value after the name, in ticks since boot.
  std::istringstream values(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string value;
  for (int i = 0; i < 20; ++i) values >> value;
  double ticks = 0;
  std::from_chars(value.data(), value.data() + value.size(), ticks);
  return now_s(CLOCK_REALTIME) - now_s(CLOCK_BOOTTIME) + ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

bool written_since_launch(const fs::path& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 && seconds(status.st_mtim) >= launched_s();
}

// What `load` leaves out is left out when a run starts from a checkpoint, not when it continues.
void load_everything(CheckpointLoading& load) {
  load.weights_only = false;
  load.optimizer = load.lr_scheduler = load.loops = load.rng = true;
  // They adapt another run's weights, and are refused together with the state of the optimizer.
  load.strict = true;
  load.key_prefixes.clear();
}

// Whether the newest run is the one from which `start` begins another (fine-tuning), which has no checkpoint yet.
bool newest_run_is_the_base_of(const Config& start) {
  if (!start.ckpt_path || *start.ckpt_path == "auto" || start.load.loads_loops()) return false;
  const auto newest = run_to_resume(start);
  if (!newest) return false;
  // `last` and `best` are in the newest run, unless that is the one which started from them.
  if (is_last_or_best(start.ckpt_path)) return !start_of_run(*newest);
  return is_checkpoint_of(*start.ckpt_path, *newest);
}

// The saved config of a resumed run describes how it started.
void keep_start(const Config& start, Config& resumed) {
  if (resumed.written_start) return;
  resumed.written_start = {start.ckpt_path, start.load};
  if (!is_last_or_best(start.ckpt_path)) return;
  if (const auto run = run_to_resume(resumed))
    if (const auto from = start_of_run(*run)) resumed.written_start->ckpt_path = from;
}

}  // namespace

std::vector<ConfigDifference> resume_or_start(Config& config, const Config& start,
                                              const std::function<std::vector<ConfigDifference>(Config&)>& agree) {
  if (!newest_run_is_the_base_of(start)) {
    load_everything(config.load);
    const auto differences = agree(config);
    check_finished_run(config);
    // A finished run has nothing to resume, and is not started again.
    const bool starts = config.ckpt_path == "auto" && !run_has_finished(config);
    if (!starts || !start.ckpt_path || *start.ckpt_path == "auto") {
      keep_start(start, config);
      return differences;
    }
  }
  log::info(cat("resume: there is no run to resume; this one starts from ckpt_path: ", *start.ckpt_path));
  config = start;
  const auto differences_from_start = agree(config);
  config.begins_again = true;
  return differences_from_start;
}

std::vector<ConfigDifference> continue_after_restart(Config& config, const ProcessPlace& place, bool locks) {
  if (config.ckpt_path == "auto") return agree_with_checkpoint(config, locks);
  const fs::path run = newest_run_folder(config);
  // If a process was killed after the run had finished, nothing is left to do.
  const bool finished = written_since_launch(run / run_layout::kFinished);
  // Anything older than the launch belongs to another run. Each published checkpoint changes its folder.
  const bool own = finished || place.environment != "launcher" || written_since_launch(run / run_layout::kCheckpoints);
  if (!own || newest_run_is_the_base_of(config)) return agree_with_checkpoint(config, locks);
  const Config written = config;
  config.ckpt_path = "auto";
  load_everything(config.load);
  const auto differences = agree_with_checkpoint(config, locks);
  // The checkpoint belongs to another run if this one ended before its first checkpoint.
  std::error_code error;
  const bool of_this_run = config.ckpt_path != "auto" && fs::equivalent(fs::path(*config.ckpt_path).parent_path(),
                                                                        run / run_layout::kCheckpoints, error);
  keep_start(written, config);
  if (of_this_run || finished) return differences;
  config = written;
  return agree_with_checkpoint(config, locks);
}

}  // namespace fulgur::cli
