// The verbs doctor and env.
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "fulgur/core/device/accelerator.h"
#include "fulgur/core/system/usable_cpus.h"
#include "process.h"
#include "support/gpu.h"

namespace doctor_test {

using namespace fulgur::test;
using DoctorJson = nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr const char* kData =
    "data: {class_path: SyntheticDataModule, init_args: {num_train: 16, num_classes: 3, shape: [4]}}\n";

DoctorJson report_of(const Finished& doctor) {
  INFO(doctor.out << doctor.err);
  REQUIRE(DoctorJson::accept(doctor.out));
  return DoctorJson::parse(doctor.out);
}

/// The first finding about `about` whose text has `part`; null if there is none.
DoctorJson finding(const DoctorJson& report, const std::string& about, const std::string& part = "") {
  for (const auto& item : report["findings"])
    if (item["about"] == about && says(item["text"], part)) return item;
  return nullptr;
}

}  // namespace

TEST_CASE("doctor says what the machine offers and what auto chooses") {
  const TemporaryFolder folder;
  write_text(folder / "c.yaml", kData);
  const Finished text = trainer({"doctor", "-c", "c.yaml", "--trainer.accelerator", "cpu"}, {.folder = folder.path()});
  INFO(text.out << text.err);
  for (const char* about : {"CPU", "memory", "cuda", "gloo", "auto", "disk", "data"})
    CHECK(says(text.out, std::string("  ") + about));
  CHECK(says(text.out, "accelerator: cpu, devices: 1, strategy: single_device, precision: 32-true, num_threads: "));
  CHECK(says(text.out, "SyntheticDataModule was set up in "));
  // The measurement of the disk leaves no file.
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
  const DoctorJson report = report_of(trainer(
      {"doctor", "--json", "--trainer.accelerator", "cpu", "--trainer.num_threads", "1"}, {.folder = folder.path()}));
  CHECK(report["auto"]["accelerator"] == "cpu");
  CHECK(report["auto"]["num_threads"] == "1");
  CHECK(finding(report, "gloo")["level"] == "ok");
  CHECK(std::string(finding(report, "disk")["text"]).starts_with(fs::canonical(folder.path()).string() + ": "));
  CHECK(says(finding(report, "disk")["text"], "MiB/s"));
  CHECK(finding(report, "data").is_null());
}

TEST_CASE(
    "doctor fails for data that are not there, a folder that cannot be written to, and devices that do not exist") {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  const auto check = [&](const std::vector<std::string>& more, const std::string& about) {
    std::vector<std::string> arguments{"doctor", "--json", "--trainer.accelerator", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished doctor = trainer(arguments, {.folder = folder.path()});
    const DoctorJson report = report_of(doctor);
    INFO(doctor.out);
    CHECK(doctor.exit_code == 1);
    CHECK(report["ok"] == false);
    const DoctorJson found = finding(report, about);
    REQUIRE_FALSE(found.is_null());
    CHECK(found["level"] == "problem");
    CHECK_FALSE(found["fix"].get<std::string>().empty());
  };
  check({"--data", "ImageFolderDataModule", "--data.train_dir", "no_such_folder"}, "data");
  check({"--trainer.default_root_dir", "file/below"}, "disk");
  check({"--trainer.devices", "3"}, "auto");
}

TEST_CASE("doctor warns of more threads than CPUs") {
  const int64_t threads = fulgur::usable_cpus() + 1;
  const Finished doctor =
      trainer({"doctor", "--json", "--trainer.accelerator", "cpu", "--trainer.num_threads", std::to_string(threads)});
  const DoctorJson found = finding(report_of(doctor), "threads");
  REQUIRE_FALSE(found.is_null());
  CHECK(found["level"] == "warning");
  CHECK(says(found["fix"], "trainer.num_threads: "));
}

TEST_CASE("doctor names a GPU that the program cannot use") {
  const TemporaryFolder folder;
  const fs::path library = FULGUR_LIBRARY;
  fs::create_directory(folder / "lib");
  fs::copy_file(library, folder / "lib" / library.filename());
  const Finished doctor = trainer(
      {"doctor", "--json"}, {.folder = folder.path(),
                             .environment = {"LD_LIBRARY_PATH=" + (folder / "lib").string() + ":" FULGUR_FAKE_DRIVER,
                                             "FULGUR_FAKE_CUINIT=0"}});
  const DoctorJson cuda = finding(report_of(doctor), "cuda");
  REQUIRE_FALSE(cuda.is_null());
  CHECK(says(cuda["text"], "libfulgur_cuda.so could not be loaded"));
  CHECK(says(cuda["fix"], "FULGUR_LIBTORCH=cuda scripts/setup.sh"));
  CHECK(cuda["level"] == (fulgur::built_for_cpu() ? "warning" : "problem"));
  if (!fulgur::built_for_cpu()) CHECK(doctor.exit_code == 1);
}

TEST_CASE("doctor without a device does not load CUDA") {
  const Finished doctor =
      trainer({"doctor", "--json"},
              {.folder = {},
               .environment = {"LD_LIBRARY_PATH=" FULGUR_FAKE_DRIVER, "FULGUR_FAKE_CUINIT=100", "LD_DEBUG=files"}});
  const DoctorJson cuda = finding(report_of(doctor), "cuda");
  REQUIRE_FALSE(cuda.is_null());
  CHECK(cuda["level"] == "note");
  CHECK(says(cuda["text"], "lists no device"));
  // What the loader says of the files that it opens.
  CHECK(says(doctor.err, "file=libcuda.so.1"));
  CHECK_FALSE(says(doctor.err, "file=libfulgur_cuda.so"));
  CHECK_FALSE(says(doctor.err, "libtorch_cuda.so"));
}

TEST_CASE("on a GPU, doctor computes on each device and exchanges over NCCL", "[gpu]") {
  const int64_t there = require_gpus(1).device_count();
  const TemporaryFolder folder;
  const DoctorJson report = report_of(trainer({"doctor", "--json"}, {.folder = folder.path()}));
  INFO(report.dump(2));
  CHECK(report["auto"]["accelerator"] == "cuda");
  for (int64_t i = 0; i < there; ++i) {
    const DoctorJson device = finding(report, "cuda:" + std::to_string(i));
    REQUIRE_FALSE(device.is_null());
    // A device whose memory another program holds is a warning.
    CHECK(device["level"] != "problem");
  }
  for (const char* about : {"cuda", "gloo", "nccl"}) {
    INFO(about);
    REQUIRE_FALSE(finding(report, about).is_null());
    CHECK(finding(report, about)["level"] == "ok");
  }
}

TEST_CASE("doctor with a wrong config is a usage error") {
  const Finished doctor = trainer({"doctor", "--trainer.max_epochs", "many"});
  CHECK(doctor.exit_code == 2);
  CHECK(says(doctor.err, "trainer.max_epochs"));
}

TEST_CASE("env shows versions, hardware and variables, but not the values of options") {
  const std::vector<std::string> variables{"OMP_NUM_THREADS=1", "FULGUR_TRAINER__MAX_EPOCHS=31337"};
  const Finished text = trainer({"env"}, {.folder = {}, .environment = variables});
  INFO(text.out << text.err);
  CHECK(text.exit_code == 0);
  for (const char* part : {"Versions:\n", "fulgur", "LibTorch", "glibc ", "Hardware:\n", "usable of", "OMP_NUM_THREADS",
                           "FULGUR_TRAINER__MAX_EPOCHS"})
    CHECK(says(text.out, part));
  CHECK_FALSE(says(text.out, "31337"));
  const DoctorJson json = report_of(trainer({"env", "--json"}, {.folder = {}, .environment = variables}));
  CHECK(json["variables"]["OMP_NUM_THREADS"] == "1");
  CHECK(json["variables"]["FULGUR_TRAINER__MAX_EPOCHS"] == "(set)");
  CHECK(json["versions"]["LibTorch"].get<std::string>().starts_with("2."));
}

}  // namespace doctor_test
