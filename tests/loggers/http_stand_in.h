#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fulgur::test {

struct HttpRequest {
  std::string method, target, authorization, body;
};
struct HttpReply {
  int status = 200;
  std::string body = "{}";
};

/// A server on its own port that answers one request after another as the test says. It stands in for MLflow's.
class HttpStandIn {
 public:
  explicit HttpStandIn(std::function<HttpReply(const HttpRequest&)> answer) : answer_(std::move(answer)) {
    ::setenv("no_proxy", "127.0.0.1", 1);
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    if (::bind(socket_, any, size) != 0 || ::listen(socket_, 8) != 0 || ::getsockname(socket_, any, &size) != 0)
      throw std::runtime_error("no port");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpStandIn() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  HttpStandIn(const HttpStandIn&) = delete;
  HttpStandIn& operator=(const HttpStandIn&) = delete;

  /// `user` is put before the host.
  std::string uri(const std::string& user = "") const {
    return "http://" + user + "127.0.0.1:" + std::to_string(port_);
  }
  /// The requests that were received so far.
  std::vector<HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    for (int peer = -1; (peer = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ::close(peer)) {
      HttpRequest request;
      if (!receive(peer, request)) continue;
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      const HttpReply reply = answer_(request);
      const std::string text = "HTTP/1.1 " + std::to_string(reply.status) +
                               " X\r\nConnection: close\r\nContent-Length: " + std::to_string(reply.body.size()) +
                               "\r\n\r\n" + reply.body;
      for (size_t sent = 0; sent < text.size();) {
        const ssize_t more = ::send(peer, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (more <= 0) break;
        sent += static_cast<size_t>(more);
      }
    }
  }

  static std::string header(const std::string& head, const std::string& name) {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }

  static bool receive(int peer, HttpRequest& request) {
    std::string text;
    size_t head_end = std::string::npos, length = 0;
    while (head_end == std::string::npos || text.size() < head_end + 4 + length) {
      char block[4096];
      const ssize_t got = ::recv(peer, block, sizeof block, 0);
      if (got <= 0) return false;
      text.append(block, static_cast<size_t>(got));
      head_end = text.find("\r\n\r\n");
      if (head_end != std::string::npos)
        length = std::strtoull(header(text.substr(0, head_end + 2), "Content-Length").c_str(), nullptr, 10);
    }
    const size_t space = text.find(' ');
    request.method = text.substr(0, space);
    request.target = text.substr(space + 1, text.find(' ', space + 1) - space - 1);
    request.authorization = header(text.substr(0, head_end + 2), "Authorization");
    request.body = text.substr(head_end + 4);
    return true;
  }

  std::function<HttpReply(const HttpRequest&)> answer_;
  int socket_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  std::thread thread_;
};

}  // namespace fulgur::test
