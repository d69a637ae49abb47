#pragma once

/// Marks symbols exported by libfulgur.so; everything else is hidden.
#define FULGUR_API __attribute__((visibility("default")))
