// C4, torch::data. `--mode batch`: normalised batch by batch; `--mode sample`: sample by sample, as its Normalize
// transform does; `--mode work`: a costly transform of each sample.
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include "images.h"
#include "libtorch_order.h"

namespace {

using at::Tensor;

class Samples : public torch::data::datasets::Dataset<Samples> {
 public:
  Samples(const bench::Images& images, bool normalises, bool works)
      : x_(images.x), y_(images.y), normalises_(normalises), works_(works) {}
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    Tensor image = x_[i];
    if (works_) bench::work_on(image.const_data_ptr<uint8_t>());
    if (normalises_) image = bench::normalise(image);
    return {image, y_[i]};
  }
  std::optional<size_t> size() const override { return static_cast<size_t>(x_.size(0)); }

 private:
  Tensor x_, y_;
  bool normalises_, works_;
};

template <class Loader>
struct FromLoader : bench::Source {
  FromLoader(Loader made, bool normalise) : loader(std::move(made)), normalises(normalise) {}
  void start(int64_t) override {
    if (!at) {
      at.emplace(loader->begin());
      return;
    }
    // A loader refuses a second iterator while the first one has not come to its end.
    for (; *at != loader->end(); ++*at) {
    }
    at.emplace(loader->begin());
    fresh = true;
  }
  bool next(Tensor& x, Tensor& y) override {
    if (!fresh) ++*at;
    fresh = false;
    if (*at == loader->end()) return false;
    x = normalises ? bench::normalise((*at)->data) : (*at)->data;
    y = (*at)->target;
    return true;
  }
  Loader loader;
  bool normalises, fresh = true;
  std::optional<torch::data::Iterator<torch::data::Example<>>> at;
};

}  // namespace

int main(int count, char** values) {
  const bench::Arguments arguments(count, values);
  bench::prepare();
  const bench::Images images(arguments);
  const bool by_batch = arguments.text("mode") == "batch";
  auto loader = torch::data::make_data_loader(
      Samples(images, !by_batch, arguments.text("mode") == "work").map(torch::data::transforms::Stack<>()),
      bench::GivenOrder(images.order),
      torch::data::DataLoaderOptions()
          .batch_size(static_cast<size_t>(arguments.number("batch")))
          .workers(static_cast<size_t>(arguments.number("workers"))));
  FromLoader source(std::move(loader), by_batch);
  bench::measure(arguments, source);
}
