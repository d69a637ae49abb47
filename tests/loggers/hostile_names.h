#pragma once

#include <string>
#include <vector>

namespace fulgur::test {

/// Metric names that break careless writers.
inline std::vector<std::string> hostile_names() {
  return {"a,b",
          "say \"hi\"",
          "line\nbreak",
          "cr\r\nlf",
          "\x1b[31mred",
          "tab\there",
          " spaces ",
          "\"",
          "\"\"",
          ",",
          "\n",
          "=1+1",
          "ünïcode",
          std::string(10'240, 'x'),
          "val_loss/dataloader_idx_0",
          "'",
          "\\n",
          ""};
}

}  // namespace fulgur::test
