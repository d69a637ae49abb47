// Random numbers by Philox 4x32-10 (Salmon et al. 2011), as functions of the generator's seed and offset and of the
// element's index. So they do not depend on how work is divided, and each launch of a captured graph draws different
// numbers. They differ from the numbers of a GPU, which depend on the grid of each kernel.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <cmath>

#include "philox.h"
#include "twin.h"

namespace simulated_cuda {

std::pair<uint64_t, uint64_t> RandomState::seed_and_offset() const {
  if (!philox.captured_) return {philox.seed_.val, philox.offset_.val};
  return {static_cast<uint64_t>(*philox.seed_.ptr),
          static_cast<uint64_t>(*philox.offset_.ptr) + philox.offset_intragraph_};
}

Draws::Draws(const RandomState& state) : Draws(state.seed_and_offset().first, state.seed_and_offset().second) {}

uint32_t Draws::bits(int64_t element, int which) const {
  // The generator's offset counts 32-bit numbers, of which a block has four.
  at::philox_engine engine(seed_, static_cast<uint64_t>(element), offset_ / 4);
  uint32_t value = 0;
  for (int i = 0; i <= which; ++i) value = engine();
  return value;
}

double Draws::uniform(int64_t element) const {
  const uint64_t high = bits(element, 0) >> 5, low = bits(element, 1) >> 6;
  return static_cast<double>(high * 67108864 + low) / 9007199254740992.0;
}

float Draws::uniform_float(int64_t element) const { return static_cast<float>(bits(element, 0) >> 8) / 16777216.0F; }

at::Tensor Draws::keep_mask(at::IntArrayRef sizes, double keep) const {
  at::Tensor mask = at::empty(sizes, at::kBool);
  bool* const data = mask.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < mask.numel(); ++i) data[i] = uniform_float(i) < keep;
  return mask;
}

namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// Fills a tensor with `make(i)`, computed in double and cast to its dtype, in logical element order for any strides.
template <class F>
void fill(const at::Tensor& target, F make) {
  at::Tensor values = at::empty(target.sizes(), at::kDouble);
  double* const data = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = make(i);
  target.copy_(values);
}

void uniform(const TwinCall& call) {
  const Draws draws(call.random);
  const double from = call.number(1), to = call.number(2);
  if (call.tensor(0).scalar_type() == at::kDouble)
    fill(call.tensor(0), [&](int64_t i) { return from + (to - from) * draws.uniform(i); });
  // Computed in float32, so that rounding does not give `to` itself.
  else
    fill(call.tensor(0),
         [&](int64_t i) { return static_cast<float>(from) + static_cast<float>(to - from) * draws.uniform_float(i); });
}

void normal(const TwinCall& call) {
  const Draws draws(call.random);
  const double mean = call.number(1), deviation = call.number(2);
  // The method of Box and Muller (1958).
  fill(call.tensor(0), [&](int64_t i) {
    const double radius = std::sqrt(-2 * std::log((draws.bits(i, 0) + 1.0) / 4294967296.0));
    return mean + deviation * radius * std::cos(kTwoPi * draws.bits(i, 1) / 4294967296.0);
  });
}

void bernoulli_scalar(const TwinCall& call) {
  const Draws draws(call.random);
  const double p = call.number(1);
  fill(call.tensor(0), [&](int64_t i) { return draws.uniform_float(i) < p ? 1.0 : 0.0; });
}

void bernoulli_tensor(const TwinCall& call) {
  const Draws draws(call.random);
  const at::Tensor p = call.tensor(1).expand_as(call.tensor(0)).to(at::kDouble).contiguous();
  fill(call.tensor(0),
       [&, data = p.const_data_ptr<double>()](int64_t i) { return draws.uniform_float(i) < data[i] ? 1.0 : 0.0; });
}

void integers(const at::Tensor& target, const RandomState& random, int64_t from, uint64_t range) {
  const Draws draws(random);
  at::Tensor values = at::empty(target.sizes(), at::kLong);
  int64_t* const data = values.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const uint64_t bits =
        range > 0xFFFFFFFFULL ? (uint64_t{draws.bits(i, 0)} << 32) | draws.bits(i, 1) : draws.bits(i, 0);
    data[i] = from + static_cast<int64_t>(range == 0 ? bits : bits % range);
  }
  target.copy_(values);
}

// One more than the largest value that `random_()` returns: up to it, the dtype represents all integers exactly.
uint64_t range_of(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return 2;
    case at::kByte:
      return 256;
    case at::kChar:
      return 128;
    case at::kShort:
      return 32768;
    case at::kInt:
      return uint64_t{1} << 31;
    case at::kHalf:
      return 2049;
    case at::kBFloat16:
      return 257;
    case at::kFloat:
      return (uint64_t{1} << 24) + 1;
    case at::kDouble:
      return (uint64_t{1} << 53) + 1;
    default:
      return uint64_t{1} << 63;
  }
}

void random_from_to(const TwinCall& call) {
  const int64_t from = call.arguments[1].toInt();
  // Without `to`, values go up to the largest value of the dtype.
  if (call.arguments[2].isNone())
    return integers(call.tensor(0), call.random, from,
                    range_of(call.tensor(0).scalar_type()) - static_cast<uint64_t>(from));
  integers(call.tensor(0), call.random, from,
           static_cast<uint64_t>(call.arguments[2].toInt()) - static_cast<uint64_t>(from));
}

void random_to(const TwinCall& call) {
  integers(call.tensor(0), call.random, 0, static_cast<uint64_t>(call.arguments[1].toInt()));
}
void random_any(const TwinCall& call) {
  integers(call.tensor(0), call.random, 0, range_of(call.tensor(0).scalar_type()));
}

// (input, p, train) → (output, mask)
void native_dropout(const TwinCall& call) {
  const at::Tensor& input = call.tensor(0);
  const bool train = call.arguments[2].isNone() || call.arguments[2].toBool();
  const double p = call.number(1);
  const at::Tensor mask =
      !train || p == 0 ? at::ones(input.sizes(), at::kBool) : Draws(call.random).keep_mask(input.sizes(), 1 - p);
  const double scale = !train ? 1 : p == 1 ? 0 : 1 / (1 - p);
  call.arguments = {input * mask.to(input.scalar_type()) * scale, mask};
}

// (self, p, generator) → (output, mask as bytes); p is the fraction that is kept
void fused_dropout(const TwinCall& call) {
  const at::Tensor& input = call.tensor(0);
  const at::Tensor mask = Draws(call.random).keep_mask(input.sizes(), call.number(1));
  call.arguments = {input * mask.to(input.scalar_type()) / call.number(1), mask.to(at::kByte)};
}

void masked_scale(const TwinCall& call) {
  call.arguments = {call.tensor(0) * call.tensor(1).to(call.tensor(0).scalar_type()) * call.number(2)};
}

}  // namespace

void add_random_twins(HandWrittenTwins& twins) {
  twins["aten::uniform_"] = {Mode::beside, uniform};
  twins["aten::normal_"] = {Mode::beside, normal};
  twins["aten::bernoulli_.float"] = {Mode::beside, bernoulli_scalar};
  twins["aten::bernoulli_.Tensor"] = {Mode::beside, bernoulli_tensor};
  twins["aten::random_.from"] = {Mode::beside, random_from_to};
  twins["aten::random_.to"] = {Mode::beside, random_to};
  twins["aten::random_"] = {Mode::beside, random_any};
  twins["aten::native_dropout"] = {Mode::beside, native_dropout};
  twins["aten::_fused_dropout"] = {Mode::beside, fused_dropout};
  twins["aten::_masked_scale"] = {Mode::beside, masked_scale};
}

}  // namespace simulated_cuda
