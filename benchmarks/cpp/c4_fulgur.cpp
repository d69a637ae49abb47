// C4, Fulgur's DataLoader. `--mode tensors`: a TensorDataset, normalised batch by batch; `--mode work`: a
// SampleDataset with a costly transform. `--workers N` or `auto`.
#include "fulgur/data/data_loader.h"
#include "fulgur/data/sample_dataset.h"
#include "fulgur/data/tensor_dataset.h"
#include "given_order.h"
#include "images.h"

namespace {

using at::Tensor;

class Costly : public fulgur::SampleDataset {
 public:
  explicit Costly(const bench::Images& images) : x_(images.x), y_(images.y) {}
  int64_t size() const override { return x_.size(0); }
  fulgur::Sample get(int64_t index, const fulgur::SampleContext&) const override {
    const Tensor image = x_[index];
    bench::work_on(image.const_data_ptr<uint8_t>());
    return {{"image", bench::normalise(image)}, {"label", y_.const_data_ptr<int64_t>()[index]}};
  }

 private:
  Tensor x_, y_;
};

struct FromLoader : bench::Source {
  explicit FromLoader(std::shared_ptr<fulgur::DataLoader> made) : loader(std::move(made)) {}
  void start(int64_t epoch) override { loader->start_epoch(epoch); }
  bool next(Tensor& x, Tensor& y) override {
    if (!loader->next(batch)) return false;
    x = batch[0];
    y = batch[1];
    return true;
  }
  std::shared_ptr<fulgur::DataLoader> loader;
  fulgur::Batch batch;
};

}  // namespace

int main(int count, char** values) {
  const bench::Arguments arguments(count, values);
  bench::prepare();
  const bench::Images images(arguments);
  const std::string& mode = arguments.text("mode");
  std::shared_ptr<const fulgur::Dataset> dataset;
  fulgur::DataLoaderOptions options{.batch_size = arguments.number("batch"),
                                    .sampler = std::make_shared<bench::GivenOrder>(images.order)};
  if (mode == "work") {
    dataset = std::make_shared<Costly>(images);
  } else {
    dataset = std::make_shared<fulgur::TensorDataset>(fulgur::Batch{images.x, images.y});
    options.transform = [](fulgur::Batch batch) {
      batch.set(0, bench::normalise(batch[0]));
      return batch;
    };
  }
  const std::string& workers = arguments.text("workers");
  if (workers == "auto")
    options.num_workers = {};
  else
    options.num_workers = std::stoll(workers);
  FromLoader source(std::make_shared<fulgur::DataLoader>(dataset, options));
  bench::measure(arguments, source);
}
