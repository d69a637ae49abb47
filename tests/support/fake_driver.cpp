// As much of libcuda.so.1 as core/src/device/cuda_driver.cpp asks for. FULGUR_FAKE_CUINIT is what cuInit returns.
#include <cstdlib>

#define DRIVER_API extern "C" __attribute__((visibility("default")))

DRIVER_API int cuInit(unsigned) {
  const char* const code = std::getenv("FULGUR_FAKE_CUINIT");
  return code ? std::atoi(code) : 0;
}

DRIVER_API int cuGetErrorString(int, const char** text) {
  *text = "made up";
  return 0;
}
