#include "fulgur/loggers/logger_options.h"

namespace fulgur {

void LoggerOptions::fields(Fields& f) {
  f(name, "name", "Folder of the runs under default_root_dir.");
  f(version, "version", "Number of the run's folder; auto: the next free one.").at_least(0);
}

}  // namespace fulgur
