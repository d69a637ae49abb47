#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fulgur/core/contracts/loader.h"

namespace fulgur {

/// When a CombinedLoader's epoch ends.
enum class CombinedMode {
  max_size_cycle,  ///< ends with the longest loader; shorter ones start again, in a new order if they shuffle
  min_size,        ///< ends with the shortest loader
  max_size,        ///< ends with the longest loader; entries of finished loaders are missing
  sequential,      ///< runs one loader after the other
};

/// Several loaders as one. A batch contains the entries of one batch of each, named `loader.entry`; with `sequential`
/// it is an unchanged batch of one of them. The loaders must not be used elsewhere.
class FULGUR_API CombinedLoader : public Loader {
 public:
  using Named = std::pair<std::string, std::shared_ptr<Loader>>;
  /// Throws a ConfigError if there are no loaders, one is null, or two have the same name.
  explicit CombinedLoader(std::vector<Named> loaders, CombinedMode mode = CombinedMode::max_size_cycle);

  std::optional<int64_t> size() const override;
  /// Known only with `sequential`, since otherwise a batch's samples are those of its first entry.
  std::optional<int64_t> samples() const override;
  /// The batch size of the first loader.
  int64_t batch_size() const override { return parts_.front().loader->batch_size(); }
  void check_loaded(int64_t epoch) override;
  void start_epoch(int64_t epoch) override;
  void restart_epoch(int64_t epoch) override;
  bool next(Batch& out) override;
  void unread() override;
  void configure(uint64_t seed, int64_t rank, int64_t world_size) override;
  void share_evenly(UnevenShares rest) override;
  bool shuffles() const override;
  bool keep_order() override;
  /// Only nullopt, which each loader gets; a size would not say of which loader.
  bool set_batch_size(std::optional<int64_t> size) override;
  /// Each loader redistributes its remaining samples.
  StateTree reshard_state(const StateTree& state, int64_t from) const override;
  StateTree state() const override;
  void load_state(const StateTree& state) override;

 private:
  struct Part {
    std::string name;
    std::shared_ptr<Loader> loader;
    int64_t cycle = 0;   ///< number of restarts in this epoch
    bool ended = false;  ///< ended at least once in this epoch
  };
  bool next_sequential(Batch& out);
  bool next_together(Batch& out);
  /// How many batches of the epoch are done, if `parts` are the states of the loaders at the position of `state`.
  int64_t batches_done(const StateTree& state, const StateTree::List& parts) const;
  /// Collects the states of the parts.
  StateTree collect() const;
  /// Moves the parts to position `state` of the epoch, or to its start.
  void go_to(const StateTree* state);

  std::vector<Part> parts_;
  CombinedMode mode_;
  int64_t epoch_ = 0, batches_ = 0;
  size_t current_ = 0;  ///< of `sequential`
  bool over_ = false;
  bool stale_ = false;  ///< the parts are not at `position_`
  StateTree position_;  ///< after the batch that was returned last
  std::optional<StateTree> before_last_, loaded_;
  std::optional<int64_t> epoch_of_other_loader_;  // the loaded state is one of another kind of loader
};

}  // namespace fulgur
