#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "fulgur/strategies/cluster_environment.h"

namespace fulgur::detail {

/// Reads the variables of one cluster environment; its errors name the variable, the value and a remedy.
class EnvironmentValues {
 public:
  /// `advice` ends each message: how to start processes with correct variables.
  EnvironmentValues(const Environment& environment, std::string source, std::string advice)
      : environment_(environment), source_(std::move(source)), advice_(std::move(advice)) {}

  /// Nullopt if the variable is unset or empty.
  std::optional<std::string> text(const std::string& name) const;
  bool has(const std::string& name) const { return text(name).has_value(); }
  std::string need_text(const std::string& name) const;
  std::optional<int64_t> integer(const std::string& name, int64_t low, int64_t high = INT32_MAX) const;
  int64_t need_integer(const std::string& name, int64_t low, int64_t high = INT32_MAX) const;
  std::optional<std::string> first_of(std::initializer_list<const char*> names) const;
  /// `MASTER_PORT` etc.: 1 to 65535.
  std::optional<int64_t> port(const std::string& name) const { return integer(name, 1, 65535); }
  int64_t need_port(const std::string& name) const { return need_integer(name, 1, 65535); }
  [[noreturn]] void fail(std::string_view what) const;
  const std::string& source() const { return source_; }

 private:
  const Environment& environment_;
  std::string source_;
  std::string advice_;
};

/// How ranks are distributed over nodes.
enum class Layout {
  even_blocks,  ///< equal numbers of processes on each node, with consecutive ranks
  any,          ///< only what each process says about itself is known
};

/// The names of a place's numbers in messages.
struct PlaceNames {
  std::string rank, world_size, local_rank, local_world_size, node_rank, num_nodes;
};

/// Fails if the numbers of `place` contradict each other.
void check_place(const EnvironmentValues& values, const ProcessPlace& place, const PlaceNames& names, Layout layout);

bool is_loopback(const std::string& address);

bool started_by_srun(const Environment& environment);
bool interactive_slurm(const Environment& environment);
ProcessPlace slurm_place(const Environment& environment);

bool started_by_mpirun(const Environment& environment);
ProcessPlace mpi_place(const Environment& environment);

}  // namespace fulgur::detail
