#pragma once

#include <fulgur/core/contracts/callback.h>

#include <string>

/// Logs the norm of parameters at the end of each epoch.
class WeightNorm : public fulgur::Callback {
 public:
  struct Options {
    std::string prefix;
    void fields(fulgur::Fields& f) {
      f(prefix, "prefix", "Beginning of the parameters' names; empty: all parameters.");
    }
  };
  explicit WeightNorm(const Options& options) : options_(options) {}
  void on_train_epoch_end(fulgur::RunContext& run) override;

 private:
  Options options_;
};
