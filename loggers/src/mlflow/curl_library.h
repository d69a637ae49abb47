#pragma once

#include <curl/curl.h>

namespace fulgur {

// The functions of libcurl that HttpClient uses. libcurl and its TLS libraries take 9 ms of the start of a process, so
// they are loaded when the first client is made, and a run without MLflow does not need them.
struct CurlLibrary {
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_unescape) easy_unescape;
  decltype(&curl_free) free;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;

  // Loads and initialises libcurl in the first call; throws Error, in each call, if that fails. Any thread may call it.
  static const CurlLibrary& get();
};

}  // namespace fulgur
