#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "fulgur/core/contracts/dataset.h"
#include "reading/read_timeouts.h"

namespace fulgur {

/// A stream and how batches are made from it.
struct StreamRecipe {
  std::shared_ptr<IterableDataset> dataset;
  int64_t batch_size = 1;
  bool drop_last = false;
  SampleContext context = {};
  std::string name = {};  ///< of the set, for messages
};

/// The result of one read: a batch with the dataset's state after it, the end (no batch), or an error.
struct StreamItem {
  std::optional<Batch> batch;
  StateTree state_after;
  std::exception_ptr error;
};

/// Reads batch number `batch` of the epoch. Errors name it.
StreamItem read_stream(const StreamRecipe& recipe, int64_t batch);

/// A thread that reads a stream ahead until the end, an error or its destruction.
class StreamReader {
 public:
  /// Continues with batch number `first`, at most `most` batches ahead.
  StreamReader(StreamRecipe recipe, int64_t first, size_t most, ReadTimeouts patience);
  /// Ends the thread after its current read. One that timed out ends by itself.
  ~StreamReader();
  StreamReader(const StreamReader&) = delete;
  StreamReader& operator=(const StreamReader&) = delete;

  /// Waits for the next item. Throws a DataError after the timeout; the item is then still to come.
  StreamItem take();
  /// Ends the thread: after that the caller may use the stream. Throws a DataError if it is still in the dataset after
  /// the timeout.
  void stop();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  ReadTimeouts patience_;
  bool stuck_ = false;
  std::thread thread_;
};

}  // namespace fulgur
