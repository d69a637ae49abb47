#pragma once

#include <deque>
#include <map>
#include <utility>

#include "ranks/communicator.h"
#include "work/operation.h"

namespace fulgur::simulated_nccl {

/// The messages of a piece of work: for each pair of ranks a queue of messages to send and one of messages to receive,
/// which all make progress as far as possible.
class Transfers {
 public:
  explicit Transfers(Communicator& communicator) : communicator_(communicator) {}

  void send(const Operation& operation, int peer, const void* bytes, size_t size);
  void receive(const Operation& operation, int peer, void* bytes, size_t size);
  /// Runs until all messages have arrived. Returns false if the communicator was aborted, or if the ranks' calls
  /// differ.
  bool run();

 private:
  struct Message {
    Statement statement = {}, theirs = {};
    char* bytes = nullptr;
    size_t size = 0, done = 0;  ///< bytes that were transferred, of the statement and then of the data
  };
  /// A rank, and whether it is for collectives.
  using Line = std::pair<int, bool>;

  bool advance_out(const Line& line, std::deque<Message>& queue);
  bool advance_in(const Line& line, std::deque<Message>& queue);
  void compare(const Message& message, int peer);
  std::string text() const;

  Communicator& communicator_;
  std::map<Line, std::deque<Message>> out_, in_;
  bool mismatch_ = false;
};

}  // namespace fulgur::simulated_nccl
