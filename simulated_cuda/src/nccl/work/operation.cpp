#include "work/operation.h"

namespace fulgur::simulated_nccl {
namespace {

constexpr int32_t kPremultiplied = 1000;

const char* name_of(Kind kind) {
  static const char* const names[] = {"ncclAllReduce",     "ncclReduce",   "ncclBroadcast", "ncclAllGather",
                                      "ncclReduceScatter", "ncclAlltoAll", "ncclGather",    "ncclScatter",
                                      "ncclSend",          "ncclRecv"};
  return names[static_cast<int>(kind)];
}

}  // namespace

Statement Statement::of(const Operation& operation, uint64_t call) {
  Statement statement{};
  statement.kind = operation.kind;
  statement.type = operation.type;
  statement.op = !operation.reduces()                ? -1
                 : operation.reduction.premultiplied ? kPremultiplied
                                                     : static_cast<int32_t>(operation.reduction.op);
  statement.root = operation.has_root() ? operation.root : -1;
  statement.count = operation.count;
  statement.call = call;
  return statement;
}

bool Statement::agrees_with(const Statement& other) const {
  const bool pair =
      (kind == Kind::send && other.kind == Kind::receive) || (kind == Kind::receive && other.kind == Kind::send);
  return (kind == other.kind || pair) && type == other.type && op == other.op && root == other.root &&
         count == other.count;
}

std::string Statement::text() const {
  std::string text = std::string(name_of(kind)) + " of " + std::to_string(count) + " " +
                     simulated_nccl::name_of(static_cast<ncclDataType_t>(type));
  if (op == kPremultiplied)
    text += ", premul-sum";
  else if (op >= 0)
    text += std::string(", ") + simulated_nccl::name_of(Reduction{.op = static_cast<ncclRedOp_t>(op)});
  if (root >= 0) text += ", root " + std::to_string(root);
  return text;
}

}  // namespace fulgur::simulated_nccl
