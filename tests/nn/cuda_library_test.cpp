// Tests on a GPU are of any use only if libfulgur_cuda.so joins the program under test.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <link.h>
#include <torch/csrc/autograd/engine.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>
#include <typeinfo>
#include <vector>

#include "device/cuda_driver.h"
#include "saved_tensor_engine.h"
#include "support/gpu.h"

namespace cuda_library_test {

using namespace fulgur;
using namespace fulgur::test;
using Catch::Matchers::ContainsSubstring;
using torch::autograd::Engine;

#ifdef FULGUR_WITH_CUDA
namespace {

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* list) {
        static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
        return 0;
      },
      &names);
  return names;
}

}  // namespace
#endif

TEST_CASE("FULGUR_REQUIRE_GPU makes a missing GPU a failure") {
  CHECK(check_gpus(0, 1, nullptr) == GpuCheck::skip);
  CHECK(check_gpus(0, 1, "") == GpuCheck::skip);
  CHECK(check_gpus(0, 1, "0") == GpuCheck::skip);
  CHECK(check_gpus(0, 1, "1") == GpuCheck::fail);
  CHECK(check_gpus(1, 1, "2") == GpuCheck::enough);
  CHECK(check_gpus(1, 2, "1") == GpuCheck::skip);
  CHECK(check_gpus(1, 2, "2") == GpuCheck::fail);
  CHECK(check_gpus(2, 2, nullptr) == GpuCheck::enough);
  for (const char* text : {"yes", "2x", "-1"}) CHECK(check_gpus(8, 1, text) == GpuCheck::fail);
}

#ifdef FULGUR_WITH_CUDA
// Run once more with a made-up driver, so that it does not skip everywhere.
TEST_CASE("a program that seeds before a run asks for CUDA gets LibTorch's CUDA, not stand-ins", "[driver]") {
  if (fulgur::detail::find_cuda_driver().state != fulgur::detail::CudaDriver::State::ready)
    SKIP("no NVIDIA driver with a device");
  at::manual_seed(1);
  find_accelerator("cuda");
  const std::string reason = why_no_cuda();
  if (reason.find("cannot open shared object file") != std::string::npos) SKIP(reason);
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  CHECK(typeid(hooks) != typeid(at::CUDAHooksInterface));
}

TEST_CASE("libfulgur_cuda.so loads into a test program and takes that program's registries and engine") {
  const Engine* const engine = &Engine::get_default_engine();
  const int64_t before = accelerator_count();
  if (dlopen("libfulgur_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const std::string reason = dlerror();
    // A library of CUDA may be missing, as in LibTorch's cpu part; ours may not, and must fit.
    CAPTURE(reason);
    REQUIRE_FALSE(reason.starts_with("libfulgur_cuda.so"));
    REQUIRE_THAT(reason, ContainsSubstring("cannot open shared object file"));
    SKIP(reason);
  }
  for (const std::string& name : loaded_libraries()) CHECK_THAT(name, !ContainsSubstring("/libfulgur.so"));
  CHECK(&Engine::get_default_engine() == engine);
  struct Keeping : nn::SaveScope {
    std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return nullptr; }
  };
  CHECK_NOTHROW(Keeping());
  CHECK(accelerator_count() == before + 1);
}
#endif

}  // namespace cuda_library_test
