// Classes that cannot be registered: FULGUR_REGISTER says why. MISTAKE chooses one; 0: no mistake.
#include <fulgur/core/contracts/registry.h>

namespace {

struct Animal {
  static constexpr const char* kRegistryKind = "animal";
  virtual ~Animal() = default;
  virtual int legs() const = 0;
};

#if MISTAKE == 1
struct Pet {
#else
struct Pet : Animal {
#endif
  struct Options {
    double weight = 1;
#if MISTAKE != 2
    void fields(fulgur::Fields& f) { f(weight, "weight", "In kg."); }
#endif
  };
#if MISTAKE != 3
  explicit Pet(const Options&) {}
#endif
#if MISTAKE == 4
  int legs() { return 4; }
#else
  int legs() const { return 4; }
#endif
};

FULGUR_REGISTER(Animal, Pet, "A pet.");

}  // namespace
