// The C++ blocks of README and docs/, which extract_blocks.py writes, in the places where a reader puts them. That this
// file compiles is the test; check_blocks.py reports a block that it does not include.
#include <ATen/ops/linspace.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fulgur/checkpoint/async_writer.h>
#include <fulgur/core/device/autocast.h>
#include <fulgur/core/text/log.h>
#include <fulgur/fulgur.h>
#include <fulgur/models/generate.h>
#include <fulgur/models/gpt.h>
#include <fulgur/models/tabular_model.h>
#include <torch/csrc/autograd/custom_function.h>

#include <fstream>

#include "includes.inc"

// What a reader adds in place of `…`.
#define FULGUR_ELLIPSIS

namespace readme {
#include "README.in_25_lines.1.inc"
}

namespace coming_from_libtorch {
namespace before {
#include "coming_from_libtorch.before_the_whole_loop.1.inc"
}
namespace after {
#include "coming_from_libtorch.after_the_network_and_its_step.1.inc"
}
}  // namespace coming_from_libtorch

namespace coming_from_lightning {
#include "coming_from_lightning.side_by_side.1.inc"
#include "coming_from_lightning.side_by_side.2.inc"
void trainer_arguments() {
#include "coming_from_lightning.trainer_arguments.1.inc"
}
}  // namespace coming_from_lightning

namespace adapters {
void in_c(const fulgur::TrainerOptions& options, std::shared_ptr<fulgur::LightningModule> module,
          std::shared_ptr<fulgur::DataModule> data) {
#include "adapters.in_c.1.inc"
}
}  // namespace adapters

namespace callbacks {
void store(const fulgur::Tensor&, const fulgur::Tensor&) {}
#include "callbacks.predictionwriter.1.inc"
void lambda_callback(fulgur::TrainerComponents& components) {
#include "callbacks.lambdacallback.1.inc"
}
}  // namespace callbacks

namespace checkpoints {
void while_training_continues(const fulgur::CheckpointContent& content) {
#include "checkpoints.while_training_continues.1.inc"
}
}  // namespace checkpoints

namespace custom_components {
namespace options {
#undef FULGUR_ELLIPSIS
#define FULGUR_ELLIPSIS Options options_;
#include "custom_components.options.1.inc"
#undef FULGUR_ELLIPSIS
#define FULGUR_ELLIPSIS
}  // namespace options
namespace a_module {
#include "custom_components.a_module.1.inc"
struct Configured : Regression {
#include "custom_components.a_module.2.inc"
};
struct Manual : Regression {
  fulgur::Tensor generator_loss(const fulgur::Batch&) { return {}; }
#include "custom_components.a_module.3.inc"
};
struct Accumulating : Regression {
  fulgur::Tensor judge_loss(const fulgur::Batch&) { return {}; }
#include "custom_components.a_module.4.inc"
};
}  // namespace a_module
namespace a_callback {
struct Target : fulgur::Callback {
  struct {
    double target;
  } options_;
#include "custom_components.a_callback.1.inc"
};
struct Norms : fulgur::Callback {
#include "custom_components.a_callback.2.inc"
};
struct Weights : fulgur::Callback {
#include "custom_components.a_callback.3.inc"
};
struct GradientNorms : fulgur::Callback {
#include "custom_components.a_callback.4.inc"
};
#include "custom_components.a_callback.5.inc"
}  // namespace a_callback
namespace a_metric {
struct Net : a_module::Regression {
  fulgur::Tensor forward(const fulgur::Tensor& x) { return x; }
#include "custom_components.a_metric.1.inc"
  double squares_, total_, sum_, count_;
};
}  // namespace a_metric
#include "custom_components.a_data_module.1.inc"
#include "custom_components.a_precision.1.inc"
#include "custom_components.a_schedule.1.inc"
#include "custom_components.a_strategy.1.inc"
namespace a_program {
#include "custom_components.a_program_or_a_plug_in.1.inc"
}
namespace catching {
#include "custom_components.a_program_or_a_plug_in.2.inc"
}
}  // namespace custom_components

namespace data {
fulgur::Tensor read_scan(const std::string&) { return {}; }
#undef FULGUR_ELLIPSIS
#define FULGUR_ELLIPSIS            \
  std::vector<std::string> files_; \
  std::vector<int64_t> labels_;
#include "data.datasets.1.inc"
#undef FULGUR_ELLIPSIS
#define FULGUR_ELLIPSIS
void datasets() {
#include "data.datasets.2.inc"
}
#include "data.datasets.3.inc"
void loaders(const std::shared_ptr<fulgur::Dataset>& dataset) {
#include "data.loaders.1.inc"
}
#undef FULGUR_ELLIPSIS
#define FULGUR_ELLIPSIS                                                                                           \
  bool read_line() { return static_cast<bool>(std::getline(file_, line_)); }                                      \
  static at::Tensor to_tensor(const std::string& line) { return at::zeros({static_cast<int64_t>(line.size())}); } \
  std::string path_, line_;                                                                                       \
  std::ifstream file_;                                                                                            \
  int64_t rank_ = 0, world_size_ = 1, read_ = 0;
#include "data.streams.1.inc"
#undef FULGUR_ELLIPSIS
#define FULGUR_ELLIPSIS
#include "data.tar_shards.1.inc"
void several_loaders(const std::shared_ptr<fulgur::Loader>& labelled,
                     const std::shared_ptr<fulgur::Loader>& unlabelled) {
#include "data.several_loaders.1.inc"
}
}  // namespace data

namespace devices {
struct Options {
  int64_t hidden = 1;
};
struct Encoder : torch::nn::Module {
  explicit Encoder(int64_t) {}
  at::Tensor forward(const at::Tensor& x) { return x; }
};
struct Decoder : torch::nn::Module {
  explicit Decoder(int64_t) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor&) { return x; }
};
fulgur::Tensor loss_of(const at::Tensor& logits, const at::Tensor&) { return logits.mean(); }
#include "devices.model_parallel.1.inc"
void virtual_devices() {
#include "devices.virtual_devices.1.inc"
}
}  // namespace devices

namespace distributed {
#include "distributed.a_main_that_launches.1.inc"
}

namespace mesh {
#include "mesh.in_c.1.inc"
#include "mesh.layers_that_ranks_compute_together.1.inc"
#include "mesh.the_layers_of_a_module.1.inc"
}  // namespace mesh

namespace image_transforms {
#include "image_transforms.a_transform_of_your_own.1.inc"
}

namespace images {
void in_c(const std::shared_ptr<fulgur::ImageTransform>& crop, const std::shared_ptr<fulgur::ImageTransform>& flip) {
#include "images.in_c.1.inc"
}
}  // namespace images

namespace loggers {
using namespace fulgur;
struct Net : readme::SoftmaxRegression {
  Tensor forward(const Tensor& x) { return x; }
#include "loggers.pictures_histograms_texts_and_tables.1.inc"
};
}  // namespace loggers

namespace capture {
void in_c(const std::function<void()>& step, fulgur::Tensor input, const std::vector<fulgur::Tensor>& batches) {
#include "capture.in_c.1.inc"
}
}  // namespace capture

namespace extending {
#include "extending.a_cluster_environment.1.inc"
#include "extending.a_logger.1.inc"
#include "extending.a_metric.1.inc"
#include "extending.a_sampler.1.inc"
#include "extending.a_verb.1.inc"
#include "extending.a_writer_of_checkpoints.1.inc"
#include "extending.an_optimizer.1.inc"
}  // namespace extending

namespace own_loop {
#include "own_loop.a_loop_of_your_own.1.inc"
}

namespace memory {
using at::Tensor;
struct Block : torch::nn::Module {
  Tensor forward(const Tensor& x) { return x; }
};
struct Net {
  std::vector<std::shared_ptr<Block>> blocks_;
#include "memory.in_a_module_of_your_own.1.inc"
};
struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.pow(3); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list g) {
    return g;
  }
};
void checking_a_backward() {
#include "memory.checking_a_backward.1.inc"
}
}  // namespace memory

namespace metrics {
#undef FULGUR_ELLIPSIS
#define FULGUR_ELLIPSIS \
  fulgur::Tensor forward(const fulgur::Tensor& x) { return x; }
#include "metrics.metrics.1.inc"
#undef FULGUR_ELLIPSIS
#define FULGUR_ELLIPSIS
#include "metrics.a_metric_of_your_own.1.inc"
}  // namespace metrics

namespace models {
using fulgur::Tensor;
void generation(fulgur::GPT& model, const Tensor& tokens) {
#include "models.generation_1.1.inc"
}
#include "models.a_key_map_of_your_own.1.inc"
}  // namespace models

namespace optimizers {
struct Grouped : readme::SoftmaxRegression {
#include "optimizers.parameter_groups.1.inc"
};
struct OfTorch : readme::SoftmaxRegression {
#include "optimizers.classes_of_torchoptim.1.inc"
};
fulgur::OptimizerPlan lambda(const std::shared_ptr<fulgur::Optimizer>& optimizer) {
#include "optimizers.lambdalr.1.inc"
}
}  // namespace optimizers

namespace precision {
using fulgur::Tensor;
struct Net : readme::SoftmaxRegression {
  void step(const Tensor& prediction, const Tensor& target) {
#include "precision.in_your_own_code.1.inc"
  }
};
}  // namespace precision

namespace tables {
#include "tables.models_of_tables.1.inc"
}

namespace text {
void in_c() {
#include "text.in_c.1.inc"
}
}  // namespace text
