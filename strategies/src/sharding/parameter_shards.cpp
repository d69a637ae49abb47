#include "sharding/parameter_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "distributed/process_group_impl.h"
#include "distributed/same_ranks.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "sharding/storages.h"

namespace fulgur::detail {
namespace {

// A unit that is gathered so often in a pass, because operations read it and others by turns, is kept until its end.
constexpr int64_t kMostGathers = 2;

constexpr int64_t kStepsBetweenComparisons = 16;

constexpr const char* kSameOrder =
    "the steps of all ranks must read the layers in the same order, which must not depend on the rank or on the values "
    "of a batch. run.collectives().broadcast(choice, 0) gives all ranks the choice of the first";

c10::Storage unreadable(const c10::Storage& like, const FlatUnit& unit, const UnitNaming& naming) {
  const auto& parameters = unit.parameters();
  return unreadable_storage(
      like, cat("[strategies.", naming.strategy, "] '", escape_controls(parameters.front().name), "'",
                parameters.size() > 1 ? cat(" and ", parameters.size() - 1, " more of its unit are") : " is",
                " divided among the ranks here: only steps, backward and saves can read it. Call run.gather(parameter) "
                "on all ranks for a copy, or run.run_weights().whole_parameters() first for all of them",
                naming.instead.empty() ? "" : ", ", naming.instead, "."));
}

Tensor differ_in_bits(const Tensor& a, const Tensor& b) { return bits_of(a).ne(bits_of(b)).any(); }

}  // namespace

ParameterShards::ParameterShards(ShardGroups& groups, UnitNaming naming, bool notes_changes)
    : groups_(groups), naming_(std::move(naming)), notes_changes_(notes_changes) {}

c10::Storage ParameterShards::add(FlatUnit& flat) {
  const c10::Storage whole = flat.buffer().storage();
  Unit unit{.flat = &flat,
            .whole = whole,
            .away = unreadable(whole, flat, naming_),
            .bytes = {},
            .on_its_way = {},
            .versions = {}};
  unit.bytes = static_cast<int64_t>(whole.nbytes());
  unit_of_.emplace(unit.whole.unsafeGetStorageImpl(), units_.size());
  unit_of_.emplace(unit.away.unsafeGetStorageImpl(), units_.size());
  units_.push_back(std::move(unit));
  free(units_.back());
  return units_.back().away;
}

ParameterShards::~ParameterShards() { stop(); }

void ParameterShards::begin(Purpose purpose) {
  pass_ = forward;
  order_ = &orders_[purpose];
  if (!order_->now.empty()) order_->last = std::exchange(order_->now, {});
  follows_ = !order_->last.empty();
  for (Unit& unit : units_) unit.gathers = {};
}

void ParameterShards::begin_forward() {
  begin(training);
  watch();
}

void ParameterShards::begin_evaluation(bool computes, bool all_compute) {
  announcer_.reset();
  // A training step in manual optimization may compute several forwards, and has not ended without an optimizer's step.
  if (watches_) divide();
  computes_ = computes;
  if (!all_compute) {
    const Tensor flags = groups_.parts().gather_rows(at::tensor({computes ? 1 : 0}, at::kLong));
    if (flags.any().item<bool>() && !flags.all().item<bool>()) announcer_ = flags.flatten().argmax().item<int64_t>();
  }
  if (!computes && !announcer_) return;
  begin(evaluation);
  if (!computes) return follow();
  // Nothing is gathered in advance of a forward that others follow.
  follows_ = follows_ && !announcer_;
  watch();
}

void ParameterShards::end_evaluation() {
  if (computes_ && announcer_) agree(-1);
  announcer_.reset();
  if (std::exchange(computes_, true)) divide();
}

int64_t ParameterShards::agree(int64_t own) {
  const int64_t next = groups_.parts().broadcast(at::tensor({own}, at::kLong), *announcer_).item<int64_t>();
  if (computes_ && next != own)
    throw DistributedError(cat(
        "[strategies.", naming_.strategy, "] the ranks read other units in the same batch of an evaluation: this one ",
        own < 0 ? std::string("has ended its step")
                : cat("'", escape_controls(units_[static_cast<size_t>(own)].flat->parameters().front().name), "'"),
        ". The steps of all ranks must read the parameters in the same order."));
  return next;
}

void ParameterShards::follow() {
  for (int64_t next = agree(-1); next >= 0; next = agree(-1)) {
    const auto index = static_cast<size_t>(next);
    Unit& unit = units_[index];
    if (unit.is_there) continue;
    gather(index);
    arrive(unit);
    note(index);
    if (held_ == 0) free(unit);
  }
}

void ParameterShards::begin_backward() {
  if (!watches_) return;
  // The backward of another order would wait for the other ranks, until a timeout.
  if (first_backwards_ > 0) {
    --first_backwards_;
    check_order();
  }
  if (!order_->now.empty()) free_all_but({order_->now.back()}, /*kept_too=*/true);
  pass_ = backward;
  // What code has written to the rest until now, also through `data()`, stays when it is freed.
  for (Unit& unit : units_)
    if (unit.is_there) unit.versions.clear();
}

void ParameterShards::end_backward(bool follows) {
  if (!follows) return divide();
  free_all();
  pass_ = forward;
}

void ParameterShards::before_step() { free_all(); }

void ParameterShards::divide() {
  stop();
  pass_ = forward;
  free_all();
}

Tensor ParameterShards::copy_of(size_t unit, size_t index) {
  const at::NoGradGuard no_grad;
  const OperationWatch::Unseen unseen;
  return units_[unit].flat->whole(index, whole(unit)).clone();
}

Tensor ParameterShards::whole(size_t unit) {
  const at::NoGradGuard no_grad;
  const OperationWatch::Unseen unseen;
  note_exchange(units_.size() + unit);
  const Unit& from = units_[unit];
  // What was written to a unit that is whole now is not in the part yet.
  const Tensor own = from.is_there ? from.flat->own_part() : from.flat->kept_part();
  const Tensor buffer = at::empty({from.flat->numel()}, own.options());
  run_exchange(groups_.whole(), naming_.strategy.c_str(), [&] { groups_.parts().start_gather(buffer, own)->wait(); });
  return buffer;
}

void ParameterShards::for_each_whole(const std::function<void(const FlatUnit&)>& use) {
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    const bool was_there = unit.is_there;
    if (!was_there) {
      start(i);
      arrive(unit);
    }
    use(*unit.flat);
    if (!was_there) free(unit);
  }
}

void ParameterShards::pause() {
  is_paused_ = is_paused_ || watches_;
  divide();
}

void ParameterShards::resume() {
  if (std::exchange(is_paused_, false) && !watches_) watch();
}

bool ParameterShards::has_changed() const { return changed_.defined() && changed_.item<bool>(); }

void ParameterShards::hold() {
  ++held_;
  gather_all();
}

void ParameterShards::release() {
  if (--held_ == 0) free_all(/*was_held=*/true);
}

void ParameterShards::give_back(at::Device device) {
  stop();
  held_ = 0;
  pass_ = forward;
  free_all();
  for (size_t i = 0; i < units_.size(); ++i) {
    start(i);
    arrive(units_[i]);
    units_[i].flat->release(device);
  }
}

void ParameterShards::gather_all() {
  for (size_t i = 0; i < units_.size(); ++i)
    if (!units_[i].is_there && !units_[i].on_its_way) start(i);
  for (Unit& unit : units_)
    if (!unit.is_there) arrive(unit);
}

bool ParameterShards::holds(const Tensor& parameter) const {
  return unit_of_.contains(parameter.storage().unsafeGetStorageImpl());
}

void ParameterShards::check_copies() {
  C10dCollectives* const copies = groups_.copies();
  if (!copies || units_.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> sums;
  for (const Unit& unit : units_) sums.push_back(checksum(unit.flat->kept_part()));
  const Tensor own = at::stack(sums).cpu();
  const Tensor all = copies->all_gather_same(own, /*with_gradients=*/false);
  std::string different;
  for (size_t i = 0; i < units_.size() && different.empty(); ++i) {
    const Tensor of_unit = all.select(1, static_cast<int64_t>(i));
    if (!of_unit.eq(of_unit[0]).all().item<bool>()) different = units_[i].flat->parameters().front().name;
  }
  // Ranks with equal parts must learn of it, too.
  const auto found = groups_.whole().collectives().gather_text(different);
  for (size_t rank = 0; rank < found.size(); ++rank)
    if (!found[rank].empty())
      throw DistributedError(
          cat("[strategies.fsdp] the copies of the weights differ: rank ", static_cast<int64_t>(rank),
              " has another part of the unit of '", escape_controls(found[rank]),
              "' than a rank with a copy of it. Code that changes weights must do so on all ranks."));
}

void ParameterShards::note_exchange(size_t what) {
  if (recorded_) return recorded_->exchanges.push_back(what);
  // FNV-1a, without the bit that a negative number needs.
  constexpr uint64_t kPrime = 1099511628211, kMask = std::numeric_limits<int64_t>::max();
  exchanges_ = static_cast<int64_t>(((static_cast<uint64_t>(exchanges_) ^ (what + 1)) * kPrime) & kMask);
}

void ParameterShards::compare_order() {
  if (--until_comparison_ > 0 || groups_.parts().world_size() == 1) return;
  until_comparison_ = kStepsBetweenComparisons;
  start_comparison();
}

void ParameterShards::check_order() {
  if (groups_.parts().world_size() == 1) return;
  const OperationWatch::Unseen unseen;
  start_comparison();
  settle_order();
}

void ParameterShards::begin_recording() {
  recorded_ = RecordedStep{.exchanges = {}, .orders = orders_, .were_kept = {}, .were_there = {}};
  for (const Unit& unit : units_) {
    recorded_->were_kept.push_back(unit.is_kept);
    recorded_->were_there.push_back(unit.is_there);
  }
}

std::vector<size_t> ParameterShards::end_recording() { return std::exchange(recorded_, std::nullopt)->exchanges; }

void ParameterShards::drop_recording() noexcept {
  stop();
  pass_ = forward;
  RecordedStep before = *std::exchange(recorded_, std::nullopt);
  orders_ = std::move(before.orders);
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    unit.is_kept = before.were_kept[i];
    if (unit.on_its_way || unit.is_there != before.were_there[i]) put_away(unit);
    unit.on_its_way.reset();
  }
}

void ParameterShards::note_launch(const std::vector<size_t>& exchanges) {
  for (const size_t what : exchanges) note_exchange(what);
}

void ParameterShards::start_comparison() {
  settle_order();
  compared_ = groups_.parts().start_max({exchanges_, -exchanges_});
}

void ParameterShards::settle_order() {
  if (!compared_) return;
  const std::vector<int64_t> most_and_least = std::exchange(compared_, nullptr)->take();
  if (most_and_least[0] == -most_and_least[1]) return;
  // Those of the last steps may be equal again.
  std::vector<std::string> own{cat(groups_.whole().place().rank)};
  for (const size_t index : order_->now.empty() ? order_->last : order_->now)
    own.push_back(escape_controls(units_[index].flat->parameters().front().name));
  std::string example;
  const std::vector<std::string> texts = groups_.parts().gather_text(join(own, "\n"));
  const std::vector<std::string> first = split_text(texts[0], '\n');
  for (size_t i = 1; i < texts.size() && example.empty(); ++i) {
    const std::vector<std::string> other = split_text(texts[i], '\n');
    const auto [a, b] = std::mismatch(first.begin() + 1, first.end(), other.begin() + 1, other.end());
    const auto name_of = [](const auto& place, const std::vector<std::string>& of) {
      return place == of.end() ? std::string("nothing") : cat("'", *place, "'");
    };
    if (a != first.end() || b != other.end())
      example = cat(": rank ", first[0], " has read ", name_of(a, first), ", and rank ", other[0], " ",
                    name_of(b, other), " in its place");
  }
  throw DistributedError(cat("[strategies.", naming_.strategy,
                             "] ranks have gathered divided parameters in different orders", example,
                             ". What they have computed since then is wrong: ", kSameOrder,
                             naming_.instead.empty() ? "" : ", ", naming_.instead, "."));
}

void ParameterShards::abandon() noexcept {
  stop();
  compared_.reset();
  for (Unit& unit : units_) unit.on_its_way.reset();
}

void ParameterShards::watch() {
  if (!watch_) watch_.emplace([this](at::TensorList tensors) { use(tensors); });
  watch_->start();
  watches_ = true;
}

void ParameterShards::stop() noexcept {
  // Another object may watch from now on.
  if (std::exchange(watches_, false)) watch_.reset();
}

void ParameterShards::use(at::TensorList tensors) {
  std::vector<size_t> wanted;
  bool are_there = true;
  for (const Tensor& tensor : tensors) {
    if (!tensor.has_storage()) continue;
    const auto found = unit_of_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == unit_of_.end()) continue;
    wanted.push_back(found->second);
    are_there = are_there && units_[found->second].is_there;
  }
  if (wanted.empty()) return;
  if (!are_there) {
    free_all_but(wanted, /*kept_too=*/false);
    for (const size_t index : wanted) {
      Unit& unit = units_[index];
      if (unit.is_there) continue;
      if (!unit.on_its_way) start(index);
      arrive(unit);
      note(index);
    }
    start_next();
  }
  // Copies of a parameter that was away, such as those that graphs keep.
  for (const Tensor& tensor : tensors) {
    if (!tensor.has_storage()) continue;
    const auto found = unit_of_.find(tensor.storage().unsafeGetStorageImpl());
    if (found != unit_of_.end() &&
        tensor.storage().unsafeGetStorageImpl() != units_[found->second].whole.unsafeGetStorageImpl())
      set_storage(tensor, units_[found->second].whole);
  }
}

void ParameterShards::start(size_t index) {
  // The exchange reads the unit's memory, and must not gather it for that.
  const OperationWatch::Unseen unseen;
  if (announcer_) agree(static_cast<int64_t>(index));
  gather(index);
}

void ParameterShards::gather(size_t index) {
  Unit& unit = units_[index];
  note_exchange(index);
  fill_storage(unit.whole, static_cast<size_t>(unit.bytes));
  run_exchange(groups_.whole(), naming_.strategy.c_str(),
               [&] { unit.on_its_way = groups_.parts().start_gather(unit.flat->buffer(), unit.flat->kept_part()); });
}

void ParameterShards::arrive(Unit& unit) {
  try {
    run_exchange(groups_.whole(), naming_.strategy.c_str(), [&] { unit.on_its_way->wait(); });
  } catch (const DistributedError& error) {
    throw DistributedError(cat(error.what(), "\n(this rank gathers the unit of '",
                               escape_controls(unit.flat->parameters().front().name),
                               "'; if no rank has failed, another one reads other layers: ", kSameOrder, ")"));
  }
  unit.on_its_way.reset();
  unit.is_there = true;
  unit.versions.clear();
  for (const NamedParameter& parameter : unit.flat->parameters()) {
    set_storage(parameter.value, unit.whole);
    unit.versions.push_back(parameter.value._version());
  }
}

void ParameterShards::free(Unit& unit, bool was_held) {
  const auto& parameters = unit.flat->parameters();
  // A forward, or code that has asked for whole parameters, may write through `data()`, which changes no version.
  bool is_written = unit.versions.empty() || pass_ == forward || was_held;
  for (size_t i = 0; i < parameters.size() && !is_written; ++i)
    is_written = parameters[i].value._version() != unit.versions[i];
  if (is_written) {
    const at::NoGradGuard no_grad;
    const Tensor own = unit.flat->own_part();
    // The first time, the part is a copy of them.
    if (notes_changes_ && !unit.versions.empty()) {
      const Tensor differ = differ_in_bits(unit.flat->kept_part(), own);
      changed_ = changed_.defined() ? changed_.logical_or(differ) : differ;
    }
    unit.flat->kept_part().copy_(own);
  }
  put_away(unit);
}

void ParameterShards::put_away(Unit& unit) {
  unit.is_there = false;
  for (const NamedParameter& parameter : unit.flat->parameters()) set_storage(parameter.value, unit.away);
  clear_storage(unit.whole);
}

void ParameterShards::free_all(bool was_held) {
  if (held_ > 0) return;
  // The step may have taken another course than the last one.
  for (Unit& unit : units_)
    if (unit.on_its_way) arrive(unit);
  free_all_but({}, /*kept_too=*/true, was_held);
}

void ParameterShards::free_all_but(const std::vector<size_t>& wanted, bool kept_too, bool was_held) {
  if (held_ > 0) return;
  for (size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    if (std::ranges::find(wanted, i) != wanted.end()) continue;
    if (unit.is_there && (kept_too || !unit.is_kept[pass_])) free(unit, was_held);
  }
}

void ParameterShards::note(size_t index) {
  Unit& unit = units_[index];
  if (++unit.gathers[pass_] > kMostGathers) unit.is_kept[pass_] = true;
  std::vector<size_t>& now = order_->now;
  follows_ = follows_ && now.size() < order_->last.size() && order_->last[now.size()] == index;
  now.push_back(index);
}

void ParameterShards::start_next() {
  if (!follows_ || order_->now.size() == order_->last.size()) return;
  const size_t next = order_->last[order_->now.size()];
  if (!units_[next].is_there && !units_[next].on_its_way) start(next);
}

}  // namespace fulgur::detail
