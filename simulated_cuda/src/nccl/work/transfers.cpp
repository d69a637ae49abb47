#include "work/transfers.h"

#include <cstdlib>
#include <cstring>

#include "ranks/report.h"
#include "ranks/waiting.h"

namespace fulgur::simulated_nccl {
namespace {

/// A mismatch ends the process, unless SIMULATED_NCCL_MISMATCH=error requests a communicator error instead.
bool mismatch_is_error() {
  const char* text = std::getenv("SIMULATED_NCCL_MISMATCH");
  return text && std::strcmp(text, "error") == 0;
}

}  // namespace

void Transfers::send(const Operation& operation, int peer, const void* bytes, size_t size) {
  const bool collective = operation.is_collective();
  const auto statement = Statement::of(operation, communicator_.next_call(peer, true, collective));
  out_[{peer, collective}].push_back(
      {.statement = statement, .bytes = static_cast<char*>(const_cast<void*>(bytes)), .size = size});
}

void Transfers::receive(const Operation& operation, int peer, void* bytes, size_t size) {
  const bool collective = operation.is_collective();
  const auto statement = Statement::of(operation, communicator_.next_call(peer, false, collective));
  in_[{peer, collective}].push_back({.statement = statement, .bytes = static_cast<char*>(bytes), .size = size});
}

bool Transfers::run() {
  Waiting waiting([this] { return communicator_.place() + text(); });
  while (!out_.empty() || !in_.empty()) {
    if (communicator_.aborted() || mismatch_) return false;
    bool moved = false;
    for (auto& [line, queue] : out_) moved = advance_out(line, queue) || moved;
    for (auto& [line, queue] : in_) moved = advance_in(line, queue) || moved;
    std::erase_if(out_, [](const auto& line) { return line.second.empty(); });
    std::erase_if(in_, [](const auto& line) { return line.second.empty(); });
    if (moved)
      waiting.progress();
    else
      waiting.pause();
  }
  return true;
}

bool Transfers::advance_out(const Line& line, std::deque<Message>& queue) {
  Channel& channel = communicator_.segment().channel(communicator_.rank(), line.first, line.second);
  bool moved = false;
  while (!queue.empty()) {
    Message& message = queue.front();
    constexpr size_t kHead = sizeof(Statement);
    if (message.done < kHead)
      message.done +=
          channel.write(reinterpret_cast<const char*>(&message.statement) + message.done, kHead - message.done);
    const size_t before = message.done;
    if (message.done >= kHead)
      message.done += channel.write(message.bytes + (message.done - kHead), message.size - (message.done - kHead));
    moved = moved || message.done > before || message.done == kHead;
    if (message.done < kHead + message.size) return moved;
    queue.pop_front();
    moved = true;
  }
  return moved;
}

bool Transfers::advance_in(const Line& line, std::deque<Message>& queue) {
  Channel& channel = communicator_.segment().channel(line.first, communicator_.rank(), line.second);
  bool moved = false;
  while (!queue.empty()) {
    Message& message = queue.front();
    constexpr size_t kHead = sizeof(Statement);
    if (message.done < kHead) {
      const size_t got = channel.read(reinterpret_cast<char*>(&message.theirs) + message.done, kHead - message.done);
      message.done += got;
      moved = moved || got > 0;
      if (message.done < kHead) return moved;
      compare(message, line.first);
      if (mismatch_) return true;
    }
    const size_t got = channel.read(message.bytes + (message.done - kHead), message.size - (message.done - kHead));
    message.done += got;
    moved = moved || got > 0;
    if (message.done < kHead + message.size) return moved;
    queue.pop_front();
    moved = true;
  }
  return moved;
}

void Transfers::compare(const Message& message, int peer) {
  if (message.statement.agrees_with(message.theirs)) return;
  fail(ncclInvalidUsage, communicator_.place() + " calls " + message.statement.text() + ", but rank " +
                             std::to_string(peer) + " calls " + message.theirs.text() + " (call " +
                             std::to_string(message.statement.call) +
                             " between them). On a GPU, both would hang or get wrong results.");
  if (!mismatch_is_error()) std::abort();
  communicator_.set_error(ncclInvalidUsage);
  mismatch_ = true;
}

std::string Transfers::text() const {
  std::string text;
  for (const auto& [line, queue] : in_)
    text += "\n  waits for " + queue.front().statement.text() + " of rank " + std::to_string(line.first);
  for (const auto& [line, queue] : out_)
    text += "\n  has not finished " + queue.front().statement.text() + " to rank " + std::to_string(line.first);
  return text;
}

}  // namespace fulgur::simulated_nccl
