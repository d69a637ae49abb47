#include "mlflow/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {
namespace {

constexpr long kConnectSeconds = 5, kRequestSeconds = 120, kStalledSeconds = 300;

size_t keep_answer(char* data, size_t size, size_t count, void* to) {
  static_cast<std::string*>(to)->append(data, size * count);
  return size * count;
}

int ask_to_give_up(void* question, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return (*static_cast<const std::function<bool()>*>(question))() ? 1 : 0;
}

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

std::string percent_encoded(const std::string& text, bool keeps_slash) {
  std::string out;
  for (const char c : text) {
    if (is_plain(c) || (keeps_slash && c == '/')) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += "0123456789ABCDEF"[byte >> 4];
    out += "0123456789ABCDEF"[byte & 0xf];
  }
  return out;
}

using Headers = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

Headers headers_of(const char* content_type) {
  Headers headers(curl_slist_append(nullptr, cat("Content-Type: ", content_type).c_str()), &curl_slist_free_all);
  // Without this, an upload first waits for the server's consent.
  curl_slist_append(headers.get(), "Expect:");
  return headers;
}

}  // namespace

struct HttpClient::Impl {
  Identity identity;
  std::function<bool()> gives_up;
  CURL* curl = nullptr;

  void prepare(const std::string& url, std::string& answer, char* error) const {
    curl_easy_reset(curl);  // the connection stays
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);  // a thread's requests must not touch signals
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &keep_answer);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "fulgur");
    if (gives_up) {
      curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
      curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &ask_to_give_up);
      curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &gives_up);
    }
    // A request that is given up does not wait for the name server.
    curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);
    if (!identity.token.empty()) {
      curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, identity.token.c_str());
    } else if (!identity.user.empty()) {
      curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
      curl_easy_setopt(curl, CURLOPT_USERNAME, identity.user.c_str());
      curl_easy_setopt(curl, CURLOPT_PASSWORD, identity.password.c_str());
    }
    if (!identity.checks_certificate) {
      curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
      curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    }
  }

  template <class Configure>
  HttpAnswer request(const std::string& url, Configure configure) const {
    HttpAnswer answer;
    char error[CURL_ERROR_SIZE] = {};
    prepare(url, answer.body, error);
    configure();
    const CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK)
      throw Error(cat("[loggers.http] the server must answer; ", url, ": ",
                      error[0] != '\0' ? error : curl_easy_strerror(code), ". Check the address and the server."));
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    answer.status = status;
    return answer;
  }
};

HttpClient::HttpClient(Identity identity, std::function<bool()> gives_up) : impl_(std::make_unique<Impl>()) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  impl_->identity = std::move(identity);
  impl_->gives_up = std::move(gives_up);
  impl_->curl = ready == CURLE_OK ? curl_easy_init() : nullptr;
  if (impl_->curl == nullptr) throw Error("[loggers.http] libcurl must start; it did not. Check its installation.");
}

HttpClient::~HttpClient() { curl_easy_cleanup(impl_->curl); }

HttpAnswer HttpClient::get(const std::string& url) {
  return impl_->request(url, [&] { curl_easy_setopt(impl_->curl, CURLOPT_TIMEOUT, kRequestSeconds); });
}

HttpAnswer HttpClient::post_json(const std::string& url, const std::string& body) {
  const Headers headers = headers_of("application/json");
  return impl_->request(url, [&] {
    curl_easy_setopt(impl_->curl, CURLOPT_TIMEOUT, kRequestSeconds);
    curl_easy_setopt(impl_->curl, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(impl_->curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(impl_->curl, CURLOPT_POSTFIELDS, body.c_str());
  });
}

HttpAnswer HttpClient::put_bytes(const std::string& url, const std::string& content) {
  const Headers headers = headers_of("application/octet-stream");
  return impl_->request(url, [&] {
    curl_easy_setopt(impl_->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(impl_->curl, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
    curl_easy_setopt(impl_->curl, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(impl_->curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(content.size()));
    curl_easy_setopt(impl_->curl, CURLOPT_POSTFIELDS, content.c_str());
    curl_easy_setopt(impl_->curl, CURLOPT_CUSTOMREQUEST, "PUT");
  });
}

HttpAnswer HttpClient::put_file(const std::string& url, const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (!file) throw Error(cat("[loggers.http] the file must be readable; ", path, " is not. Check its permissions."));
  const Headers headers = headers_of("application/octet-stream");
  return impl_->request(url, [&] {
    curl_easy_setopt(impl_->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(impl_->curl, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
    curl_easy_setopt(impl_->curl, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(impl_->curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(impl_->curl, CURLOPT_READFUNCTION, nullptr);  // fread
    curl_easy_setopt(impl_->curl, CURLOPT_READDATA, file.get());
    curl_easy_setopt(impl_->curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(std::filesystem::file_size(path)));
  });
}

std::string HttpClient::escaped_path(const std::string& text) { return percent_encoded(text, true); }
std::string HttpClient::escaped(const std::string& text) { return percent_encoded(text, false); }

std::string HttpClient::unescaped(const std::string& text) {
  int size = 0;
  const std::unique_ptr<char, decltype(&curl_free)> plain(
      curl_easy_unescape(nullptr, text.c_str(), static_cast<int>(text.size()), &size), &curl_free);
  return plain ? std::string(plain.get(), static_cast<size_t>(size)) : text;
}

HttpClient::Address HttpClient::address(const std::string& uri) {
  const size_t scheme = uri.find("://"), begin = scheme == std::string::npos ? 0 : scheme + 3;
  const std::string host = uri.substr(begin, uri.find_first_of("/?#", begin) - begin);
  const size_t at = host.rfind('@');
  if (at == std::string::npos) return {.uri = uri, .user = "", .password = ""};
  const std::string identity = host.substr(0, at);
  const size_t colon = std::min(identity.find(':'), identity.size());
  return {.uri = uri.substr(0, begin) + uri.substr(begin + at + 1),
          .user = unescaped(identity.substr(0, colon)),
          .password = unescaped(identity.substr(std::min(colon + 1, identity.size())))};
}

}  // namespace fulgur
