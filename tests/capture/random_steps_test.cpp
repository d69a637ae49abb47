#include <ATen/Functions.h>

#include <cstdint>
#include <cstdlib>
#include <random>

#include "capture/twin.h"

namespace random_steps_test {

using namespace capture_test;

/// A random step: a network of small operations over float tensors of shape (rows, columns), its gradients, and one of
/// several optimizers. The same seed gives the same step.
class RandomStep {
 public:
  RandomStep(Training& training, uint64_t seed) : t_(training), seed_(seed) {
    std::mt19937_64 random(seed);
    rows_ = 1 + static_cast<int64_t>(random() % 6);
    columns_ = 2 + 2 * static_cast<int64_t>(random() % 4);
    const size_t count = 2 + random() % 4;
    for (size_t i = 0; i < count; ++i) {
      weights_.push_back(t_.parameter({columns_, columns_}));
      biases_.push_back(t_.parameter({columns_}));
    }
    mean_ = t_.buffer(at::zeros({columns_}));
    variance_ = t_.buffer(at::ones({columns_}));
    counter_ = t_.buffer(at::zeros({}, at::kLong));
    state_ = t_.buffer(at::zeros({rows_, columns_}));
    t_.batch_by(4, [this] {
      return std::vector{at::randn({rows_, columns_}), at::randint(columns_, {rows_}, at::kLong),
                         at::randn({rows_, columns_})};
    });
    adam_ = std::make_unique<AdamW>(t_);
  }

  void run() {
    std::mt19937_64 random(seed_ + 1);  // the same choices in each step
    std::vector<Tensor> values{t_.inputs[0], t_.inputs[2], at::linear(t_.inputs[0], weights_[0], biases_[0])};
    const size_t length = 3 + random() % 12;
    for (size_t i = 0; i < length; ++i) {
      const Tensor& one = values[random() % values.size()];
      const Tensor& other = values[random() % values.size()];
      values.push_back(next(random, one, other));
    }
    Tensor total = loss_of(random, values.back());
    for (size_t i = 0; i < weights_.size(); ++i) total = total + (weights_[i].sum() + biases_[i].sum()) * 1e-3;
    auto gradients = take_gradients(t_, total);
    if (random() % 3 == 0) clip(gradients, 0.7);
    random() % 2 == 0 ? adam_->step(gradients) : sgd_step(t_, gradients);
    const at::NoGradGuard no_grad;
    if (random() % 2 == 0) state_.lerp_(values.back().detach(), 0.1);
    if (random() % 2 == 0) counter_.add_(1);
  }

 private:
  Tensor next(std::mt19937_64& random, const Tensor& a, const Tensor& b) {
    const Tensor& weight = weights_[random() % weights_.size()];
    const Tensor& bias = biases_[random() % biases_.size()];
    switch (random() % 40) {
      case 0:
        return at::relu(a);
      case 1:
        return at::gelu(a);
      case 2:
        return at::tanh(a + b);
      case 3:
        return at::sigmoid(a) * b;
      case 4:
        return at::silu(a) - b;
      case 5:
        return at::softmax(a, 1);
      case 6:
        return at::log_softmax(a, 0);
      case 7:
        return at::layer_norm(a, {columns_}, bias, {});
      case 8:
        return at::linear(a, weight, bias);
      case 9:
        return at::matmul(a, weight.t());
      case 10:
        return at::cat({a, b}, 0).slice(0, rows_ / 2, rows_ / 2 + rows_);
      case 11:
        return at::dropout(a, 0.3, /*train=*/true);
      case 12:
        return a / (b.abs() + 1);
      case 13:
        return at::leaky_relu(a, 0.1);
      case 14:
        return at::elu(a);
      case 15:
        return at::softplus(a);
      case 16:
        return at::hardtanh(a, -0.7, 0.9);
      case 17:
        return at::clamp(a, -1, 1) + b * 0.25;
      case 18:
        return a.index_select(0, at::arange(rows_).flip(0));
      case 19:
        return at::embedding(weight, t_.inputs[1]) + a;
      case 20:
        return at::where(a > b, a, b * 0.5);
      case 21:
        return a.t().contiguous().view({rows_, columns_});
      case 22:
        return at::stack({a, b}, 0).mean(0);
      case 23:
        return a.gather(1, t_.inputs[1].unsqueeze(1).expand({rows_, columns_}));
      case 24:
        return at::exp(-a.abs()) + a.pow(2) * 0.1;
      case 25:
        return a.chunk(2, 1)[0].repeat({1, 2});
      case 26:
        return rows_ > 1 ? at::batch_norm(a, bias, {}, mean_, variance_, true, 0.1, 1e-5, false) : a;
      case 27:
        return at::group_norm(a, 2, bias, {});
      case 28:
        return a - a.mean(1, /*keepdim=*/true);
      case 29:
        return a / (a.std(1, /*correction=*/1, /*keepdim=*/true) + 0.5);
      case 30:
        return std::get<0>(a.max(1, /*keepdim=*/true)) + b;
      case 31:
        return a.cumsum(1) * 0.2;
      case 32:
        return at::maximum(a, b).roll({1}, {1});
      case 33:
        return a.masked_fill(b > 0.5, 0.1);
      case 34:
        return at::bmm(a.unsqueeze(0), weight.unsqueeze(0)).squeeze(0);
      case 35:
        return at::einsum("ij,kj->ik", {a, weight});
      case 36:
        return at::logsumexp(a, 1, /*keepdim=*/true) + at::sin(b);
      case 37:
        return at::rand_like(a) * a;
      case 38:
        return at::glu(at::cat({a, b}, 1), 1);
      default:
        return a.clone().mul_(0.5).add_(b.detach());
    }
  }

  Tensor loss_of(std::mt19937_64& random, const Tensor& value) {
    switch (random() % 8) {
      case 0:
        return at::cross_entropy_loss(value, t_.inputs[1]);
      case 1:
        return at::mse_loss(value, t_.inputs[2]);
      case 2:
        return at::l1_loss(value, t_.inputs[2]);
      case 3:
        return at::smooth_l1_loss(value, t_.inputs[2]);
      case 4:
        return at::huber_loss(value, t_.inputs[2]);
      case 5:
        return at::binary_cross_entropy_with_logits(value, at::sigmoid(t_.inputs[2]));
      case 6:
        return at::binary_cross_entropy(at::sigmoid(value), at::sigmoid(t_.inputs[2]));
      default:
        return at::linalg_vector_norm(value, 2) * 0.1;
    }
  }

  Training& t_;
  uint64_t seed_;
  int64_t rows_ = 0, columns_ = 0;
  std::vector<Tensor> weights_, biases_;
  Tensor mean_, variance_, counter_, state_;
  std::unique_ptr<AdamW> adam_;
};

TEST_CASE("random steps, captured, have the bits of eager ones") {
  uint64_t first = 1, count = 300;
  if (const char* const seeds = std::getenv("FULGUR_SEEDS")) {  // NOLINT(concurrency-mt-unsafe): FIRST:COUNT
    char* end = nullptr;
    first = std::strtoull(seeds, &end, 10);
    if (*end == ':') count = std::strtoull(end + 1, nullptr, 10);
  }
  for (uint64_t seed = first; seed < first + count; ++seed) {
    CAPTURE(seed);
    expect_same_bits(
        [seed] {
          auto made = std::make_unique<Training>();
          const auto step = std::make_shared<RandomStep>(*made, seed);
          made->step = [step] { step->run(); };
          return made;
        },
        /*steps=*/8);
  }
}

}  // namespace random_steps_test
