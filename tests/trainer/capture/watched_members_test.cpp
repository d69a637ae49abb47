// The bytes of a module's members.
#include "capture/watched_members.h"

#include <catch2/catch_test_macros.hpp>

#include "trainer/boring.h"

namespace watched_members_test {

using namespace fulgur;
using namespace fulgur::test;
using fulgur::detail::WatchedMembers;

namespace {

struct Counting : BoringModule {
  int64_t count = 0;
  double scale = 1;
  std::vector<double> losses;
};

template <class Known, class M>
std::shared_ptr<M> known_as(const std::shared_ptr<M>& module) {
  fulgur::detail::ComponentAccess::find_overridden<LightningModule, Known>(*module);
  return module;
}

}  // namespace

TEST_CASE("changes of a module's members are seen, those of tensors and of the base are not") {
  const auto module = known_as<Counting>(std::make_shared<Counting>());
  WatchedMembers members(*module);
  CHECK_FALSE(members.changed());
  CHECK_FALSE(members.due());
  module->first->weight.data().add_(1);
  module->eval();
  CHECK_FALSE(members.changed());
  module->scale = 0.5;
  CHECK(members.changed());
  CHECK(members.due());
  CHECK_FALSE(members.changed());
  module->losses.push_back(1);
  CHECK(members.changed());
  members.remember();
  CHECK_FALSE(members.due());
}

TEST_CASE("a counter calls for ever fewer comparisons, and another member for one at once") {
  const auto module = known_as<Counting>(std::make_shared<Counting>());
  WatchedMembers members(*module);
  int due = 0;
  for (int i = 0; i < 1000; ++i) {
    ++module->count;
    if (members.due()) ++due;
  }
  CHECK(due == 10);
  module->count += 1;
  module->scale = 2;
  CHECK(members.due());
}

TEST_CASE("the place of a changed member is that of offsetof") {
  const auto module = known_as<Counting>(std::make_shared<Counting>());
  WatchedMembers members(*module);
  CHECK_FALSE(members.due());
  CHECK_FALSE(members.last_change());
  module->scale = 3;
  CHECK(members.due());
  const auto offset = reinterpret_cast<const std::byte*>(&module->scale) - reinterpret_cast<const std::byte*>(&*module);
  CHECK(members.last_change() == "a member of Counting at offset " + std::to_string(offset) + " to " +
                                     std::to_string(offset + 7) + " of the object has changed");
  CHECK_FALSE(members.due());
  CHECK_FALSE(members.last_change());
}

TEST_CASE("nothing is seen of a module whose class is not known, or of a copy") {
  const auto module = std::make_shared<Counting>();
  WatchedMembers unknown(*module);
  module->count = 1;
  CHECK_FALSE(unknown.changed());
  known_as<BoringModule>(module);
  WatchedMembers known_as_base(*module);
  module->count = 2;
  CHECK_FALSE(known_as_base.changed());
  known_as<Counting>(module);
  WatchedMembers known(*module);
  module->count = 3;
  CHECK(known.changed());
  Counting copy(*module);
  WatchedMembers of_copy(copy);
  copy.count = 4;
  CHECK_FALSE(of_copy.changed());
}

}  // namespace watched_members_test
