#include "net.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <limits>

namespace fulgur::test {

void DifferentialNet::Options::fields(Fields& f) {
  f(hidden, "hidden", "Width of the hidden layers.").at_least(1);
  f(norm, "norm", "Batch norm after the first layer.");
  f(tied, "tied", "The two hidden layers share their weight.");
  f(unused, "unused", "A parameter that no loss depends on.");
  f(dropout, "dropout", "Share of hidden values set to zero.");
  f(manual, "manual", "Manual optimization.");
  f(manual_steps, "manual_steps", "Batches of a step in manual optimization.").at_least(1);
  f(no_loss_every, "no_loss_every", "About one batch in so many has no loss; 0: none.");
  f(nan_every, "nan_every", "About one batch in so many has a loss that is NaN; 0: none.");
  f(average, "average", "A moving average of the inputs is taken from them.");
  f(nan_is_constant, "nan_is_constant", "A loss that is NaN has finite gradients.");
  f(nan_from, "nan_from", "From this step on each loss is NaN; -1: none.");
  f(same_names, "same_names", "Training and validation both log a metric named loss.");
  f(step_only, "step_only", "Logs step_loss in steps alone.");
  f(sums, "sums", "Sums up its validation in members.");
  f(skip_epoch, "skip_epoch", "The rest of the epoch is left out from there on: [epoch, batch].");
}

DifferentialNet::DifferentialNet(const Options& options)
    : options_(options), first_(3, options.hidden), norm_(nn::BatchNormOptions(options.hidden)) {
  register_module("first", first_);
  if (options.norm) register_module("norm", norm_);
  middle_ = nn::register_placed<torch::nn::LinearImpl>(*this, "middle", options.hidden, options.hidden);
  if (options.tied) {
    auto again = register_module("again", torch::nn::Linear(options.hidden, options.hidden));
    again->weight = middle_->weight;
    tie_parameters(*this, "middle.weight", "again.weight");
  }
  last_ = nn::register_placed<torch::nn::LinearImpl>(*this, "last", options.hidden, int64_t{2});
  if (options.average) average_ = register_buffer("average", at::zeros({3}));
  if (options.unused) unused_ = register_parameter("unused", at::full({3}, 1.0));
}

bool is_hit(int64_t every, int64_t epoch, int64_t batch_idx) {
  if (every == 0) return false;
  const uint64_t place = static_cast<uint64_t>(epoch) * 1000003 + static_cast<uint64_t>(batch_idx) + 1;
  return (place * 0x9E3779B97F4A7C15ULL >> 33) % static_cast<uint64_t>(every) == 0;
}

Tensor DifferentialNet::forward(const Tensor& x) {
  if (average_.defined() && is_training()) {
    const at::NoGradGuard no_grad;
    average_.mul_(0.75).add_(x.detach().mean(0).to(average_.scalar_type()), 0.25);
  }
  Tensor h = first_(average_.defined() ? x - average_.detach().clone() : x);
  if (options_.norm) h = norm_(h);
  h = at::tanh(h);
  if (options_.dropout > 0) h = at::dropout(h, options_.dropout, is_training());
  h = at::tanh(middle_(h));
  if (options_.tied) h = at::tanh(named_children()["again"]->as<torch::nn::Linear>()->forward(h));
  return last_(h);
}

Tensor DifferentialNet::error(const Batch& batch) {
  Tensor sum;
  int64_t parts = 0;
  for (const auto& [name, value] : batch) {
    if (!name.ends_with('x')) continue;
    const Tensor& x = std::get<Tensor>(value);
    const Tensor& y = batch[name.substr(0, name.size() - 1) + "y"];
    const at::ScalarType dtype = first_->weight.scalar_type();
    const Tensor out = forward(x.to(dtype));
    const Tensor part = at::mse_loss(out, y.to(out.device(), dtype));
    sum = sum.defined() ? sum + part : part;
    ++parts;
  }
  return parts > 1 ? sum / static_cast<double>(parts) : sum;
}

Tensor DifferentialNet::loss(const Batch& batch, int64_t epoch, int64_t batch_idx) {
  if (is_hit(options_.no_loss_every, epoch, batch_idx)) return {};
  return with_nan(error(batch), epoch, batch_idx);
}

Tensor DifferentialNet::with_nan(Tensor loss, int64_t epoch, int64_t batch_idx) {
  const bool for_good = options_.nan_from >= 0 && in_run() && global_step() >= options_.nan_from;
  if (for_good || is_hit(options_.nan_every, epoch + 17, batch_idx)) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    loss = options_.nan_is_constant ? loss + nan : loss * nan;
  }
  return loss;
}

bool DifferentialNet::skips_epoch(int64_t epoch, int64_t batch_idx) const {
  return options_.skip_epoch.size() == 2 && options_.skip_epoch[0] == epoch && options_.skip_epoch[1] == batch_idx;
}

int DifferentialNet::on_train_batch_start(const Batch&, int64_t batch_idx) {
  return skips_epoch(current_epoch(), batch_idx) ? -1 : 0;
}

void DifferentialNet::log_loss(const Tensor& loss) {
  log("train_loss", loss, {.on_step = true, .on_epoch = true, .sync_dist = true});
  if (options_.step_only) log("step_loss", loss, {.sync_dist = true});
  if (options_.same_names) log("loss", loss * 0.5, {.sync_dist = true});
}

LayerChain DifferentialNet::stages() {
  LayerChain chain;
  chain.input = [](const Batch& batch) { return std::vector{batch["x"]}; };
  chain.add("first", {"first"}, [this](const Tensor& x) {
    const Tensor h = at::tanh(first_(x.to(first_->weight.scalar_type())));
    return options_.dropout > 0 ? at::dropout(h, options_.dropout, is_training()) : h;
  });
  chain.add("middle", {"middle"}, [this](const Tensor& h) { return at::tanh(middle_(h)); });
  if (options_.tied)
    chain.add("again", {"again"}, [this](const Tensor& h) {
      return at::tanh(named_children()["again"]->as<torch::nn::Linear>()->forward(h));
    });
  chain.add("last", {"last"}, [this](const Tensor& h) { return last_(h); });
  chain.loss = [this](const std::vector<Tensor>& outputs, const Batch& batch) {
    const Tensor error = at::mse_loss(outputs[0], batch["y"].to(outputs[0].scalar_type()));
    const Tensor loss = with_nan(error, current_epoch(), run().batch_idx());
    log_loss(loss);
    return loss;
  };
  return chain;
}

StepOutput DifferentialNet::training_step(const Batch& batch, int64_t batch_idx) {
  const Tensor out = loss(batch, current_epoch(), batch_idx);
  if (out.defined()) log_loss(out);
  if (!options_.manual) return out;
  const bool last = (batch_idx + 1) % options_.manual_steps == 0;
  if (out.defined()) {
    if (last) {
      manual_backward(out);
    } else {
      const auto quiet = no_sync();
      manual_backward(out);
    }
  }
  if (last) {
    if (!out.defined()) sync_gradients(optimizers());
    optimizers().step();
    optimizers().zero_grad();
  }
  return {};
}

void DifferentialNet::on_train_epoch_end() { log("epochs_done", static_cast<double>(current_epoch() + 1)); }

Outputs DifferentialNet::validation_step(const Batch& batch, int64_t, int64_t) {
  const Tensor loss = error(batch);
  log("val_loss", loss);
  if (options_.same_names) log("loss", loss.to(at::kDouble) + 1);
  if (options_.sums) {
    const auto samples = static_cast<double>(batch.size());
    const Tensor sum = loss.detach().to(at::kDouble) * samples;
    summed_ = summed_.defined() ? summed_ + sum : sum;
    summed_samples_ += samples;
  }
  return {};
}

void DifferentialNet::on_validation_epoch_end() {
  log("rank_mean", static_cast<double>(global_rank()), {.sync_dist = true});
  if (options_.sums) {
    // A rank may have no sample.
    if (!summed_.defined()) summed_ = at::zeros({}, first_->weight.options().dtype(at::kDouble));
    const Tensor all =
        run().collectives().all_reduce(at::stack({summed_, at::full_like(summed_, summed_samples_)}), ReduceOp::sum);
    log("summed_loss", all[0] / all[1]);
  }
  summed_ = Tensor();
  summed_samples_ = 0;
}

Outputs DifferentialNet::test_step(const Batch& batch, int64_t, int64_t) {
  log("test_loss", error(batch));
  return {};
}

Outputs DifferentialNet::predict_step(const Batch& batch, int64_t, int64_t) {
  Outputs outputs;
  outputs.add("out", forward(batch["x"].to(first_->weight.scalar_type())));
  outputs.add("y", batch["y"]);
  outputs.add("id", batch["id"]);
  return outputs;
}

// As many as the sample's number says: other batches, other counts.
std::optional<int64_t> DifferentialNet::num_tokens(const Batch& batch) const {
  int64_t tokens = 0;
  for (const auto& [name, value] : batch) {
    if (!name.ends_with("id")) continue;
    const Tensor ids = std::get<Tensor>(value).cpu();
    for (int64_t i = 0; i < ids.numel(); ++i) tokens += 1 + ids.const_data_ptr<int64_t>()[i] % 3;
  }
  return tokens;
}

}  // namespace fulgur::test
