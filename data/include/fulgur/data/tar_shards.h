#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fulgur/core/contracts/dataset.h"
#include "fulgur/data/sample.h"

namespace fulgur {

/// The consecutive files of a tar archive whose paths are equal up to the first dot of the file name: `a/0001.jpg` and
/// `a/0001.cls.txt` are the members `jpg` and `cls.txt` of sample `a/0001`.
struct FULGUR_API TarSample {
  std::string key;
  std::map<std::string, std::string> members;  ///< the bytes of each file, by its ending
  std::filesystem::path shard;
  /// The bytes of a member; throws a DataError that names sample and shard if it is missing.
  const std::string& member(const std::string& ending) const;
};

/// How TarShards reads.
struct TarShardsOptions {
  /// Paths of tar files; `{000..012}` stands for the numbers of that range, with leading zeros as in its first number.
  std::vector<std::string> shards = {};
  bool shuffle = true;           ///< the order of the shards, and of samples inside the buffer
  int64_t shuffle_buffer = 256;  ///< samples that are shuffled with each other; 1: the order of the shards only
  /// Makes a sample of the bytes, on the thread that reads. Without it, batches have `key` (strings) and for each
  /// member a list of uint8 tensors, one per sample.
  std::function<Sample(const TarSample&, const SampleContext&)> decode = {};
};

/// Samples of tar files (the format of WebDataset) as a stream. The order of the shards is a function of seed and
/// epoch; rank r of w reads the shards r, r + w, … of this order. The samples of a rank are divided into blocks of
/// shuffle_buffer samples, each of which is shuffled. The state is the place of the current block in a shard and the
/// number of its samples that were returned: a resume seeks to this place, and reads at most one block twice.
///
/// Tar files must not be compressed, and must end with the blocks of zeros that mark the end of an archive. Folders and
/// links in them are skipped.
class FULGUR_API TarShards : public IterableDataset {
 public:
  /// Throws a ConfigError if there is no shard, for braces that are no range, and for a buffer below 1, and a DataError
  /// that names shards that do not exist.
  explicit TarShards(TarShardsOptions options);
  ~TarShards() override;

  /// Throws a DistributedError for more processes than shards.
  void set_share(int64_t rank, int64_t world_size) override;
  void reset(const SampleContext& context) override;
  /// Throws a DataError that names shard and sample for archives that are damaged or not complete, and for samples
  /// without the entries of the first.
  std::optional<Batch> next(int64_t count, const SampleContext& context) override;
  StateTree state() const override;
  /// Throws a CheckpointError for a state of other shards, another order or another buffer, and if the shards of the
  /// current block have changed.
  void load_state(const StateTree& state) override;
  /// The files, after braces were expanded.
  const std::vector<std::filesystem::path>& shards() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// `a{08..10}.tar` as `a08.tar`, `a09.tar`, `a10.tar`; several braces are combined. Throws a ConfigError for braces
/// that are no range of whole numbers, and for more than a million results.
FULGUR_API std::vector<std::string> expand_braces(const std::string& text);

}  // namespace fulgur
