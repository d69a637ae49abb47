#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "fulgur/core/data_module.h"
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

/// What messages say of a data set in idx files.
struct IdxImageSource {
  std::string module;                       ///< class name
  std::string origin;                       ///< where to get the files
  std::array<int64_t, 4> compressed_bytes;  ///< train images, train labels, t10k images, t10k labels
};

/// Grey images of ten classes in the idx files `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and `t10k-…`, plain
/// or with `.gz` (plain first). Batches: `image` (N, 1, H, W) float32, `label` (N) int64 in [0, 10).
///
/// Kept as uint8 and converted by batch: to pixels / 255, and with `normalize` less the mean and over the standard
/// deviation of the training part, which `state()` keeps for the evaluation of a checkpoint. `val_size` training
/// samples, the same in each run with one `split_seed`, are the validation set; test and predict use the `t10k` files.
class FULGUR_API IdxImageDataModule : public DataModule {
 public:
  IdxImageDataModule(const IdxImageOptions& options, IdxImageSource source);
  ~IdxImageDataModule() override;

  /// Reads the files that `verb` needs, once, and checks each label. Throws a DataError for files that are missing (all
  /// of them, with their sizes and origin), damaged or do not belong together; a ConfigError where `val_size` leaves
  /// nothing.
  void setup(TrainerFn fn) override;
  std::vector<std::shared_ptr<Loader>> loaders(RunningStage stage) override;
  /// `num_classes`, `channels`, `height`, `width`, `num_features`.
  StateTree exported_values() const override;
  /// `mean` and `std` of the training part's pixels / 255, with `normalize` and once they are known.
  StateTree state() const override;
  /// Batches are normalised by the loaded values from now on, also those of loaders that were made before.
  void load_state(const StateTree& state) override;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Fashion-MNIST; by default where Debian's package `dataset-fashion-mnist` puts it.
class FULGUR_API FashionMnistDataModule : public IdxImageDataModule {
 public:
  struct Options : IdxImageOptions {
    Options() { data_dir = "/usr/share/datasets/fashion-mnist"; }
    void fields(Fields& f);
  };
  explicit FashionMnistDataModule(const Options& options);
};

/// MNIST, from a folder of the user's.
class FULGUR_API MnistDataModule : public IdxImageDataModule {
 public:
  struct Options : IdxImageOptions {
    void fields(Fields& f);
  };
  explicit MnistDataModule(const Options& options);
};

}  // namespace fulgur
