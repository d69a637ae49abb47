// Effects of the Trainer's options for devices, formats and memory.
#include "trainer/boring.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <malloc.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>

#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/device/memory_stats.h"
#include "fulgur/core/text/log.h"
#include "run/memory_format.h"
#include "setup/allocator.h"
#include "setup/devices.h"

namespace device_options_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

/// Calls `look` in its first training step.
struct Looking : SelfPlanned {
  std::function<void()> look;
  StepOutput training_step(const Batch& b, int64_t i) override {
    if (i == 0) look();
    return SelfPlanned::training_step(b, i);
  }
};

FitReport look(TrainerOptions options, std::function<void()> function) {
  auto module = std::make_shared<Looking>();
  module->look = std::move(function);
  return Trainer(std::move(options)).fit(module, regression_data(8, 0));
}

std::string told(const std::function<void()>& body) {
  std::string lines;
  log::reset_warnings();
  log::set_sink(
      [](log::Level, const std::string& line, void* user) { *static_cast<std::string*>(user) += line + "\n"; }, &lines);
  body();
  log::set_sink({}, nullptr);
  return lines;
}

bool is_channels_last(const Tensor& tensor) {
  return tensor.is_contiguous(at::MemoryFormat::ChannelsLast) && !tensor.is_contiguous();
}

/// A convolution and a linear layer on images of two channels, which arrive as bytes; Adam, whose state has the
/// weights' strides.
struct Images : LightningModule {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear last{nullptr};
  Tensor scale;
  bool converted = true;  // every batch in each of the loops
  int64_t seen = 0;
  int64_t accumulated = 0;
  Images() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3)));
    last = register_module("last", torch::nn::Linear(3 * 4 * 4, 2));
    scale = register_buffer("scale", at::ones({1, 2, 6, 6}));
  }
  Batch on_after_batch_transfer(Batch batch, int64_t) override {
    batch.set(0, batch[0].to(at::kFloat) / 255);
    return batch;
  }
  Tensor forward(const Batch& batch) {
    ++seen;
    converted = converted && is_channels_last(batch[0]) && batch[1].is_contiguous();
    return last->forward(conv->forward(batch[0] * scale).relu().flatten(1));
  }
  StepOutput training_step(const Batch& batch, int64_t) override { return at::mse_loss(forward(batch), batch[1]); }
  Outputs validation_step(const Batch& batch, int64_t, int64_t) override {
    log("val_loss", at::mse_loss(forward(batch), batch[1]));
    return {};
  }
  Outputs predict_step(const Batch& batch, int64_t, int64_t) override {
    // An image goes out as it came: channels last.
    return {{"y", forward(batch)}, {"image", conv->forward(batch[0])}};
  }
  OptimizerPlan configure_optimizers() override {
    AdamW::Options options;
    options.lr = 0.01;
    return std::make_shared<AdamW>(options);
  }
};

std::shared_ptr<DataModule> images() {
  at::manual_seed(3);
  TensorDataModule::Sets sets;
  sets.train = Batch{{"x", at::randint(0, 256, {24, 2, 6, 6}, at::kByte)}, {"y", at::randn({24, 2})}};
  sets.val = sets.predict = sets.train;
  return std::make_shared<TensorDataModule>(std::move(sets),
                                            TensorDataOptions{.batch_size = 4, .eval_batch_size = {}, .shuffle = true});
}

struct Trained {
  std::shared_ptr<Images> module;
  FitReport report;
};

Trained train(const TemporaryFolder& folder, bool channels_last, int64_t max_steps, const CheckpointChoice& from = {},
              int64_t accumulate = 1) {
  at::manual_seed(7);
  Trained trained{.module = std::make_shared<Images>(), .report = {}};
  TrainerOptions options = quiet(folder);
  options.max_epochs.reset();
  options.max_steps = max_steps;
  options.accumulate_grad_batches = accumulate;
  options.gradient_clip_val = 0.1;  // its norm is a sum over memory
  if (channels_last) options.memory_format = MemoryFormat::channels_last;
  Config config;
  config.seed_everything = {.enabled = true, .seed = 5};
  config.trainer = options;
  Trainer trainer = Trainer::from_config(config);
  trained.report = trainer.fit(trained.module, images(), from);
  return trained;
}

/// The run's last checkpoint, outside its run folder, which a fit that begins with it leaves alone.
std::string copy_of_last(const Trained& trained, const TemporaryFolder& folder) {
  const fs::path copy = folder / "copy.ckpt";
  fs::copy(*trained.report.last_checkpoint, copy, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  return copy.string();
}

double difference(const Trained& a, const Trained& b) {
  double most = 0;
  const auto other = weights(*b.module);
  for (const auto& [name, value] : weights(*a.module))
    most = std::max(most, (value - other.at(name)).abs().max().item<double>());
  return most;
}

}  // namespace

TEST_CASE(
    "memory_format: channels_last reaches parameters, buffers, the optimizer's state and the batches of every loop") {
  TemporaryFolder folder;
  const Trained plain = train(folder, false, 6), last = train(folder, true, 6);
  CHECK_FALSE(plain.module->converted);
  CHECK(plain.module->conv->weight.is_contiguous());
  CHECK(last.module->converted);
  CHECK(last.module->seen == 12);  // six of training, six of validation
  CHECK(is_channels_last(last.module->conv->weight));
  CHECK(is_channels_last(last.module->scale));
  CHECK(last.module->last->weight.is_contiguous());
  CHECK(difference(plain, last) < 1e-4);

  TrainerOptions options = quiet(folder);
  options.memory_format = MemoryFormat::channels_last;
  const auto evaluated = std::make_shared<Images>();
  CHECK(Trainer(options).validate(evaluated, images()).samples == 24);
  CHECK(evaluated->converted);
  const auto predicting = std::make_shared<Images>();
  const PredictReport report = Trainer(options).predict(predicting, images());
  CHECK(predicting->converted);
  CHECK(report.loaders[0]["image"].sizes() == at::IntArrayRef{24, 3, 4, 4});
}

TEST_CASE("memory_format: images of one channel have the strides too, and what is not an image stays") {
  const Tensor grey = at::randn({2, 1, 3, 4}), ids = at::ones({2, 3, 4, 5}, at::kLong), flat = at::randn({2, 3});
  const Tensor colour = at::randn({2, 3, 4, 5});
  Batch batch;
  batch.add("grey", grey);
  batch.add("ids", ids);
  batch.add("flat", flat);
  batch.add("list", std::vector<Tensor>{colour, flat});
  fulgur::detail::to_channels_last(batch);
  CHECK(batch["grey"].strides() == at::IntArrayRef{12, 1, 4, 1});
  CHECK(batch["grey"].equal(grey));
  CHECK(batch["ids"].is_same(ids));
  CHECK(batch["flat"].is_same(flat));
  const auto& list = std::get<std::vector<Tensor>>(batch.entry(3).second);
  CHECK(is_channels_last(list[0]));
  CHECK(list[0].equal(colour));
  CHECK(list[1].is_same(flat));
}

TEST_CASE("checkpoints know nothing of the memory format, and a resume is exact in each") {
  const int64_t accumulate = GENERATE(1, 4);
  TemporaryFolder whole_folder, part_folder, plain_folder, folder;
  const Trained whole = train(whole_folder, true, 10, {}, accumulate);
  const Trained part = train(part_folder, true, 5, {}, accumulate);
  REQUIRE(part.report.last_checkpoint);
  // The file has the weights in the order of their indices.
  const CheckpointContent content = read_checkpoint(*part.report.last_checkpoint);
  for (const auto& [name, value] : content.module) {
    CHECK(value.is_contiguous());
    CHECK(value.equal(weights(*part.module).at(name)));
  }
  const std::string last_checkpoint = copy_of_last(part, part_folder);
  CHECK(difference(whole, train(folder, true, 10, last_checkpoint, accumulate)) == 0);
  // The other way round: each continues from the other's.
  const Trained plain = train(plain_folder, false, 5, {}, accumulate);
  const Trained to_plain = train(folder, false, 10, last_checkpoint, accumulate);
  const Trained to_last = train(folder, true, 10, copy_of_last(plain, plain_folder), accumulate);
  CHECK(to_plain.module->conv->weight.is_contiguous());
  CHECK(is_channels_last(to_last.module->conv->weight));
  CHECK(difference(whole, to_plain) < 1e-4);
  CHECK(difference(whole, to_last) < 1e-4);
}

TEST_CASE("float32_matmul_precision holds in the run and is as it was afterwards") {
  TemporaryFolder folder;
  const auto precision = [] { return at::globalContext().float32MatmulPrecision(); };
  const auto of_cpu = [] {
    return at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  };
  const auto before = of_cpu();
  REQUIRE(precision() == at::Float32MatmulPrecision::HIGHEST);
  for (const auto& [word, meant] : {std::pair{"highest", at::Float32MatmulPrecision::HIGHEST},
                                    {"high", at::Float32MatmulPrecision::HIGH},
                                    {"medium", at::Float32MatmulPrecision::MEDIUM}}) {
    TrainerOptions options = quiet(folder);
    options.float32_matmul_precision = word;
    std::optional<at::Float32MatmulPrecision> inside;
    look(options, [&] { inside = precision(); });
    CHECK(inside == meant);
    CHECK(precision() == at::Float32MatmulPrecision::HIGHEST);
    CHECK(of_cpu() == before);
  }
  // Without the option, what the program has set holds.
  at::globalContext().setFloat32MatmulPrecision("high");
  std::optional<at::Float32MatmulPrecision> inside;
  look(quiet(folder), [&] { inside = precision(); });
  at::globalContext().setFloat32MatmulPrecision("highest");
  CHECK(inside == at::Float32MatmulPrecision::HIGH);
}

TEST_CASE("float32_matmul_precision: medium gives less precise products if the CPU has bfloat16") {
  TemporaryFolder folder;
  at::manual_seed(1);
  const Tensor a = at::randn({256, 256}), b = at::randn({256, 256});
  const Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  const auto error = [&](std::optional<std::string> precision) {
    TrainerOptions options = quiet(folder);
    options.float32_matmul_precision = std::move(precision);
    double most = 0;
    look(options, [&] { most = (a.mm(b).to(at::kDouble) - exact).abs().max().item<double>(); });
    return most;
  };
  const double highest = error("highest"), medium = error("medium");
  CHECK(highest < 1e-4);
  CHECK(error(std::nullopt) == highest);
  if (medium < 10 * highest) SKIP("this CPU makes products of float32 in float32 only");
  CHECK(medium < 1);
}

TEST_CASE("deterministic: an operation without a deterministic form throws, with warn it warns") {
  const auto put = [] { at::ones({4}).put_(at::ones({2}, at::kLong), at::ones({2})); };
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  CHECK_NOTHROW(look(options, put));
  options.deterministic = true;
  CHECK_THROWS_WITH(look(options, put), ContainsSubstring("deterministic"));
  struct Handler : c10::WarningHandler {
    std::string text;
    void process(const c10::Warning& warning) override { text += warning.msg(); }
  } handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  options.deterministic = DeterministicChoice(true, true);
  CHECK_NOTHROW(look(options, put));
  CHECK_THAT(handler.text, ContainsSubstring("put_ does not have a deterministic implementation"));
}

TEST_CASE("allocator.keep_freed_memory: recreated tensors cost no page faults") {
#ifdef __SANITIZE_ADDRESS__
  SKIP("AddressSanitizer has an allocator without these settings");
#endif
  // Takes memory in each step and lets go of it.
  struct Large : SelfPlanned {
    int64_t values = 4 << 20;
    std::vector<int64_t> faults;
    StepOutput training_step(const Batch& b, int64_t i) override {
      const int64_t before = process_usage().minor_faults;
      const Tensor large = at::ones({values});
      // The heap needs some steps until there is room for all that a step takes at once.
      if (i >= 15) faults.push_back(process_usage().minor_faults - before);
      StepOutput output = SelfPlanned::training_step(b, i);
      output.loss = output.loss + large[0] * 0;
      return output;
    }
  };
  const auto faults_per_step = [](bool keep, int64_t values = 4 << 20) {
    // As at process start, but without glibc raising them automatically.
    ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
    ::mallopt(M_TRIM_THRESHOLD, 128 << 10);
    TemporaryFolder folder;
    TrainerOptions options = quiet(folder);
    options.allocator.keep_freed_memory = keep;
    auto module = std::make_shared<Large>();
    module->values = values;
    Trainer(options).fit(module, regression_data(120, 0));
    // The middle one: the heap may grow once more.
    std::sort(module->faults.begin(), module->faults.end());
    return module->faults.at(module->faults.size() / 2);
  };
  ::unsetenv("GLIBC_TUNABLES");
  ::unsetenv("MALLOC_TRIM_THRESHOLD_");
  ::unsetenv("MALLOC_MMAP_THRESHOLD_");
  CHECK(faults_per_step(false) > 2000);  // 4096 pages of 4 KiB, unless the kernel gives huge ones
  // Who starts the program decides.
  for (const auto& [name, value] :
       {std::pair{"MALLOC_TRIM_THRESHOLD_", "131072"}, {"GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072"}}) {
    ::setenv(name, value, 1);
    CHECK(faults_per_step(true) > 2000);
    ::unsetenv(name);
  }
  CHECK(faults_per_step(true) < 100);
  // glibc maps blocks of more than 32 MiB each time.
  constexpr int64_t kLarge = 10 << 20;
  CHECK(faults_per_step(false, kLarge) > 5000);
  CHECK(faults_per_step(true, kLarge) < 100);
}

TEST_CASE("allocator.keep_freed_memory: it holds from Trainer::prepare_process on, while the module is created") {
#ifdef __SANITIZE_ADDRESS__
  SKIP("AddressSanitizer has an allocator without these settings");
#endif
  ::unsetenv("GLIBC_TUNABLES");
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  const auto maps = [&](bool keep) {
    options.allocator.keep_freed_memory = keep;
    Trainer(options).prepare_process();
    ::malloc_trim(0);
    const size_t before = ::mallinfo2().hblks;
    // More than fit into what other tests have left in the heap. They are not touched.
    std::vector<Tensor> tensors(64);
    for (Tensor& tensor : tensors) tensor = at::empty({4 << 20}, at::kByte);
    return ::mallinfo2().hblks > before;
  };
  // Blocks that malloc maps return to the kernel when they are freed.
  CHECK(maps(false));
  CHECK_FALSE(maps(true));
  CHECK(maps(false));
}

TEST_CASE(
    "allocator.cuda: LibTorch gets the settings, what it refuses is an error, without CUDA they are warned about "
    "once") {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  fulgur::detail::set_allocator(
      {.keep_freed_memory = false, .cuda = "max_split_size_mb:64,garbage_collection_threshold:0.8"}, "cuda");
  CHECK(AcceleratorAllocatorConfig::max_split_size() == size_t{64} << 20);
  CHECK(AcceleratorAllocatorConfig::garbage_collection_threshold() == 0.8);
  const auto refuses = [](const char* text) {
    CAPTURE(text);
    CHECK_THROWS_AS(fulgur::detail::set_allocator({.keep_freed_memory = false, .cuda = text}, "cuda"), ConfigError);
  };
  refuses("max_split_size_mb:many");
  refuses("expandable_segments:maybe");
  // Which keys there are is known to CUDA's part of LibTorch, which needs no GPU for it.
  if (::dlopen("libc10_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    refuses("no_such_setting:1");
    CHECK_NOTHROW(
        fulgur::detail::set_allocator({.keep_freed_memory = false, .cuda = "release_lock_on_cudamalloc:True"}, "cuda"));
  }
  // What is not a list of pairs at all is found without CUDA.
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  for (const char* malformed : {"max_split_size_mb", "max_split_size_mb:", "a:1,,b:2", ":1", "a:[1"}) {
    CAPTURE(malformed);
    options.allocator.cuda = malformed;
    CHECK_THROWS_WITH(look(options, [] {}),
                      ContainsSubstring("[trainer.allocator.cuda]") && ContainsSubstring(malformed));
  }
  options.allocator.cuda = "expandable_segments:True, roundup_power2_divisions:[256:1,512:2]";
  const std::string lines = told([&] {
    look(options, [] {});
    look(options, [] {});
  });
  CHECK_THAT(lines, ContainsSubstring("trainer.allocator.cuda has no effect here: the run computes on cpu"));
  CHECK(lines.find("has no effect") == lines.rfind("has no effect"));
  CHECK_FALSE(AcceleratorAllocatorConfig::use_expandable_segments());
}

TEST_CASE("a fit reports its peak memory") {
  TemporaryFolder folder;
  TrainerOptions options = quiet(folder);
  constexpr int64_t kBytes = int64_t{512} << 20;
  const auto peak = [&](int64_t bytes) {
    FitReport report;
    const std::string lines = told([&] { report = look(options, [&] { at::ones({bytes}, at::kByte); }); });
    REQUIRE(report.peak_memory.size() == 1);
    CHECK(report.peak_memory[0].device == "cpu");
    CHECK(report.peak_memory[0].rank == 0);
    CHECK_THAT(lines, ContainsSubstring(peak_memory_text(report.peak_memory)));
    return report.peak_memory[0].bytes;
  };
  const int64_t resident = process_usage().resident, large = peak(kBytes), small = peak(1);
  CHECK(large >= resident + kBytes * 9 / 10);
  CHECK(large < resident + kBytes * 2);
  if (small >= large) SKIP("the kernel does not let a process set its peak back");
  CHECK(small < resident + kBytes / 2);
}

TEST_CASE("the text of peak memory names the maximum of each kind of device, and its rank if there are several") {
  CHECK(peak_memory_text({{.rank = 0, .device = "cpu", .bytes = int64_t{812} << 20}}) ==
        "peak memory: cpu 812 MiB resident");
  CHECK(peak_memory_text({{.rank = 0, .device = "cpu", .bytes = int64_t{1} << 30},
                          {.rank = 0, .device = "cuda:1", .bytes = int64_t{9523} << 20}}) ==
        "peak memory: cpu 1.00 GiB resident · cuda:1 9.30 GiB");
  CHECK(peak_memory_text({{.rank = 0, .device = "cpu", .bytes = 5 << 20},
                          {.rank = 0, .device = "cuda:0", .bytes = 7 << 20},
                          {.rank = 1, .device = "cpu", .bytes = 4 << 20},
                          {.rank = 1, .device = "cuda:1", .bytes = 8 << 20}}) ==
        "peak memory: cpu 5 MiB resident (rank 0) · cuda:1 8 MiB (rank 1)");
}

TEST_CASE("accelerator auto: a GPU that cannot be used is an error, or a warning in a build for the CPU") {
  using fulgur::detail::auto_without_cuda;
  CHECK(auto_without_cuda(DeviceUse::one, "this machine has no NVIDIA driver", "", false).empty());
  CHECK_THROWS_AS(auto_without_cuda(DeviceUse::one, "the driver is broken", "Repair it", false), ConfigError);
  CHECK_THROWS_AS(auto_without_cuda(DeviceUse::one_each, "the driver is broken", "Repair it", false), DistributedError);
  CHECK_THROWS_WITH(auto_without_cuda(DeviceUse::one, "the driver is broken", "Repair it", false),
                    "[trainer.accelerator] 'auto' would use a GPU; this machine has an NVIDIA driver, but the program "
                    "cannot use its GPUs: "
                    "the driver is broken. Set trainer.accelerator: cpu to train on the CPU. Repair it.");
  std::string note;
  const std::string lines =
      told([&] { note = auto_without_cuda(DeviceUse::one, "the driver is broken", "Repair it", true); });
  CHECK(note == " (built for the CPU: GPUs are not used)");
  CHECK_THAT(lines, ContainsSubstring("[trainer.built_for_cpu]") && ContainsSubstring("the driver is broken"));
}

}  // namespace device_options_test
