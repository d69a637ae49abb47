#include "reading/stream_reader.h"

#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <deque>

#include "fulgur/core/system/start_thread.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "reading/current_device.h"
#include "reading/sample_error.h"
#include "reading/single_thread_guard.h"

namespace fulgur {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

StreamItem read_stream(const StreamRecipe& recipe, int64_t batch) {
  StreamItem item;
  try {
    try {
      item.batch = recipe.dataset->next(recipe.batch_size, recipe.context);
      if (item.batch && recipe.drop_last && item.batch->size() < recipe.batch_size) item.batch.reset();
      if (item.batch) item.state_after = recipe.dataset->state();
    } catch (...) {
      item.batch.reset();
      throw_in(std::current_exception(), "IterableLoader", cat("batch ", batch, " of the ", recipe.name, " set"));
    }
  } catch (...) {
    item.error = std::current_exception();
  }
  return item;
}

// Shared by the thread and the reader: stuck in the dataset, the thread may outlive the reader.
struct StreamReader::Shared {
  StreamRecipe recipe;
  int64_t batch = 0;  ///< being read
  size_t most = 1;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<StreamItem> items;
  Clock::time_point since;
  bool stop = false, alive = true;
  const std::optional<at::Device> device =
      current_device();  ///< the run's, for datasets that create tensors without a device index

  void run() {
    const SingleThreadGuard one_thread;
    const c10::OptionalDeviceGuard guard(device);
    std::unique_lock lock(mutex);
    for (bool more = true; more;) {
      changed.wait(lock, [this] { return stop || items.size() < most; });
      if (stop) break;
      since = Clock::now();
      lock.unlock();
      StreamItem item = read_stream(recipe, batch);
      more = item.batch.has_value();
      lock.lock();
      ++batch;
      items.push_back(std::move(item));
      changed.notify_all();
    }
    alive = false;
    changed.notify_all();
  }

  std::string reading() const {
    return cat("batch ", batch, ", being read for ", format_fixed(Seconds(Clock::now() - since).count(), 1), " s");
  }
};

StreamReader::StreamReader(StreamRecipe recipe, int64_t first, size_t most, ReadTimeouts patience)
    : shared_(std::make_shared<Shared>()), patience_(patience) {
  shared_->recipe = std::move(recipe);
  shared_->batch = first;
  shared_->most = most;
  shared_->since = Clock::now();
  thread_ = start_thread("data.IterableLoader", "Set num_workers to 0.", [shared = shared_] { shared->run(); });
  pthread_setname_np(thread_.native_handle(), "fulgur-data");
}

StreamReader::~StreamReader() {
  {
    std::unique_lock lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
    if (stuck_) shared_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return !shared_->alive; });
    stuck_ = stuck_ && shared_->alive;
  }
  if (stuck_)
    thread_.detach();
  else
    thread_.join();
}

StreamItem StreamReader::take() {
  std::unique_lock lock(shared_->mutex);
  Shared& s = *shared_;
  if (s.items.empty()) {
    try {
      wait_for_batch(lock, s.changed, patience_,
                     {.loader = "IterableLoader",
                      .set = s.recipe.name,
                      .ready = [&s] { return !s.items.empty(); },
                      .what = [&s] { return s.reading(); }});
    } catch (...) {
      stuck_ = true;
      throw;
    }
  }
  StreamItem item = std::move(s.items.front());
  s.items.pop_front();
  lock.unlock();
  s.changed.notify_all();
  return item;
}

void StreamReader::stop() {
  std::unique_lock lock(shared_->mutex);
  Shared& s = *shared_;
  s.stop = true;
  s.changed.notify_all();
  const auto ended = [&s] { return !s.alive; };
  if (patience_.timeout_s <= 0) {
    s.changed.wait(lock, ended);
  } else if (!s.changed.wait_for(lock, Seconds(patience_.timeout_s), ended)) {
    stuck_ = true;
    throw DataError(
        cat("[data.IterableLoader] a stream can be repositioned only while nothing is being read from it; the ",
            s.recipe.name, " set is at ", s.reading(), ", which is more than timeout_s, ", patience_.timeout_s,
            " s. Find out what holds up the dataset, or raise timeout_s."));
  }
}

}  // namespace fulgur
