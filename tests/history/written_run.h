#pragma once

#include <filesystem>
#include <string>

#include "support/temporary_folder.h"

namespace fulgur::test {

/// A run folder as the Trainer leaves it, with what the test adds.
struct WrittenRun {
  std::filesystem::path folder;

  explicit WrittenRun(std::filesystem::path path) : folder(std::move(path)) {
    std::filesystem::create_directories(folder / "checkpoints");
  }
  const WrittenRun& config(const std::string& yaml) const { return put("config.yaml", yaml); }
  const WrittenRun& csv(const std::string& text) const { return put("metrics.csv", text); }
  const WrittenRun& jsonl(const std::string& text) const { return put("metrics.jsonl", text); }
  const WrittenRun& finished(int epochs, int steps, double seconds) const {
    return put("finished.json", "{\"reason\":\"max_epochs\",\"epochs\":" + std::to_string(epochs) +
                                    ",\"global_step\":" + std::to_string(steps) +
                                    ",\"fit_time_s\":" + std::to_string(seconds) + "}\n");
  }
  const WrittenRun& failed(const std::string& error) const {
    return put("failed.json", "{\"error\":\"" + error + "\"}");
  }
  const WrittenRun& checkpoint(int epoch, int step, double seconds, const std::string& link = "") const {
    const std::string name = "epoch=" + std::to_string(epoch) + "-step=" + std::to_string(step) + ".ckpt";
    const auto path = folder / "checkpoints" / name;
    std::filesystem::create_directories(path);
    write_text(path / "manifest.json",
               "{\"origin\": {\"fulgur\":\"0.1.0\",\"libtorch\":\"2.11.0\",\"device\":\"1 × cpu\",\"world_size\":1,"
               "\"threads\":2},\"epoch\": " +
                   std::to_string(epoch) + ",\"global_step\": " + std::to_string(step) +
                   ",\"weights_only\": false,\"files\": {\"model.safetensors\": {\"bytes\": 1500000}}}");
    write_text(path / "state.json",
               "{\n\"state\": {\n\"metrics\": {\"val_loss\":0.5},\n\"progress\": {\"epochs\":{"
               "\"completed\":" +
                   std::to_string(epoch + 1) + "},\"fit_time_s\":" + std::to_string(seconds) +
                   "},\n\"weights_only\": false\n}\n}\n");
    if (!link.empty()) std::filesystem::create_symlink(name, folder / "checkpoints" / link);
    return *this;
  }
  const WrittenRun& put(const std::string& name, const std::string& text) const {
    write_text(folder / name, text);
    return *this;
  }
};

}  // namespace fulgur::test
