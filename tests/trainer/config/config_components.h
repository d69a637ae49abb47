#pragma once

#include <string>
#include <vector>

#include "fulgur/trainer/config.h"

// After LibTorch, whose headers define their own CHECK.
#include <catch2/catch_test_macros.hpp>

namespace fulgur::test {

/// Reads a config from a YAML text and overrides, as `trainer` does from files.
Config load(const std::string& yaml, const std::vector<std::pair<std::string, std::string>>& overrides = {},
            const std::vector<std::pair<std::string, std::string>>& environment = {});

/// The ConfigError's message of the same.
std::string load_error(const std::string& yaml, const std::vector<std::pair<std::string, std::string>>& overrides = {},
                       const std::vector<std::pair<std::string, std::string>>& environment = {});

/// The value at a dotted path of the written config, as YAML without the line end; `missing` if there is none.
std::string value_at(const Config& config, const std::string& path);

}  // namespace fulgur::test
