#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "fulgur/core/contracts/data_module.h"
#include "fulgur/data/loading_options.h"

namespace fulgur {

/// Options of data sets in MNIST's four idx files.
struct FULGUR_API IdxImageOptions {
  std::filesystem::path data_dir;
  int64_t batch_size = 64;
  Auto<int64_t> eval_batch_size;
  int64_t val_size = 5000;
  int64_t split_seed = 0;
  bool normalize = true;
  bool shuffle = true;
  bool drop_last = false;
  LoadingOptions loading = {};

 protected:
  void fields_but_data_dir(Fields& f);
};

/// Texts about a data set in idx files for messages.
struct IdxImageSource {
  std::string module;                       ///< class name
  std::string origin;                       ///< where to get the files
  std::array<int64_t, 4> compressed_bytes;  ///< train images, train labels, t10k images, t10k labels
};

/// Greyscale images of ten classes in the idx files `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and `t10k-…`,
/// plain or with `.gz` (plain first). Batches: `image` (N, 1, H, W) float32, `label` (N) int64 in [0, 10).
///
/// Stored as uint8 and converted per batch to pixels / 255; with `normalize`, standardised with the mean and standard
/// deviation of the training part, which `state()` saves for the evaluation of a checkpoint. `val_size` training
/// samples, the same in each run with the same `split_seed`, are the validation set; test and predict use the `t10k`
/// files.
class FULGUR_API IdxImageDataModule : public DataModule {
 public:
  IdxImageDataModule(const IdxImageOptions& options, IdxImageSource source);
  ~IdxImageDataModule() override;

  /// Reads the files that `fn` needs, once, and checks each label. Throws a DataError if files are missing (it lists
  /// them all, with sizes and origin), are damaged or do not belong together; a ConfigError if `val_size` leaves no
  /// training samples.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  /// `num_classes`, `channels`, `height`, `width`, `num_features`.
  static constexpr const char* kExports = "num_classes, channels, height, width, num_features";
  StateTree exported_values() const override;
  /// `mean` and `std` of the training part's pixels / 255, with `normalize` and once computed.
  StateTree state() const override;
  /// From now on batches are normalised with the loaded values, including those of existing loaders.
  void load_state(const StateTree& state) override;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Fashion-MNIST; by default from Debian's package `dataset-fashion-mnist`.
class FULGUR_API FashionMnistDataModule : public IdxImageDataModule {
 public:
  struct Options : IdxImageOptions {
    Options() { data_dir = "/usr/share/datasets/fashion-mnist"; }
    void fields(Fields& f);
  };
  explicit FashionMnistDataModule(const Options& options);
};

/// MNIST, from a user's folder.
class FULGUR_API MnistDataModule : public IdxImageDataModule {
 public:
  struct Options : IdxImageOptions {
    void fields(Fields& f);
  };
  explicit MnistDataModule(const Options& options);
};

}  // namespace fulgur
