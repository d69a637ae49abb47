#include "work/collectives.h"

#include <cstring>
#include <deque>

#include "work/transfers.h"

namespace fulgur::simulated_nccl {
namespace {

const char* at(const void* begin, size_t bytes) { return static_cast<const char*>(begin) + bytes; }
char* at(void* begin, size_t bytes) { return static_cast<char*>(begin) + bytes; }

/// The second part of an operation, after its messages have arrived: the reduction of the ranks' data.
struct Gathered {
  const Operation* operation = nullptr;
  std::vector<std::vector<char>> buffers = {};
  std::vector<const void*> by_rank = {};
};

class Computation {
 public:
  explicit Computation(Communicator& communicator) : communicator_(communicator), transfers_(communicator) {}

  void add(const Operation& operation) {
    if (operation.kind == Kind::send)
      transfers_.send(operation, operation.root, operation.from, operation.bytes());
    else if (operation.kind == Kind::receive)
      transfers_.receive(operation, operation.root, operation.to, operation.bytes());
    else
      add_collective(operation);
  }

  void run() {
    if (!transfers_.run()) return;
    for (const auto& [to, from, size] : copies_)
      if (to != from && size > 0) std::memmove(to, from, size);
    for (const Gathered& gathered : gathered_)
      reduce(gathered.operation->to, gathered.by_rank, gathered.operation->count, gathered.operation->type,
             gathered.operation->reduction.op);
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t size;
  };

  bool receives(const Operation& o) const {
    return (o.kind != Kind::reduce && o.kind != Kind::gather) || o.root == communicator_.rank();
  }

  /// The start and the size of the data that this rank sends to `peer`; the size is 0 if it sends only its statement.
  std::pair<const void*, size_t> out(const Operation& o, const void* from, int peer) const {
    const bool root = o.root == communicator_.rank();
    switch (o.kind) {
      case Kind::reduce:
      case Kind::gather:
        return {from, peer == o.root ? o.bytes() : 0};
      case Kind::broadcast:
        return {from, root ? o.bytes() : 0};
      case Kind::scatter:
        return {root ? at(from, o.bytes() * static_cast<size_t>(peer)) : nullptr, root ? o.bytes() : 0};
      case Kind::reduce_scatter:
      case Kind::all_to_all:
        return {at(from, o.bytes() * static_cast<size_t>(peer)), o.bytes()};
      default:
        return {from, o.bytes()};
    }
  }

  void add_collective(const Operation& o) {
    const int ranks = communicator_.world_size(), me = communicator_.rank();
    const void* from = o.from;
    if (o.reduces() && o.reduction.premultiplied) {
      const size_t count = o.kind == Kind::reduce_scatter ? o.count * static_cast<size_t>(ranks) : o.count;
      auto& scaled = scaled_.emplace_back(count * size_of(o.type));
      premultiply(scaled.data(), from, count, o.type, o.reduction);
      from = scaled.data();
    }
    Gathered* gathered = o.reduces() && receives(o) ? &gathered_.emplace_back(Gathered{.operation = &o}) : nullptr;
    for (int peer = 0; peer < ranks; ++peer) {
      const auto [bytes, size] = out(o, from, peer);
      if (gathered) {
        auto& buffer = gathered->buffers.emplace_back(peer == me ? 0 : o.bytes());
        gathered->by_rank.push_back(peer == me ? bytes : buffer.data());
      }
      if (peer == me) {
        if (!o.reduces() && receives(o) && size > 0) copies_.push_back({target(o, peer), bytes, size});
        continue;
      }
      transfers_.send(o, peer, bytes, size);
      const bool comes = (o.kind == Kind::broadcast || o.kind == Kind::scatter) ? peer == o.root : receives(o);
      transfers_.receive(o, peer,
                         gathered ? gathered->buffers.back().data()
                         : comes  ? target(o, peer)
                                  : nullptr,
                         comes ? o.bytes() : 0);
    }
  }

  /// Where data sent by a rank is stored.
  void* target(const Operation& o, int peer) const {
    const bool blocks = o.kind == Kind::all_gather || o.kind == Kind::all_to_all || o.kind == Kind::gather;
    return blocks ? at(o.to, o.bytes() * static_cast<size_t>(peer)) : o.to;
  }

  Communicator& communicator_;
  Transfers transfers_;
  std::deque<Gathered> gathered_;  // a deque, since its elements must not move
  std::deque<std::vector<char>> scaled_;
  std::vector<Copy> copies_;
};

}  // namespace

void compute(Communicator& communicator, const std::vector<Operation>& operations) {
  Computation computation(communicator);
  for (const Operation& operation : operations) computation.add(operation);
  computation.run();
}

}  // namespace fulgur::simulated_nccl
