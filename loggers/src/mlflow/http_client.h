#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace fulgur {

struct HttpAnswer {
  int64_t status = 0;
  std::string body;
};

/// Requests to one server over one connection, through libcurl. Each connects within 5 s. A JSON request takes at most
/// 120 s, and an upload ends if it stalls for 300 s: a server that stores a large file answers late. All functions
/// throw an Error if there is no answer.
class HttpClient {
 public:
  /// A token, or a user with a password, is sent with each request unless empty.
  struct Identity {
    std::string token, user, password;
    bool checks_certificate = true;
  };
  /// `gives_up` is asked about once per second; a request then ends with an Error.
  explicit HttpClient(Identity identity, std::function<bool()> gives_up = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  HttpAnswer get(const std::string& url);
  HttpAnswer post_json(const std::string& url, const std::string& body);
  HttpAnswer put_bytes(const std::string& url, const std::string& content);
  HttpAnswer put_file(const std::string& url, const std::filesystem::path& file);
  /// `text` as a part of a URL; `/` stays.
  static std::string escaped_path(const std::string& text);
  static std::string escaped(const std::string& text);
  static std::string unescaped(const std::string& text);

  struct Address {
    std::string uri;  ///< without user and password
    std::string user, password;
  };
  /// `uri` without its `user:password@`, if there is one.
  static Address address(const std::string& uri);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulgur
