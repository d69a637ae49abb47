// A plug-in as it would be if it was built with another LibTorch: it refers to a symbol that this libfulgur.so lacks.
namespace fulgur::detail {
extern const char built_with_libtorch_1_13;
}

extern const char* const needed;
const char* const needed = &fulgur::detail::built_with_libtorch_1_13;
