// What the tests with real launchers start: prints the place that it was given, in one line, without LibTorch.
#include <cstdio>
#include <cstdlib>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "fulgur/strategies/cluster_environment.h"

int main(int argc, char** argv) {
  using namespace fulgur;
  try {
    const auto place = detect_cluster_environment(process_environment(), argc > 1 ? argv[1] : "auto");
    const std::string line = place ? cat(place->environment, " rank ", place->rank, "/", place->world_size, " local ",
                                         place->local_rank, "/", place->local_world_size, " node ", place->node_rank,
                                         "/", place->num_nodes, " at ", place->main_address, ":", place->main_port,
                                         place->store_is_hosted ? " hosted" : "", " restarts ", place->restarts, "\n")
                                   : std::string("none\n");
    // One write: lines of several processes do not mix.
    std::fputs(line.c_str(), stdout);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
