// C7: how long a save of weights and Adam state keeps the training thread.
//
//   checkpoint_stall [--parameters 124000000] [--rounds 7] [--folder FOLDER] [--json FILE]
//
// In each round, one after the other, with one thread: a copy of the state into memory that is used again (memcpy), the
// stall of AsyncCheckpointWriter::submit, write_checkpoint, and write(2) of as many bytes with and without fsync.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <fulgur/checkpoint/async_writer.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>

namespace fs = std::filesystem;
using fulgur::CheckpointContent;
using fulgur::StateTree;
using fulgur::Tensor;

namespace {

struct Arguments {
  int64_t parameters = 124'000'000;
  int rounds = 7;
  fs::path folder = fs::temp_directory_path();
  std::string json;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    if (name == "--parameters") arguments.parameters = std::stoll(argv[i + 1]);
    else if (name == "--rounds") arguments.rounds = std::stoi(argv[i + 1]);
    else if (name == "--folder") arguments.folder = argv[i + 1];
    else if (name == "--json") arguments.json = argv[i + 1];
    else throw std::invalid_argument("unknown option " + name);
  }
  if (arguments.parameters < 1 || arguments.rounds < 1) throw std::invalid_argument("--parameters and --rounds must be at least 1");
  return arguments;
}

// Parameters in matrices of 7 M at most, and the two moments of each.
CheckpointContent make_content(int64_t parameters) {
  constexpr int64_t kLargest = 7'000'000;
  CheckpointContent content;
  StateTree::List averages, squares;
  for (int64_t left = parameters; left > 0; left -= kLargest) {
    const int64_t size = std::min(left, kLargest);
    const auto number = static_cast<double>(content.module.size());
    content.module.emplace_back("layer" + std::to_string(content.module.size()) + ".weight", at::full({size}, number + 0.1, at::kFloat));
    averages.emplace_back(at::full({size}, number + 0.2, at::kFloat));
    squares.emplace_back(at::full({size}, number + 0.3, at::kFloat));
  }
  content.optimizers = StateTree::List{StateTree::map({{"exp_avg", std::move(averages)}, {"exp_avg_sq", std::move(squares)}})};
  content.state["progress"] = StateTree::map({{"global_step", 1000}, {"epoch", 3}});
  return content;
}

std::vector<Tensor> tensors_of(const CheckpointContent& content) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : content.module) tensors.push_back(tensor);
  for (const char* name : {"exp_avg", "exp_avg_sq"})
    for (const StateTree& tensor : content.optimizers.as_list()[0].at(name).as_list()) tensors.push_back(tensor.tensor());
  return tensors;
}

template <class Function>
double seconds(Function function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void write_raw(const fs::path& path, const std::vector<Tensor>& tensors, bool sync) {
  const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  bool good = fd >= 0;
  for (const Tensor& tensor : tensors) {
    const char* next = static_cast<const char*>(tensor.const_data_ptr());
    for (size_t left = tensor.nbytes(); left > 0 && good;) {
      const ssize_t written = write(fd, next, std::min<size_t>(left, 128u << 10));
      good = written > 0;
      if (!good) break;
      next += written;
      left -= static_cast<size_t>(written);
    }
  }
  if (sync) good = good && fsync(fd) == 0;
  close(fd);
  if (!good) throw std::runtime_error("writing to " + path.string() + " failed");
}

struct Row {
  const char* name;
  const char* key;
  std::vector<double> seconds;
  double min() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  }
};

void run(const Arguments& arguments) {
  at::set_num_threads(1);
  const CheckpointContent content = make_content(arguments.parameters);
  const std::vector<Tensor> tensors = tensors_of(content);
  size_t bytes = 0;
  std::vector<Tensor> buffers;
  for (const Tensor& tensor : tensors) {
    buffers.push_back(tensor.clone());
    bytes += tensor.nbytes();
  }
  const fs::path folder = arguments.folder / ("checkpoint_stall." + std::to_string(getpid()));
  fs::create_directories(folder);
  fulgur::AsyncCheckpointWriter writer;
  const auto finish = [&] {
    for (const auto& result : writer.wait()) {
      if (result.error) throw *result.error;
      fulgur::remove_checkpoint(result.path);
    }
  };
  const double first = seconds([&] { writer.submit(folder / "async.ckpt", content); });
  finish();

  Row rows[] = {{"memcpy of the state", "memcpy_s", {}},
                {"stall of submit", "submit_s", {}},
                {"write_checkpoint, synced", "write_checkpoint_s", {}},
                {"write(2) alone, synced", "raw_write_fsync_s", {}},
                {"write(2) alone", "raw_write_s", {}},
                {"submit to its result", "async_total_s", {}}};
  for (int round = 0; round < arguments.rounds; ++round) {
    rows[0].seconds.push_back(seconds([&] {
      for (size_t i = 0; i < tensors.size(); ++i) std::memcpy(buffers[i].mutable_data_ptr(), tensors[i].const_data_ptr(), tensors[i].nbytes());
    }));
    rows[5].seconds.push_back(seconds([&] {
      rows[1].seconds.push_back(seconds([&] { writer.submit(folder / "async.ckpt", content); }));
      for (const auto& result : writer.wait())
        if (result.error) throw *result.error;
    }));
    fulgur::remove_checkpoint(folder / "async.ckpt");
    rows[2].seconds.push_back(seconds([&] { fulgur::write_checkpoint(folder / "sync.ckpt", content); }));
    fulgur::remove_checkpoint(folder / "sync.ckpt");
    rows[3].seconds.push_back(seconds([&] { write_raw(folder / "raw", tensors, true); }));
    fs::remove(folder / "raw");
    rows[4].seconds.push_back(seconds([&] { write_raw(folder / "raw", tensors, false); }));
    fs::remove(folder / "raw");
  }
  fs::remove_all(folder);

  std::printf("%lld parameters with Adam state, %.2f GB, %d rounds, one thread\n\n",
              static_cast<long long>(arguments.parameters), static_cast<double>(bytes) / 1e9, arguments.rounds);
  std::printf("%-28s %10s %10s %10s\n", "", "min s", "median s", "GB/s (min)");
  for (const Row& row : rows) std::printf("%-28s %10.3f %10.3f %10.2f\n", row.name, row.min(), row.median(), static_cast<double>(bytes) / 1e9 / row.min());
  std::printf("\nstall of submit / memcpy: %.2f of the minima, %.2f of the medians; the first submit, into new memory: %.3f s\n",
              rows[1].min() / rows[0].min(), rows[1].median() / rows[0].median(), first);
  if (arguments.json.empty()) return;
  std::ofstream file(arguments.json, std::ios::app);
  file << "{\"benchmark\": \"checkpoint_stall\", \"parameters\": " << arguments.parameters << ", \"bytes\": " << bytes << ", \"rounds\": " << arguments.rounds
       << ", \"first_submit_s\": " << first;
  for (const Row& row : rows) file << ", \"" << row.key << "\": {\"min\": " << row.min() << ", \"median\": " << row.median() << "}";
  file << "}\n";
  if (!file.flush()) throw std::runtime_error("writing " + arguments.json + " failed");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 2;
  }
}
