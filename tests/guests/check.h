/* Helpers that end the program with a sentence if a result is wrong. */
#pragma once
#include "guest.h"

static int wrong(const char *what) {
    fprintf(stderr, "wrong: %s\n", what);
    return EXIT_WRONG;
}
#define EXPECT(condition) \
    do { \
        if (!(condition)) return wrong(#condition); \
    } while (0)
#define FAILS(code, call) EXPECT((call) == (code))
