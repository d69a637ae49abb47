#include "mlflow/http_client.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "mlflow/curl_library.h"

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

Headers headers_of(const CurlLibrary& library, const char* content_type) {
  Headers headers(library.slist_append(nullptr, cat("Content-Type: ", content_type).c_str()), library.slist_free_all);
  // Without this, an upload first waits for the server's consent.
  library.slist_append(headers.get(), "Expect:");
  return headers;
}

}  // namespace

struct HttpClient::Impl {
  const CurlLibrary& library = CurlLibrary::get();
  Identity identity;
  std::function<bool()> gives_up;
  CURL* curl = nullptr;

  template <class Value>
  void set(CURLoption option, Value value) const {
    library.easy_setopt(curl, option, value);
  }

  void prepare(const std::string& url, std::string& answer, char* error) const {
    library.easy_reset(curl);  // the connection stays
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_NOSIGNAL, 1L);  // a thread's requests must not touch signals
    set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    set(CURLOPT_WRITEFUNCTION, &keep_answer);
    set(CURLOPT_WRITEDATA, &answer);
    set(CURLOPT_ERRORBUFFER, error);
    set(CURLOPT_USERAGENT, "fulgur");
    if (gives_up) {
      set(CURLOPT_NOPROGRESS, 0L);
      set(CURLOPT_XFERINFOFUNCTION, &ask_to_give_up);
      set(CURLOPT_XFERINFODATA, &gives_up);
    }
    // A request that is given up does not wait for the name server.
    set(CURLOPT_QUICK_EXIT, 1L);
    if (!identity.token.empty()) {
      set(CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      set(CURLOPT_XOAUTH2_BEARER, identity.token.c_str());
    } else if (!identity.user.empty()) {
      set(CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
      set(CURLOPT_USERNAME, identity.user.c_str());
      set(CURLOPT_PASSWORD, identity.password.c_str());
    }
    if (!identity.checks_certificate) {
      set(CURLOPT_SSL_VERIFYPEER, 0L);
      set(CURLOPT_SSL_VERIFYHOST, 0L);
    }
  }

  template <class Configure>
  HttpAnswer request(const std::string& url, Configure configure) const {
    HttpAnswer answer;
    char error[CURL_ERROR_SIZE] = {};
    prepare(url, answer.body, error);
    configure();
    const CURLcode code = library.easy_perform(curl);
    if (code != CURLE_OK)
      throw Error(cat("[loggers.http] the server must answer; ", url, ": ",
                      error[0] != '\0' ? error : library.easy_strerror(code), ". Check the address and the server."));
    long status = 0;
    library.easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    answer.status = status;
    return answer;
  }
};

HttpClient::HttpClient(Identity identity, std::function<bool()> gives_up) : impl_(std::make_unique<Impl>()) {
  impl_->identity = std::move(identity);
  impl_->gives_up = std::move(gives_up);
  impl_->curl = impl_->library.easy_init();
  if (impl_->curl == nullptr)
    throw Error("[loggers.http] libcurl must make a connection's handle; it did not. Check the free memory.");
}

HttpClient::~HttpClient() { impl_->library.easy_cleanup(impl_->curl); }

HttpAnswer HttpClient::get(const std::string& url) {
  return impl_->request(url, [&] { impl_->set(CURLOPT_TIMEOUT, kRequestSeconds); });
}

HttpAnswer HttpClient::post_json(const std::string& url, const std::string& body) {
  const Headers headers = headers_of(impl_->library, "application/json");
  return impl_->request(url, [&] {
    impl_->set(CURLOPT_TIMEOUT, kRequestSeconds);
    impl_->set(CURLOPT_HTTPHEADER, headers.get());
    impl_->set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    impl_->set(CURLOPT_POSTFIELDS, body.c_str());
  });
}

HttpAnswer HttpClient::put_bytes(const std::string& url, const std::string& content) {
  const Headers headers = headers_of(impl_->library, "application/octet-stream");
  return impl_->request(url, [&] {
    impl_->set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    impl_->set(CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
    impl_->set(CURLOPT_HTTPHEADER, headers.get());
    impl_->set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(content.size()));
    impl_->set(CURLOPT_POSTFIELDS, content.c_str());
    impl_->set(CURLOPT_CUSTOMREQUEST, "PUT");
  });
}

HttpAnswer HttpClient::put_file(const std::string& url, const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), &std::fclose);
  if (!file) throw Error(cat("[loggers.http] the file must be readable; ", path, " is not. Check its permissions."));
  const Headers headers = headers_of(impl_->library, "application/octet-stream");
  return impl_->request(url, [&] {
    impl_->set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    impl_->set(CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
    impl_->set(CURLOPT_HTTPHEADER, headers.get());
    impl_->set(CURLOPT_UPLOAD, 1L);
    impl_->set(CURLOPT_READFUNCTION, nullptr);  // fread
    impl_->set(CURLOPT_READDATA, file.get());
    impl_->set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(std::filesystem::file_size(path)));
  });
}

std::string HttpClient::escaped_path(const std::string& text) { return percent_encoded(text, true); }
std::string HttpClient::escaped(const std::string& text) { return percent_encoded(text, false); }

std::string HttpClient::unescaped(const std::string& text) {
  if (text.find('%') == std::string::npos) return text;
  const CurlLibrary& library = CurlLibrary::get();
  int size = 0;
  const std::unique_ptr<char, decltype(&curl_free)> plain(
      library.easy_unescape(nullptr, text.c_str(), static_cast<int>(text.size()), &size), library.free);
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
