#pragma once

/// Marks what libfulgur.so exports; everything else is hidden.
#define FULGUR_API __attribute__((visibility("default")))
