#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fulgur/core/export.h"
#include "fulgur/core/options/fields.h"
#include "fulgur/core/options/interval.h"

namespace fulgur {

/// Selects the steps or epochs of a fit in which a callback is called. It applies to the hooks of training epochs,
/// training batches and validations, and to what the callback decides about steps (`StepJudge`). All other hooks are
/// always called, such as `setup`, `on_train_start`, `on_exception` and those of checkpoints, and so are all hooks of
/// validate, test and predict.
///
/// Steps and epochs are counted from 1, over the whole run. A batch belongs to the step to which its gradients
/// contribute; a validation and the end of an epoch belong to the last step before them. The sanity check belongs to
/// step 0 of epoch 0. Each option is a whole number of steps (`100st`) or epochs (`2ep`); all of them must hold.
struct FULGUR_API CallbackFilter {
  std::optional<Interval> every;  ///< only steps or epochs whose number is a multiple of this
  std::optional<Interval> from;   ///< not before this step or epoch
  std::optional<Interval> until;  ///< not after this step or epoch
  std::optional<Interval> once;   ///< only in this step or epoch

  struct Position {
    int64_t step = 0;
    int64_t epoch = 0;
  };

  void fields(Fields& f);
  bool is_set() const { return every || from || until || once; }
  bool passes(const Position& position) const;
  /// Whether single steps are selected (`every: 100st`, `once: 7st`). A callback that logs only where a row of metrics
  /// is due should then log whenever it is called: those steps may have no row.
  bool selects_steps() const;
  /// Whether nothing passes up to this position, since `every`, `from` or `once` lies beyond it.
  bool begins_after(const Position& last) const;
  /// `every: 100st, from: 2ep`.
  std::string text() const;
  /// Throws a ConfigError if a number is not whole or below 1, if a unit is neither steps nor epochs, or if no step or
  /// epoch can pass.
  void check() const;
};

}  // namespace fulgur
