// C7: how long a save of weights and Adam state keeps the training thread.
//
//   c7_fulgur --parameters 124000000 --rounds 5 --scratch FOLDER --report FILE
//
// In each round, one after the other: a copy of the state into memory that is used again (memcpy), the stall of
// AsyncCheckpointWriter::submit, write_checkpoint, and write(2) of as many bytes with and without fsync.
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <fulgur/checkpoint/async_writer.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "bench.h"

namespace fs = std::filesystem;
using fulgur::CheckpointContent;
using fulgur::StateTree;
using fulgur::Tensor;

namespace {

// Parameters in matrices of 7 M at most, and the two moments of each.
CheckpointContent make_content(int64_t parameters) {
  constexpr int64_t kLargest = 7'000'000;
  CheckpointContent content;
  StateTree::List averages, squares;
  for (int64_t left = parameters; left > 0; left -= kLargest) {
    const int64_t size = std::min(left, kLargest);
    const auto number = static_cast<double>(content.module.size());
    content.module.emplace_back("layer" + std::to_string(content.module.size()) + ".weight",
                                at::full({size}, number + 0.1, at::kFloat));
    averages.emplace_back(at::full({size}, number + 0.2, at::kFloat));
    squares.emplace_back(at::full({size}, number + 0.3, at::kFloat));
  }
  content.optimizers =
      StateTree::List{StateTree::map({{"exp_avg", std::move(averages)}, {"exp_avg_sq", std::move(squares)}})};
  content.state["progress"] = StateTree::map({{"global_step", 1000}, {"epoch", 3}});
  return content;
}

std::vector<Tensor> tensors_of(const CheckpointContent& content) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : content.module) tensors.push_back(tensor);
  for (const char* name : {"exp_avg", "exp_avg_sq"})
    for (const StateTree& tensor : content.optimizers.as_list()[0].at(name).as_list())
      tensors.push_back(tensor.tensor());
  return tensors;
}

using Samples = nlohmann::json;

template <class Function>
void measure(Samples& samples, Function function) {
  const double cpu = bench::cpu_seconds(), wall = bench::wall_seconds();
  function();
  const double wall_s = bench::wall_seconds() - wall;
  samples.push_back({{"wall_s", wall_s}, {"cpu_s", bench::cpu_seconds() - cpu}});
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

void run(const bench::Arguments& arguments) {
  const CheckpointContent content = make_content(arguments.number("parameters"));
  const std::vector<Tensor> tensors = tensors_of(content);
  std::vector<Tensor> buffers;
  for (const Tensor& tensor : tensors) buffers.push_back(tensor.clone());
  const fs::path folder = fs::path(arguments.text("scratch")) / "c7";
  fs::create_directories(folder);
  fulgur::AsyncCheckpointWriter writer;
  const auto finish = [&] {
    for (const auto& result : writer.wait()) {
      if (result.error) throw *result.error;
      fulgur::remove_checkpoint(result.path);
    }
  };
  // The first one takes new memory.
  writer.submit(folder / "async.ckpt", content);
  finish();

  Samples copy, stall, write, raw_synced, raw;
  for (int64_t round = 0; round < arguments.number("rounds"); ++round) {
    measure(copy, [&] {
      for (size_t i = 0; i < tensors.size(); ++i)
        std::memcpy(buffers[i].mutable_data_ptr(), tensors[i].const_data_ptr(), tensors[i].nbytes());
    });
    measure(stall, [&] { writer.submit(folder / "async.ckpt", content); });
    finish();
    measure(write, [&] { fulgur::write_checkpoint(folder / "sync.ckpt", content); });
    fulgur::remove_checkpoint(folder / "sync.ckpt");
    measure(raw_synced, [&] { write_raw(folder / "raw", tensors, true); });
    fs::remove(folder / "raw");
    measure(raw, [&] { write_raw(folder / "raw", tensors, false); });
    fs::remove(folder / "raw");
  }
  fs::remove_all(folder);
  bench::write_report(
      arguments,
      {{"rows",
        {{"memcpy", copy}, {"submit", stall}, {"write_checkpoint", write}, {"raw_synced", raw_synced}, {"raw", raw}}}});
}

}  // namespace

int main(int count, char** values) { return bench::run(count, values, run); }
