// Fulgur's side of benchmarks/gpu.sh:
//     gpu_bench --device cuda|cpu --plan PLAN.json --report REPORT.json --scratch FOLDER
// runs the cases of the plan one by one and writes the report after each, so that what was measured outlives a run that
// is ended.
#include <ATen/Context.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "fulgur/core/text/log.h"
#include "work.h"

namespace {

using namespace gpu_bench;

json run_case(const Case& work) {
  const auto kind = work.text("kind", "");
  try {
    if (kind == "training") return run_training(work);
    if (kind == "optimizer") return run_optimizer(work);
    if (kind == "input") return run_input(work);
    if (kind == "counts") return run_counts(work);
    throw std::runtime_error("there is no kind '" + kind + "'");
  } catch (const NotMeasured& reason) {
    return {{"not_measured", reason.what()}};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {{"failed", text.substr(0, text.find('\n'))}};
  }
}

void write(const std::string& path, const json& report) {
  std::ofstream(path + ".new") << report.dump() << '\n';
  std::filesystem::rename(path + ".new", path);
}

int run(const std::map<std::string, std::string>& arguments) {
  fulgur::log::set_level(fulgur::log::Level::warning);
  const auto& name = arguments.at("--device");
  const fulgur::Accelerator* accelerator = fulgur::find_accelerator(name);
  json report = json::array();
  if (!accelerator) {
    std::fprintf(stderr, "gpu_bench: no device '%s': %s\n", name.c_str(), fulgur::why_no_cuda().c_str());
    return 3;
  }
  at::globalContext().setFlushDenormal(true);
  json plan;
  std::ifstream(arguments.at("--plan")) >> plan;
  for (const json& values : plan) {
    json result = run_case({values, arguments.at("--scratch"), accelerator});
    result["id"] = values.at("id");
    report.push_back(result);
    write(arguments.at("--report"), report);
  }
  return 0;
}

}  // namespace

int main(int count, char** values) {
  std::map<std::string, std::string> arguments;
  for (int i = 1; i + 1 < count; i += 2) arguments[values[i]] = values[i + 1];
  for (const char* needed : {"--device", "--plan", "--report", "--scratch"})
    if (!arguments.contains(needed)) {
      std::fprintf(stderr, "gpu_bench: %s is needed\n", needed);
      return 2;
    }
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 2;
  }
}
