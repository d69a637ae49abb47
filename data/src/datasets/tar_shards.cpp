#include "fulgur/data/tar_shards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <system_error>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/data/file_fingerprint.h"
#include "reading/tar_reader.h"
#include "sampling/permutation.h"

namespace fulgur {
namespace {

constexpr size_t kMostShards = 1000000;

/// `a/b.c/0001.seg.png`: the key `a/b.c/0001` and the ending `seg.png`; no ending for a name without a dot, or with one
/// at its beginning only.
std::pair<std::string, std::string> key_and_ending(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', begin + 1);
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

Tensor bytes_tensor(const std::string& bytes) {
  Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

Tensor as_tensor(const Sample::Value& value) {
  if (const auto* tensor = std::get_if<Tensor>(&value)) return tensor->detach();
  if (const auto* number = std::get_if<int64_t>(&value)) return at::scalar_tensor(*number, at::kLong);
  if (const auto* number = std::get_if<double>(&value)) return at::scalar_tensor(*number, at::kDouble);
  if (const auto* number = std::get_if<float>(&value)) return at::scalar_tensor(*number, at::kFloat);
  return at::scalar_tensor(std::get<bool>(value), at::kBool);
}

std::string place_text(const TarSample& sample) {
  return cat("sample '", escape_controls(sample.key), "' of '", escape_controls(sample.shard.string()), "'");
}

/// Raw samples as a batch: `key`, and a list of uint8 tensors per member.
Batch raw_batch(const std::vector<const TarSample*>& samples) {
  Batch batch;
  std::vector<std::string> keys;
  for (const TarSample* sample : samples) keys.push_back(sample->key);
  batch.add("key", std::move(keys));
  for (const auto& [ending, bytes] : samples.front()->members) {
    std::vector<Tensor> list;
    for (const TarSample* sample : samples) {
      if (sample->members.size() != samples.front()->members.size())
        throw DataError(cat("[data.TarShards] all samples must have the same members; ", place_text(*sample), " has ",
                            sample->members.size(), " and ", place_text(*samples.front()), " has ",
                            samples.front()->members.size(), "."));
      list.push_back(bytes_tensor(sample->member(ending)));
    }
    batch.add(ending, std::move(list));
  }
  return batch;
}

/// Decoded samples as a batch, stacked.
Batch decoded_batch(const std::vector<std::pair<const TarSample*, Sample>>& samples) {
  Batch batch;
  const Sample& first = samples.front().second;
  for (size_t i = 0; i < first.entries(); ++i) {
    const auto& [name, value] = first.entry(i);
    std::vector<std::string> texts;
    std::vector<Tensor> tensors;
    for (const auto& [raw, sample] : samples) {
      const bool is_alike =
          sample.entries() == first.entries() && sample.entry(i).first == name &&
          std::holds_alternative<std::string>(sample.entry(i).second) == std::holds_alternative<std::string>(value);
      if (!is_alike)
        throw DataError(cat("[data.TarShards] decode must return the same entries for all samples; that of ",
                            place_text(*raw), " differs from that of ", place_text(*samples.front().first),
                            " at entry '", name, "'."));
      if (const auto* text = std::get_if<std::string>(&sample.entry(i).second)) {
        texts.push_back(*text);
        continue;
      }
      tensors.push_back(as_tensor(sample.entry(i).second));
      if (!tensors.back().defined() || tensors.back().sizes() != tensors.front().sizes() ||
          tensors.back().scalar_type() != tensors.front().scalar_type())
        throw DataError(cat("[data.TarShards] tensors of entry '", name, "' must have the same shape and dtype; ",
                            place_text(*raw), " has ",
                            tensors.back().defined() ? shape_text(tensors.back().sizes()) : "none", ", ",
                            place_text(*samples.front().first), " has ", shape_text(tensors.front().sizes()), "."));
    }
    if (tensors.empty())
      batch.add(name, std::move(texts));
    else
      batch.add(name, at::stack(tensors));
  }
  return batch;
}

// Otherwise a missing shard would end a run when it is reached, perhaps after hours.
void check_shards_exist(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> missing;
  for (const std::filesystem::path& path : paths) {
    std::error_code error;
    if (std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found)
      missing.push_back(cat("'", escape_controls(path.string()), "'"));
  }
  if (missing.empty()) return;
  const size_t count = missing.size();
  throw DataError(cat("[data.TarShards] all shards must exist; ", count, " of ", paths.size(),
                      count == 1 ? " does not: " : " do not: ", join_some(std::move(missing), 5),
                      ". Check the paths and the ranges in braces."));
}

}  // namespace

const std::string& TarSample::member(const std::string& ending) const {
  const auto found = members.find(ending);
  if (found != members.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, bytes] : members) names.push_back(name);
  throw DataError(cat("[data.TarShards] ", place_text(*this), " must have a member '", escape_controls(ending),
                      "'; it has ", escape_controls(join_some(names, 10)), "."));
}

std::vector<std::string> expand_braces(const std::string& text) {
  const size_t open = text.find('{');
  if (open == std::string::npos) return {text};
  const size_t close = text.find('}', open);
  const std::string inside = close == std::string::npos ? "" : text.substr(open + 1, close - open - 1);
  const size_t dots = inside.find("..");
  const std::string first = inside.substr(0, std::min(dots, inside.size()));
  const std::string last = dots == std::string::npos ? "" : inside.substr(dots + 2);
  const auto number_in = [](const std::string& digits) {
    return all_digits(digits) ? parse_whole<int64_t>(digits).value_or(-1) : -1;
  };
  const int64_t begin = number_in(first), end = number_in(last);
  if (begin < 0 || end < begin)
    throw ConfigError(
        cat("[data.TarShards] braces must contain a range such as {000..012}; got '", escape_controls(text), "'."));
  const std::vector<std::string> rests = expand_braces(text.substr(close + 1));
  if (static_cast<uint64_t>(end - begin) >= kMostShards / rests.size())
    throw ConfigError(cat("[data.TarShards] braces may stand for at most ", kMostShards, " files; '",
                          escape_controls(text), "' stands for more."));
  std::vector<std::string> expanded;
  for (int64_t number = begin; number <= end; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
    for (const std::string& rest : rests) expanded.push_back(cat(text.substr(0, open), digits, rest));
  }
  return expanded;
}

struct TarShards::Impl {
  /// Where a sample begins.
  struct Place {
    int64_t shard = 0;  ///< number in this rank's order
    int64_t byte = 0;
  };

  TarShardsOptions options;
  std::vector<std::filesystem::path> paths;
  int64_t rank = 0, world_size = 1;
  SampleContext context;
  std::vector<int64_t> order;  ///< of this rank's shards in the epoch
  Place next_place;            ///< of the sample that is read next
  std::unique_ptr<TarReader> reader;
  bool has_member = false;  ///< the reader is at a file that was not read, the first of its sample
  Place block_start;
  int64_t block_last = -1;  ///< the last shard that the block needs
  int64_t block = -1, returned = 0;
  std::vector<TarSample> buffer;
  std::string names;                              ///< fingerprint of the paths
  std::string block_contents;                     ///< fingerprint of the block's shards
  std::map<int64_t, std::string> shard_contents;  ///< fingerprints by number in this rank's order

  void start(const Place& place) {
    reader.reset();
    has_member = false;
    next_place = place;
    buffer.clear();
    returned = 0;
  }
  const std::filesystem::path& path_of(int64_t shard) const {
    return paths[static_cast<size_t>(order[static_cast<size_t>(shard)])];
  }
  bool open_next();
  std::optional<TarSample> read_sample();
  bool read_block();
  std::string contents_of(int64_t first, int64_t last);
};

/// The fingerprint of the shards from `first` to `last`; those before `first` are not needed again.
std::string TarShards::Impl::contents_of(int64_t first, int64_t last) {
  shard_contents.erase(shard_contents.begin(), shard_contents.lower_bound(first));
  std::string all;
  for (int64_t shard = first; shard <= last; ++shard) {
    std::string& contents = shard_contents[shard];
    if (contents.empty()) contents = detail::file_fingerprint(path_of(shard));
    all += contents;
  }
  return detail::fingerprint_of(all);
}

/// Whether the reader is at a file that was not read.
bool TarShards::Impl::open_next() {
  while (!has_member) {
    if (next_place.shard >= static_cast<int64_t>(order.size())) return false;
    if (!reader) reader = std::make_unique<TarReader>(path_of(next_place.shard), next_place.byte);
    has_member = reader->next();
    if (has_member) {
      next_place.byte = reader->place();
      break;
    }
    reader.reset();
    next_place = {next_place.shard + 1, 0};
  }
  return true;
}

std::optional<TarSample> TarShards::Impl::read_sample() {
  if (!open_next()) return std::nullopt;
  TarSample sample;
  sample.key = key_and_ending(reader->name()).first;
  sample.shard = path_of(next_place.shard);
  while (has_member) {
    const auto [key, ending] = key_and_ending(reader->name());
    if (key != sample.key) {
      next_place.byte = reader->place();
      return sample;
    }
    if (!sample.members.emplace(ending, reader->read()).second)
      throw DataError(cat("[data.TarShards] each member of a sample must be there once; ", place_text(sample), " has '",
                          escape_controls(ending), "' twice."));
    has_member = reader->next();
  }
  reader.reset();
  next_place = {next_place.shard + 1, 0};
  return sample;
}

bool TarShards::Impl::read_block() {
  open_next();
  block_start = next_place;
  ++block;
  returned = 0;
  buffer.clear();
  while (static_cast<int64_t>(buffer.size()) < options.shuffle_buffer) {
    auto sample = read_sample();
    if (!sample) break;
    buffer.push_back(std::move(*sample));
  }
  block_last = std::min(next_place.shard, static_cast<int64_t>(order.size()) - 1);
  block_contents = contents_of(block_start.shard, block_last);
  if (options.shuffle) {
    // Independent of the numbers that `decode` may draw for a sample.
    SplitMix64 random(mix_bits(context.random(block).next() ^ static_cast<uint64_t>(rank)));
    for (size_t i = buffer.size(); i > 1; --i) std::swap(buffer[i - 1], buffer[random.below(i)]);
  }
  return !buffer.empty();
}

TarShards::TarShards(TarShardsOptions options) : impl_(std::make_unique<Impl>()) {
  for (const std::string& text : options.shards)
    for (std::string& path : expand_braces(text)) impl_->paths.emplace_back(std::move(path));
  if (impl_->paths.empty()) throw ConfigError("[data.TarShards] at least one shard is needed; got none.");
  if (options.shuffle_buffer < 1)
    throw ConfigError(cat("[data.TarShards] shuffle_buffer must be at least 1; got ", options.shuffle_buffer, "."));
  check_shards_exist(impl_->paths);
  impl_->options = std::move(options);
  impl_->names = detail::fingerprint_of_names(impl_->paths);
}

TarShards::~TarShards() = default;

const std::vector<std::filesystem::path>& TarShards::shards() const { return impl_->paths; }

void TarShards::set_share(int64_t rank, int64_t world_size) {
  if (world_size > static_cast<int64_t>(impl_->paths.size()))
    throw DistributedError(cat("[data.TarShards] each process must have a shard; there are ", impl_->paths.size(),
                               " shards for ", world_size, " processes. Write more and smaller shards."));
  impl_->rank = rank;
  impl_->world_size = world_size;
}

void TarShards::reset(const SampleContext& context) {
  Impl& m = *impl_;
  m.context = context;
  const auto count = static_cast<int64_t>(m.paths.size());
  std::vector<int64_t> all(m.paths.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  // A stream that no sampler of the same seed uses.
  constexpr uint64_t kShardStream = 0x7368617264000000u;
  if (m.options.shuffle)
    all = random_permutation(count, context.seed, kShardStream ^ static_cast<uint64_t>(context.epoch));
  m.order.clear();
  for (int64_t i = m.rank; i < count; i += m.world_size) m.order.push_back(all[static_cast<size_t>(i)]);
  m.start({});
  m.block_start = {};
  m.block = m.block_last = -1;
  m.block_contents.clear();
  m.shard_contents.clear();
}

std::optional<Batch> TarShards::next(int64_t count, const SampleContext& context) {
  Impl& m = *impl_;
  std::vector<TarSample> taken;
  while (static_cast<int64_t>(taken.size()) < count) {
    if (m.returned == static_cast<int64_t>(m.buffer.size()) && !m.read_block()) break;
    taken.push_back(std::move(m.buffer[static_cast<size_t>(m.returned++)]));
  }
  if (taken.empty()) return std::nullopt;
  if (!m.options.decode) {
    std::vector<const TarSample*> samples;
    for (const TarSample& sample : taken) samples.push_back(&sample);
    return raw_batch(samples);
  }
  std::vector<std::pair<const TarSample*, Sample>> samples;
  for (const TarSample& sample : taken) samples.emplace_back(&sample, m.options.decode(sample, context));
  return decoded_batch(samples);
}

StateTree TarShards::state() const {
  const Impl& m = *impl_;
  return StateTree::map({{"shards", static_cast<int64_t>(m.paths.size())},
                         {"names", m.names},
                         {"shuffle", m.options.shuffle},
                         {"shuffle_buffer", m.options.shuffle_buffer},
                         {"last_shard", m.block_last},
                         {"contents", m.block_contents},
                         {"shard", m.block_start.shard},
                         {"byte", m.block_start.byte},
                         {"block", m.block},
                         {"returned", m.returned}});
}

void TarShards::load_state(const StateTree& state) {
  Impl& m = *impl_;
  const int64_t shards = state.at("shards").as_int(), buffer = state.at("shuffle_buffer").as_int();
  const int64_t block = state.at("block").as_int(), returned = state.at("returned").as_int();
  const Impl::Place place{state.at("shard").as_int(), state.at("byte").as_int()};
  if (shards != static_cast<int64_t>(m.paths.size()) || buffer != m.options.shuffle_buffer)
    throw CheckpointError(cat("[data.TarShards] the checkpoint was saved within an epoch of ", shards,
                              " shards with shuffle_buffer ", buffer, "; the run has ", m.paths.size(), " and ",
                              m.options.shuffle_buffer, ". Resume with the same ones."));
  if (state.at("names").as_string() != m.names)
    throw CheckpointError(
        cat("[data.TarShards] the shards and their order must be those with which the checkpoint was saved; the run "
            "has others, which begin with '",
            escape_controls(m.paths.front().string()), "'. Resume with the same ones."));
  if (const bool shuffled = state.at("shuffle").as_bool(); shuffled != m.options.shuffle)
    throw CheckpointError(cat("[data.TarShards] the checkpoint was saved within an epoch with shuffle ", shuffled,
                              ", but the run has ", m.options.shuffle, ". Resume with the same one."));
  const int64_t last = state.at("last_shard").as_int();
  if (place.shard < 0 || place.byte < 0 || block < -1 || returned < 0 || last < -1)
    throw CheckpointError("[data.TarShards] a position must not be negative. The checkpoint is damaged.");
  if (last >= static_cast<int64_t>(m.order.size()))
    throw CheckpointError(cat("[data.TarShards] a position must be in one of the ", m.order.size(),
                              " shards of this process; got ", last, ". The checkpoint is damaged."));
  if (block >= 0 && m.contents_of(place.shard, last) != state.at("contents").as_string())
    throw CheckpointError(
        cat("[data.TarShards] shards must not change within an epoch; ",
            place.shard <= last ? cat("'", escape_controls(m.path_of(place.shard).string()), "' or one after it")
                                : std::string("one of them"),
            " is not as it was when the checkpoint was saved. Resume from a checkpoint of the end of an epoch."));
  m.start(place);
  m.block_start = place;
  m.block = block;
  if (block < 0) return;
  --m.block;
  m.read_block();
  if (returned > static_cast<int64_t>(m.buffer.size()))
    throw CheckpointError(
        cat("[data.TarShards] the shards must have the samples that they had; the checkpoint continues "
            "after sample ",
            returned, " of a block that has ", m.buffer.size(), " now."));
  m.returned = returned;
}

}  // namespace fulgur
