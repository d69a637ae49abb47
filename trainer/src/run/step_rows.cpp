#include "run/step_rows.h"

#include <c10/util/ScopeExit.h>

#include <exception>

#include "fulgur/core/text/log.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

void warn_of_small_scale(const Metrics& values) {
  for (const auto& [name, value] : values)
    if (name == "loss_scale" && value < 1)
      log::warn(
          "trainer.small_loss_scale",
          cat("the loss scale has fallen to ", value,
              ": the gradients overflow however small the loss is scaled. Is the learning rate too high, or does the "
              "model produce NaN or infinity itself? trainer.debug: true names the place; bf16-mixed needs no scale"));
}

}  // namespace

void StepRows::end_batch(RunningStage stage, bool force) {
  bool due = force;
  if (stage == RunningStage::train) {
    due |= run_.is_logging_step();
    if (due) {
      const ScopeGuard guard(run_, LogScope::train_step);
      finite_.log_counters();
      run_.logged_step = run_.counters.global_step;
    }
  } else {
    // Ranks may run different numbers of evaluation batches: they synchronize only at the end.
    const int64_t every = run_.options.log_every_n_steps;
    due |= every > 0 && run_.validation.batches % every == 0 && run_.world_size() == 1;
  }
  advance();
  begin_media(std::exchange(media_of_batch_, {}), /*may_wait=*/false);
  if (due) begin(stage);
  if (force) settle();
}

void StepRows::begin(RunningStage stage) {
  const BatchRange batches = stage == RunningStage::train ? finite_.close_window() : BatchRange();
  rows_.push_back(
      {.window = logs_.close_step_window(stage), .stage = stage, .place = row_place(run_), .batches = batches});
  if (!run_.strategy->device().is_cuda()) settle();
}

void StepRows::add_media(const MediaRecord& record) {
  LateMedia media(record);
  if (run_.position.in_batch) return media_of_batch_.push_back(std::move(media));
  std::vector<LateMedia> one;
  one.push_back(std::move(media));
  // Only a batch is followed by others, which write the row later.
  begin_media(std::move(one), /*may_wait=*/run_.scope != LogScope::evaluation_step);
}

void StepRows::begin_media(std::vector<LateMedia> media, bool may_wait) {
  if (media.empty()) return;
  const RowPlace place = row_place(run_);
  if (!may_wait && run_.strategy->device().is_cuda())
    return rows_.push_back({.window = {},
                            .stage = run_.position.stage,
                            .place = place,
                            .batches = {},
                            .forgiven = true,
                            .media = std::move(media)});
  // Pending rows are not written: ranks without media would miss their exchange.
  for (LateMedia& one : media) send_media(run_, one.take(), place);
}

void StepRows::advance() {
  for (Row& row : rows_) ++row.age;
  while (!rows_.empty() && rows_.front().age >= kLater) {
    write(rows_.front());
    Row row = std::move(rows_.front());
    rows_.pop_front();
    judge(row);
  }
}

void StepRows::settle(bool and_act) {
  // A batch whose epoch was skipped does not end.
  if (!run_.position.in_batch) begin_media(std::exchange(media_of_batch_, {}), /*may_wait=*/true);
  std::exception_ptr error;  // from the first row that cannot be written; the others are written
  for (Row& row : rows_) {
    try {
      write(row);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  while (and_act && !rows_.empty()) {
    const Row row = std::move(rows_.front());
    rows_.pop_front();
    judge(row);
  }
}

void StepRows::forgive() {
  for (Row& row : rows_) row.forgiven = true;
}

void StepRows::when_written(std::function<void()> then) {
  if (rows_.empty() || rows_.back().written) return then();
  rows_.back().then = std::move(then);
}

void StepRows::write(Row& row) {
  if (std::exchange(row.written, true)) return;
  // Done even if a logger throws: a save may be waiting for this row.
  const auto then = c10::make_scope_exit([&] {
    if (const auto call = std::exchange(row.then, {})) call();
  });
  if (!row.media.empty()) {
    for (LateMedia& media : row.media) send_media(run_, media.take(), row.place);
    return row.media.clear();
  }
  row.finite = row.window.finite();
  Metrics values = logs_.take(std::move(row.window), run_.failed_alone ? nullptr : &run_.collectives());
  if (row.stage == RunningStage::train) {
    warn_of_small_scale(values);
    for (const auto& [name, value] : values)
      if (name == "skipped_steps") finite_.check_skipped_steps(static_cast<int64_t>(value), row.batches);
  }
  send_metrics(run_, std::move(values), row.place);
}

void StepRows::judge(const Row& row) {
  if (row.stage != RunningStage::train || row.forgiven || run_.failed_alone) return;
  act_(finite_.judge(row.finite, row.batches));
}

}  // namespace fulgur::detail
