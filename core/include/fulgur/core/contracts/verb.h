#pragma once

#include "fulgur/core/contracts/registry.h"
#include "fulgur/core/export.h"
#include "fulgur/core/text/errors.h"

namespace fulgur {

/// A verb of the command line that a program or a plug-in adds to those of `fulgur::main`: `my NAME --option value`.
/// The name is that under which it is registered, and its options are those of its `Options`. One object runs once, in
/// the process of the command.
class FULGUR_API Verb {
 public:
  static constexpr const char* kRegistryKind = "verb";

  virtual ~Verb();
  /// Does the work; the process ends with the result. Results belong on stdout, messages in the log. An exception is
  /// reported as those of the other verbs, with its exit code.
  virtual ExitCode run() = 0;
};

}  // namespace fulgur
