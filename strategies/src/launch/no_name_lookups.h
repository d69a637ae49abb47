#pragma once

namespace fulgur::detail {

/// During its lifetime, this thread asks no name server; /etc/hosts is read. LibTorch looks up the host name of each
/// address that its store connects to, only for messages, and a name server that does not answer costs seconds each
/// time.
class NoNameLookups {
 public:
  NoNameLookups();
  ~NoNameLookups();
  NoNameLookups(const NoNameLookups&) = delete;
  NoNameLookups& operator=(const NoNameLookups&) = delete;

 private:
  int attempts_;
};

}  // namespace fulgur::detail
