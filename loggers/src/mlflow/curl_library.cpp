#include "mlflow/curl_library.h"

#include <dlfcn.h>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr const char* kCurlFile = "libcurl.so.4";

void* open_curl() {
  if (void* const library = ::dlopen(kCurlFile, RTLD_NOW | RTLD_LOCAL)) return library;
  throw Error(cat("[loggers.http] libcurl must be installed: loading ", kCurlFile, " failed with ", ::dlerror(),
                  ". Install it (Debian package libcurl4), or use another logger."));
}

template <class Function>
void find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    throw Error(cat("[loggers.http] ", kCurlFile, " must have the function ", name,
                    ", which it lacks. Install a newer libcurl."));
}

CurlLibrary load_curl() {
  void* const library = open_curl();
  decltype(&curl_global_init) global_init = nullptr;
  find_function(library, "curl_global_init", global_init);
  CurlLibrary curl{};
  find_function(library, "curl_easy_init", curl.easy_init);
  find_function(library, "curl_easy_reset", curl.easy_reset);
  find_function(library, "curl_easy_setopt", curl.easy_setopt);
  find_function(library, "curl_easy_perform", curl.easy_perform);
  find_function(library, "curl_easy_getinfo", curl.easy_getinfo);
  find_function(library, "curl_easy_strerror", curl.easy_strerror);
  find_function(library, "curl_easy_cleanup", curl.easy_cleanup);
  find_function(library, "curl_easy_unescape", curl.easy_unescape);
  find_function(library, "curl_free", curl.free);
  find_function(library, "curl_slist_append", curl.slist_append);
  find_function(library, "curl_slist_free_all", curl.slist_free_all);
  if (const CURLcode code = global_init(CURL_GLOBAL_DEFAULT); code != CURLE_OK)
    throw Error(cat("[loggers.http] libcurl must start; it failed with \"", curl.easy_strerror(code),
                    "\". Check its installation."));
  return curl;
}

}  // namespace

const CurlLibrary& CurlLibrary::get() {
  static const CurlLibrary curl = load_curl();
  return curl;
}

}  // namespace fulgur
