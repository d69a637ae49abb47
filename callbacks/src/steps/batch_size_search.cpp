#include "fulgur/callbacks/batch_size_search.h"

#include <algorithm>
#include <limits>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

BatchSizeSearch::BatchSizeSearch(const Options& options) : options_(options), next_(options.init) {
  const auto refuse = [](std::string_view option, std::string_view rule, const std::string& got) {
    throw ConfigError(cat("[callbacks.BatchSizeSearch] ", option, " must be ", rule, "; got ", got, ". Correct it."));
  };
  if (options.init < 1) refuse("init", "at least 1", cat(options.init));
  if (options.max_trials < 1) refuse("max_trials", "at least 1", cat(options.max_trials));
  if (!(options.margin >= 0 && options.margin < 1)) refuse("margin", "from 0 to below 1", cat(options.margin));
}

void BatchSizeSearch::note(BatchTrial result) {
  if (!next_) return;
  ++trials_;
  if (result == BatchTrial::fits) {
    fits_ = std::max(fits_.value_or(0), *next_);
  } else {
    (result == BatchTrial::out_of_memory ? memory_ends_ : data_ends_) = true;
    fails_ = std::min(fails_.value_or(std::numeric_limits<int64_t>::max()), *next_);
  }
  choose_next();
}

void BatchSizeSearch::choose_next() {
  const int64_t last = *next_;
  next_.reset();
  if (trials_ >= options_.max_trials) return;
  if (!fits_) {
    // The first size was too large.
    if (last > 1) next_ = last / 2;
  } else if (!fails_) {
    if (*fits_ <= std::numeric_limits<int64_t>::max() / 2) next_ = 2 * *fits_;
  } else if (options_.mode == BatchSizeMode::binsearch && *fails_ - *fits_ > 1) {
    next_ = *fits_ + (*fails_ - *fits_) / 2;
  }
}

std::optional<int64_t> BatchSizeSearch::suggestion() const {
  if (!fits_ || options_.mode == BatchSizeMode::power) return fits_;
  // Only memory needs a margin.
  if (!memory_ends_) return fits_;
  return std::max<int64_t>(static_cast<int64_t>(static_cast<double>(*fits_) * (1 - options_.margin)), 1);
}

std::string BatchSizeSearch::end_reason() const {
  if (next_) return "the search has not ended";
  if (!fits_ && memory_ends_)
    return trials_ >= options_.max_trials
               ? cat("max_trials (", options_.max_trials, ") is reached, and no batch has fitted")
               : "not even one sample fits";
  if (!fits_) return "the data has no batch of any size that was tried";
  const bool closed = fails_ && (options_.mode == BatchSizeMode::power || *fails_ - *fits_ <= 1);
  if (!closed && trials_ >= options_.max_trials) return cat("max_trials (", options_.max_trials, ") is reached");
  return memory_ends_
             ? cat("a batch of ", *fails_,
                   data_ends_ ? " does not fit, or the data has none of that size" : " does not fit into memory")
             : cat("the data has no batch of ", *fails_, " samples");
}

}  // namespace fulgur
